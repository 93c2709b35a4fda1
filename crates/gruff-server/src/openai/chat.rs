//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::floors::text::chat::{OutputEvent, ParsedOutput, ReasoningMode};
use gruff::{Message, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::envelope::Envelope;
use super::{StreamOptions, check_defaults, check_service_tier, tool_choice};
use crate::answer::timings;
use crate::api_error::ApiError;
use crate::body::{self, reply};
use crate::chat::{ChatEvent, ChatJob, ChatRun, Finish, check_tools};
use crate::form::Form;
use crate::ids;
use crate::logprobs::{self, TokenLogprob};
use crate::registry::Registry;
use crate::sampling::{OneOrMany, Sampling, schema, stops};
use crate::service::Service;
use crate::sse::{self, Frames, Gone};

/// A request, as OpenAI's reference has it, and the fields that llama-server and vLLM add.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatRequest {
    model: Option<String>,
    #[schemars(with = "Vec<Map<String, Value>>")]
    messages: Vec<Message>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    n: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    response_format: Option<Value>,
    reasoning_effort: Option<String>,
    /// Tokens that the answer may reason with.
    reasoning_budget: Option<usize>,
    chat_template_kwargs: Option<Map<String, Value>>,
    store: Option<bool>,
    service_tier: Option<String>,
    modalities: Option<Vec<String>>,
    verbosity: Option<String>,
    prompt_cache_retention: Option<String>,
    /// Labels for the caller's own records; nothing depends on them.
    #[serde(rename = "user")]
    _user: Option<String>,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<String>,
    #[serde(rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
}

