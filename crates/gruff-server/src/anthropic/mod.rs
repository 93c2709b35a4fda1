//! Endpoints of Anthropic's API.

mod convert;
mod respond;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use gruff::floors::text::chat::ReasoningMode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::chat::ChatJob;
use crate::form::{Calls, Form};
use crate::openai::tool_choice;
use crate::registry::Registry;
use crate::sampling::{OneOrMany, Sampling, schema, stops};
use crate::service::Service;
use crate::sse;
use respond::Answer;

/// A request, as Anthropic's reference has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesRequest {
    model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    max_tokens: Option<usize>,
    #[serde(default)]
    stream: bool,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    context_management: Option<ContextManagement>,
    service_tier: Option<String>,
    /// A label for the caller's own records; nothing depends on it.
    #[serde(rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    disable_parallel_tool_use: bool,
    name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    /// How much the model shall do; templates that read an effort get it.
    effort: Option<String>,
    /// The answer is JSON of a schema.
    format: Option<Value>,
}

/// What shall be left out of a long conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ContextManagement {
    #[serde(default)]
    edits: Vec<Value>,
}

impl ContextManagement {
    /// Refuses every edit but the one that leaves everything in.
    fn check(&self) -> Result<(), ApiError> {
        let keeps_all = |edit: &Value| {
            edit.get("type").and_then(Value::as_str) == Some("clear_thinking_20251015")
                && edit.get("keep").and_then(Value::as_str) == Some("all")
        };
        match self.edits.iter().all(keeps_all) {
            true => Ok(()),
            false => Err(ApiError::unsupported(
                "context_management",
                "this server leaves nothing out of a conversation; leave `context_management` out",
            )),
        }
    }
}

impl MessagesRequest {
    fn reasoning(&self) -> Result<Option<ReasoningMode>, ApiError> {
        let Some(thinking) = &self.thinking else { return Ok(None) };
        match thinking.kind.as_str() {
            "enabled" | "adaptive" => Ok(Some(ReasoningMode::On)),
            "disabled" => Ok(Some(ReasoningMode::Off)),
            _ => Err(ApiError::field("thinking", "`thinking.type` is enabled, adaptive or disabled")),
        }
    }

    fn job(self, service: &Service) -> Result<ChatJob, ApiError> {
        let reasoning = self.reasoning()?;
        let reasoning_budget = self.thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
        let choice = self.tool_choice;
        let mut tools = convert::tools(&self.tools)?;
        let mut calls = Calls::Free;
        match choice.as_ref().map(|choice| (choice.kind.as_str(), &choice.name)) {
            None | Some(("auto", None)) => calls = tool_choice::free(&tools),
            Some(("none", None)) => tools.clear(),
            Some(("any", None)) if !tools.is_empty() => calls = Calls::Required(tools.clone()),
            Some(("tool", Some(name))) => calls = Calls::Required(vec![convert::named(&tools, name)?]),
            Some(_) => {
                let message =
                    "`tool_choice` is auto, none, any (of the `tools` that there are), or tool with a `name`";
                return Err(ApiError::field("tool_choice", message));
            }
        }
        tool_choice::hide_strict(&mut tools);
        match self.service_tier.as_deref() {
            None | Some("auto" | "standard_only") => {}
            Some(_) => {
                return Err(ApiError::unsupported(
                    "service_tier",
                    "there is one tier; leave `service_tier` out",
                ));
            }
        }
        if let Some(management) = &self.context_management {
            management.check()?;
        }
        let (mut variables, mut form_schema) = (Map::new(), None);
        if let Some(config) = self.output_config {
            form_schema = schema("output_config.format", config.format.as_ref())?;
            variables
                .extend(config.effort.map(|effort| ("reasoning_effort".to_owned(), Value::from(effort))));
        }
        let sampling = Sampling {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            ..Sampling::default()
        };
        Ok(ChatJob {
            messages: convert::messages(self.system.as_ref(), &self.messages)?,
            tools,
            form: Form { schema: form_schema, calls },
            parallel_tool_calls: !choice.is_some_and(|choice| choice.disable_parallel_tool_use),
            n: 1,
            stops: stops(self.stop_sequences.map(OneOrMany::Many))
                .map_err(|error| ApiError { param: Some("stop_sequences".to_owned()), ..error })?,
            config: sampling.config(&service.generation_config)?,
            reasoning,
            reasoning_budget,
            variables,
        })
    }
}

/// `POST /v1/messages`.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(registry, headers, body).await.unwrap_or_else(|error| error_response(&error))
}

async fn answer(registry: Arc<Registry>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let request: MessagesRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    if request.max_tokens.is_none() {
        return Err(ApiError::field(
            "max_tokens",
            "`max_tokens` is missing: how many tokens the answer may have",
        ));
    }
    let stream = request.stream;
    let run = service.chat(request.job(&service)?).await?;
    let answer = Answer::new(Service::new_id("msg_"), service.id.clone(), run);
    match stream {
        true => Ok(sse::stream(|frames| answer.stream(frames))),
        false => answer.whole().await,
    }
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    count(registry, headers, body).await.unwrap_or_else(|error| error_response(&error))
}

async fn count(registry: Arc<Registry>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let request: MessagesRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let job = request.job(&service)?;
    let work = move || service.prompt(&job).map(|prompt| reply(&json!({"input_tokens": prompt.ids.len()})));
    background::run(work).await
}

/// An error as Anthropic's API writes it.
fn error_body(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

/// An error about an address: in Anthropic's form where the address is of its API.
pub(crate) fn refusal(path: &str, error: ApiError) -> Response {
    match path == "/v1/messages" || path.starts_with("/v1/messages/") {
        true => error_response(&error),
        false => error.into_response(),
    }
}

fn error_response(error: &ApiError) -> Response {
    // Status and headers are the same; only the body has another form.
    let (mut parts, _) = error.clone().into_response().into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(error_body(error).to_string()))
}
