//! `/v1/responses`.

mod input;
mod output;
mod store;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::floors::text::chat::ReasoningMode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{StreamOptions, check_defaults, check_service_tier, tool_choice};
use crate::api_error::ApiError;
use crate::body;
use crate::chat::{ChatJob, check_tools};
use crate::form::Form;
use crate::logprobs;
use crate::registry::Registry;
use crate::sampling::{Sampling, schema};
use crate::service::Service;
use crate::sse;
use output::Answer;
pub(crate) use store::Store;

/// What `include` may ask for.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request, as OpenAI's reference has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponsesRequest {
    model: Option<String>,
    input: Value,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    #[serde(default)]
    stream: bool,
    max_output_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    #[serde(default)]
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    text: Option<TextOptions>,
    /// Whether the answer may be continued by its id; it may where nothing is said.
    store: Option<bool>,
    truncation: Option<String>,
    background: Option<bool>,
    include: Option<Vec<String>>,
    service_tier: Option<String>,
    stream_options: Option<StreamOptions>,
    prompt_cache_retention: Option<String>,
    top_logprobs: Option<usize>,
    metadata: Option<Map<String, Value>>,
    /// Labels for the caller's own records; nothing depends on them.
    #[serde(rename = "user")]
    _user: Option<String>,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    /// Reasoning is given as it is; a summary is not made of it.
    summary: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<Value>,
    verbosity: Option<String>,
}

impl ResponsesRequest {
    /// Refuses what cannot be honoured.
    fn check(&self) -> Result<(), ApiError> {
        let refuse = |param: &str, message: &str| Err(ApiError::unsupported(param, message));
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_deref());
        check_defaults(None, verbosity, self.prompt_cache_retention.as_deref()).map_err(
            |error| match error.param.as_deref() {
                Some("verbosity") => ApiError { param: Some("text".to_owned()), ..error },
                _ => error,
            },
        )?;
        self.stream_options.map_or(Ok(()), StreamOptions::check)?;
        if self.reasoning.as_ref().is_some_and(|reasoning| reasoning.summary.is_some()) {
            return refuse("reasoning", "reasoning is given as it is; leave `reasoning.summary` out");
        }
        if self.truncation.as_deref().is_some_and(|truncation| truncation != "disabled") {
            return refuse("truncation", "nothing is cut out of a conversation; leave `truncation` out");
        }
        if self.background == Some(true) {
            return refuse("background", "answers are given at once; leave `background` out");
        }
        if self.include.iter().flatten().any(|part| part != LOGPROBS) {
            return refuse("include", "of what may be included there is `message.output_text.logprobs` here");
        }
        logprobs::check("top_logprobs", self.top_logprobs)?;
        check_service_tier(self.service_tier.as_deref())
    }

    /// What the response repeats of the request.
    fn echo(&self) -> Map<String, Value> {
        let form = self.text.as_ref().and_then(|text| text.format.clone());
        let form = form.unwrap_or_else(|| json!({"type": "text"}));
        let fields = json!({
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": self.tools,
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| Value::from("auto")),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "reasoning": {"effort": self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()), "summary": null},
            "text": {"format": form},
            "truncation": "disabled",
            "store": self.store.unwrap_or(true),
            "top_logprobs": self.top_logprobs.unwrap_or(0),
            "metadata": self.metadata.clone().unwrap_or_default(),
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn job(self, service: &Service) -> Result<ChatJob, ApiError> {
        let mut messages = match &self.previous_response_id {
            None => Vec::new(),
            Some(id) => service.responses.get(id).ok_or_else(|| {
                let message =
                    format!("there is no answer with the id {id} any more; send the whole conversation");
                ApiError {
                    code: Some("previous_response_not_found"),
                    ..ApiError::field("previous_response_id", message)
                }
            })?,
        };
        messages.extend(input::messages(&self.input)?);
        if let Some(instructions) = self.instructions {
            // They hold for this answer alone.
            messages.insert(0, gruff::Message::system(instructions));
        }
        let tools = input::tools(&self.tools)?;
        check_tools(&tools)?;
        let tool_choice::Chosen { tools, calls } = tool_choice::read(self.tool_choice.as_ref(), tools)?;
        let schema = schema("text", self.text.as_ref().and_then(|text| text.format.as_ref()))?;
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let reasoning = effort
            .as_ref()
            .map(|effort| if effort == "none" { ReasoningMode::Off } else { ReasoningMode::On });
        let variables = effort.map(|effort| ("reasoning_effort".to_owned(), Value::from(effort)));
        let included = self.include.iter().flatten().any(|part| part == LOGPROBS)
            || self.top_logprobs.is_some_and(|count| count > 0);
        let sampling = Sampling {
            max_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            logprobs: included.then_some(self.top_logprobs.unwrap_or(0)),
            ..Sampling::default()
        };
        Ok(ChatJob {
            messages,
            tools,
            form: Form { schema, calls },
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            n: 1,
            stops: Vec::new(),
            config: sampling.config(&service.generation_config)?,
            reasoning,
            reasoning_budget: None,
            variables: variables.into_iter().collect(),
        })
    }
}

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: ResponsesRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    request.check()?;
    let (stream, keeps, instructed) =
        (request.stream, request.store.unwrap_or(true), request.instructions.is_some());
    let echo = request.echo();
    let job = request.job(&service)?;
    // Instructions are not part of what the next answer continues.
    let history = keeps.then(|| job.messages.iter().skip(usize::from(instructed)).cloned().collect());
    let run = service.chat(job).await.map_err(|error| match error.param.as_deref() {
        // What chat requests call `response_format`.
        Some("response_format") => ApiError { param: Some("text".to_owned()), ..error },
        _ => error,
    })?;
    let answer = Answer::new(service, run, echo, history);
    match stream {
        true => Ok(sse::stream(|frames| answer.stream(frames))),
        false => answer.whole().await,
    }
}