impl ChatRequest {
    /// Refuses what cannot be honoured.
    fn check(&self) -> Result<(), ApiError> {
        logprobs::check("top_logprobs", self.top_logprobs)?;
        if self.top_logprobs.is_some_and(|count| count > 0) && self.logprobs != Some(true) {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` belong to `logprobs: true`"));
        }
        if self.store == Some(true) {
            return Err(ApiError::unsupported("store", "this server stores no answers; leave `store` out"));
        }
        check_service_tier(self.service_tier.as_deref())?;
        check_defaults(
            self.modalities.as_deref(),
            self.verbosity.as_deref(),
            self.prompt_cache_retention.as_deref(),
        )?;
        self.stream_options.map_or(Ok(()), StreamOptions::check)?;
        if self.stream_options.is_some() && !self.stream {
            return Err(ApiError::field("stream_options", "`stream_options` belong to `stream: true`"));
        }
        Ok(())
    }

    fn job(self, service: &Service) -> Result<ChatJob, ApiError> {
        let tools = self.tools.unwrap_or_default();
        check_tools(&tools)?;
        let tool_choice::Chosen { tools, calls } = tool_choice::read(self.tool_choice.as_ref(), tools)?;
        let schema = schema("response_format", self.response_format.as_ref())?;
        let mut variables = Map::new();
        let mut reasoning = None;
        if let Some(effort) = self.reasoning_effort {
            reasoning = Some(if effort == "none" { ReasoningMode::Off } else { ReasoningMode::On });
            variables.insert("reasoning_effort".to_owned(), Value::from(effort));
        }
        variables.extend(self.chat_template_kwargs.unwrap_or_default());
        let sampling = Sampling {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias,
            seed: self.seed,
            logprobs: (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0)),
        };
        Ok(ChatJob {
            messages: named(self.messages),
            tools,
            form: Form { schema, calls },
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            n: self.n.unwrap_or(1),
            stops: stops(self.stop)?,
            config: sampling.config(&service.generation_config)?,
            reasoning,
            reasoning_budget: self.reasoning_budget,
            variables,
        })
    }
}

/// `POST /v1/chat/completions`.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: ChatRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    request.check()?;
    let stream = request.stream;
    let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
    let envelope = Envelope::new(&service, "chatcmpl-", object, request.stream_options);
    let job = request.job(&service)?;
    let (n, logprobs) = (job.n, job.config.logprobs.is_some());
    let run = service.chat(job).await?;
    let answers = Answers { envelope, run, n, logprobs };
    match stream {
        true => Ok(sse::stream(|frames| answers.stream(frames))),
        false => answers.whole().await,
    }
}

/// The answers to a request, on their way.
struct Answers {
    envelope: Envelope,
    run: ChatRun,
    n: usize,
    /// Whether tokens are told of.
    logprobs: bool,
}

/// One answer, added up.
#[derive(Default)]
struct Whole {
    parsed: ParsedOutput,
    ids: Vec<String>,
    logprobs: Vec<TokenLogprob>,
    finish: Option<Finish>,
}

impl Answers {
    /// The response as one object.
    async fn whole(self) -> Result<Response, ApiError> {
        let Self { envelope, mut run, n, logprobs } = self;
        let mut answers: Vec<Whole> = (0..n).map(|_| Whole::default()).collect();
        while let Some((index, event)) = run.next().await? {
            let Some(answer) = answers.get_mut(index) else { continue };
            match event {
                ChatEvent::Output(event, tokens) => {
                    if let OutputEvent::CallStart { id, .. } = &event {
                        answer.ids.push(call_id(id));
                    }
                    answer.parsed.push(event);
                    answer.logprobs.extend(tokens);
                }
                ChatEvent::Finished(finished) => answer.finish = Some(finished),
            }
        }
        let mut usages = Vec::with_capacity(n);
        let mut choices = Vec::with_capacity(n);
        let mut reasoned = 0;
        for (index, answer) in answers.into_iter().enumerate() {
            let finish = answer.finish.ok_or_else(ApiError::stopped)?;
            usages.push(finish.usage);
            reasoned += finish.reasoning_tokens;
            choices.push(json!({
                "index": index,
                "message": message(&answer.parsed, &answer.ids),
                "logprobs": logprobs.then(|| logprobs::content(&answer.logprobs)),
                "finish_reason": finish.reason,
            }));
        }
        Ok(reply(&envelope.whole(choices, run.prompt_tokens, &usages, n, Some(reasoned))))
    }

    /// The response as chunks.
    async fn stream(self, frames: Frames) -> Result<(), Gone> {
        let Self { envelope, mut run, n, logprobs } = self;
        let chunk = |index: usize, delta: Value, reason: Option<&str>| {
            envelope.chunk(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason}))
        };
        for index in 0..n {
            frames.data(&chunk(index, json!({"role": "assistant", "content": ""}), None)).await?;
        }
        let mut usages: Vec<Usage> = Vec::with_capacity(n);
        let mut reasoned = 0;
        loop {
            match frames.wait(run.next()).await? {
                Ok(Some((index, ChatEvent::Output(event, tokens)))) => {
                    if let Some(delta) = delta(event) {
                        let mut chunk = chunk(index, delta, None);
                        if logprobs && !tokens.is_empty() {
                            chunk["choices"][0]["logprobs"] = logprobs::content(&tokens);
                        }
                        frames.data(&chunk).await?;
                    }
                }
                Ok(Some((index, ChatEvent::Finished(finish)))) => {
                    usages.push(finish.usage);
                    reasoned += finish.reasoning_tokens;
                    let mut last = chunk(index, json!({}), Some(finish.reason));
                    if n == 1 {
                        last["timings"] = timings(&finish.usage);
                    }
                    frames.data(&last).await?;
                }
                Ok(None) if usages.len() == n => break,
                Ok(None) => return frames.data(&ApiError::stopped().body()).await,
                Err(error) => return frames.data(&error.body()).await,
            }
        }
        envelope.end(&frames, run.prompt_tokens, &usages, n, Some(reasoned)).await
    }
}

/// Messages with their reasoning under the name that templates read: vLLM's API, and with it routers, call it
/// `reasoning`.
fn named(mut messages: Vec<Message>) -> Vec<Message> {
    for message in &mut messages {
        let other = message.get("reasoning").and_then(Value::as_str).map(str::to_owned);
        if let Some(reasoning) = other.filter(|_| message.reasoning().is_none()) {
            message.set("reasoning_content", reasoning);
        }
    }
    messages
}

/// The id of a call: the model's own, or a new one.
pub(crate) fn call_id(id: &str) -> String {
    if id.is_empty() { ids::id("call_") } else { id.to_owned() }
}

fn message(parsed: &ParsedOutput, ids: &[String]) -> Value {
    let content = match parsed.content.is_empty() && !parsed.calls.is_empty() {
        true => Value::Null,
        false => Value::from(parsed.content.as_str()),
    };
    let mut message = json!({"role": "assistant", "content": content});
    if !parsed.reasoning.is_empty() {
        message["reasoning_content"] = Value::from(parsed.reasoning.as_str());
    }
    if !parsed.calls.is_empty() {
        let calls = parsed.calls.iter().zip(ids).map(|(call, id)| {
            json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

fn delta(event: OutputEvent) -> Option<Value> {
    Some(match event {
        OutputEvent::Reasoning(text) => json!({"reasoning_content": text}),
        OutputEvent::Content(text) => json!({"content": text}),
        OutputEvent::CallStart { index, id, name } => json!({"tool_calls": [{
            "index": index, "id": call_id(&id), "type": "function", "function": {"name": name, "arguments": ""},
        }]}),
        OutputEvent::CallArguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
        OutputEvent::CallEnd { .. } => return None,
    })
}
