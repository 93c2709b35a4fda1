//! Endpoints under llama-server's names: health, metrics, templates.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use gruff::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::chat::{ChatJob, check_tools};
use crate::endpoint::endpoints;
use crate::form::Form;
use crate::metrics::Now;
use crate::openapi;
use crate::registry::Registry;

/// `GET /health`.
pub(crate) async fn health(State(registry): State<Arc<Registry>>) -> Result<Response, ApiError> {
    match registry.is_running() {
        true => Ok(reply(&json!({"status": "ok"}))),
        false => Err(ApiError::stopped()),
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut now = Now::default();
    registry.each(|service| {
        now.in_progress += service.in_progress();
        now.models += 1;
        now.memory += service.memory.total();
        now.engines.push(service.engine.stats());
    });
    let text = registry.shared.metrics.text(&now);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Response {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| openapi::document(&endpoints()).to_string());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyTemplate {
    model: Option<String>,
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: ApplyTemplate = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    check_tools(&request.tools)?;
    let job = ChatJob {
        messages: request.messages,
        tools: request.tools,
        form: Form::default(),
        parallel_tool_calls: true,
        n: 1,
        stops: Vec::new(),
        config: service.generation_config.clone(),
        reasoning: None,
        reasoning_budget: None,
        variables: request.chat_template_kwargs,
    };
    let work = move || service.prompt(&job).map(|prompt| reply(&json!({"prompt": prompt.text})));
    background::run(work).await
}
