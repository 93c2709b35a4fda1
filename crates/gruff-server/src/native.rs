//! Endpoints under llama-server's names: health, metrics, tokens, templates.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use gruff::Message;
use gruff::floors::text::EncodeOptions;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::chat::{ChatJob, check_tools};
use crate::metrics::Now;
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
    });
    let text = registry.shared.metrics.text(now);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokenize {
    model: Option<String>,
    content: String,
    /// Whether to add the tokens that the model wants at the beginning or end of a prompt.
    #[serde(default)]
    add_special: bool,
    /// Whether special tokens written in the text are parsed.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether to give the text of each token too.
    #[serde(default)]
    with_pieces: bool,
}

fn yes() -> bool {
    true
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: Tokenize = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let work = move || {
        let tokenizer = service.tokenizer.tokenizer();
        let options =
            EncodeOptions { add_special: request.add_special, parse_special: request.parse_special };
        let ids = tokenizer.encode(&request.content, options).map_err(gruff::Error::from)?;
        let tokens: Vec<Value> = match request.with_pieces {
            false => ids.into_iter().map(Value::from).collect(),
            true => ids
                .into_iter()
                .map(|id| json!({"id": id, "piece": tokenizer.id_to_token(id).unwrap_or_default()}))
                .collect(),
        };
        Ok(reply(&json!({"tokens": tokens})))
    };
    background::run(work).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: Detokenize = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let vocabulary = service.description.vocabulary;
    if let Some(id) = request.tokens.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("token id {id} is outside the vocabulary of {vocabulary}");
        return Err(ApiError::field("tokens", message));
    }
    Ok(reply(&json!({"content": service.tokenizer.decode(&request.tokens, false)})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplyTemplate {
    model: Option<String>,
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
        parallel_tool_calls: true,
        n: 1,
        stops: Vec::new(),
        config: service.generation_config.clone(),
        reasoning: None,
        variables: request.chat_template_kwargs,
    };
    let work = move || service.prompt(&job).map(|prompt| reply(&json!({"prompt": prompt.text})));
    background::run(work).await
}
