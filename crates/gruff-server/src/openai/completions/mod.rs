//! `/v1/completions`.

mod run;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::floors::text::chat::OutputFormat;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::StreamOptions;
use super::envelope::Envelope;
use crate::answer::TextReader;
use crate::api_error::ApiError;
use crate::background;
use crate::body;
use crate::limits::MAX_CHOICES;
use crate::logprobs;
use crate::registry::Registry;
use crate::sampling::{OneOrMany, Sampling, stops};
use crate::service::Service;
use crate::sse;
use run::{Choice, Prompt, Run};

/// Tokens of an answer where the request does not say, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// A request, as OpenAI's reference has it, and the fields that llama-server and vLLM add.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletionRequest {
    model: Option<String>,
    prompt: Prompts,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
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
    best_of: Option<usize>,
    #[serde(default)]
    echo: bool,
    suffix: Option<String>,
    logprobs: Option<usize>,
    /// A label for the caller's own records; nothing depends on it.
    #[serde(rename = "user")]
    _user: Option<String>,
}

/// Texts or token ids, one or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl CompletionRequest {
    fn check(&self) -> Result<(), ApiError> {
        logprobs::check("logprobs", self.logprobs)?;
        self.stream_options.map_or(Ok(()), StreamOptions::check)?;
        let n = self.n.unwrap_or(1);
        if self.best_of.is_some_and(|best| best < n) {
            return Err(ApiError::field("best_of", format!("`best_of` is less than the {n} answers wanted")));
        }
        if self.best_of.is_some_and(|best| best > n) && self.stream {
            let message = "which answers are the best shows at their end; leave `stream` or `best_of` out";
            return Err(ApiError::field("best_of", message));
        }
        if self.suffix.is_some() && self.echo {
            return Err(ApiError::field(
                "echo",
                "a gap is filled without the text around it; leave `echo` out",
            ));
        }
        if self.max_tokens == Some(0) && !self.echo {
            let message = "`max_tokens` is 0: there is nothing to answer, unless `echo` asks for the prompt";
            return Err(ApiError::field("max_tokens", message));
        }
        if self.stream_options.is_some() && !self.stream {
            return Err(ApiError::field("stream_options", "`stream_options` belong to `stream: true`"));
        }
        Ok(())
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            // The default of OpenAI's completions. A prompt that is only looked at is answered all the same, and the
            // answer is left out.
            max_tokens: Some(self.max_tokens.unwrap_or(DEFAULT_TOKENS).max(1)),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            // Answers are told from worse ones by their logprobs.
            logprobs: self.logprobs.or((self.best_of > self.n).then_some(0)),
        }
    }
}

/// The prompts of a request.
struct Read {
    ids: Vec<Vec<u32>>,
    /// What `echo` repeats.
    texts: Vec<String>,
}

impl Prompts {
    /// Ids of every prompt, and the texts to echo.
    fn read(self, service: &Service, suffix: Option<&str>, echo: bool) -> Result<Read, ApiError> {
        let texts = match (self, suffix) {
            (Prompts::Text(text), _) => vec![text],
            (Prompts::Texts(texts), _) => texts,
            (Prompts::Ids(ids), None) => return Ok(Self::from_ids(service, vec![ids], echo)),
            (Prompts::ManyIds(prompts), None) => return Ok(Self::from_ids(service, prompts, echo)),
            (_, Some(_)) => {
                return Err(ApiError::field("suffix", "`suffix` belongs to prompts that are texts, not ids"));
            }
        };
        if texts.len() > MAX_CHOICES {
            return Err(ApiError::field(
                "prompt",
                format!("{} prompts are more than {MAX_CHOICES}", texts.len()),
            ));
        }
        let ids = |text: &String| match suffix {
            None => Ok(service.tokenizer.encode(text)?),
            Some(suffix) => around_gap(service, text, suffix),
        };
        let ids = texts.iter().map(ids).collect::<Result<_, ApiError>>()?;
        Ok(Read { ids, texts })
    }

    fn from_ids(service: &Service, ids: Vec<Vec<u32>>, echo: bool) -> Read {
        let text = |ids: &Vec<u32>| if echo { service.tokenizer.decode(ids, true) } else { String::new() };
        let texts = ids.iter().map(text).collect();
        Read { ids, texts }
    }
}

/// A prompt for what stands between two texts.
fn around_gap(service: &Service, before: &str, after: &str) -> Result<Vec<u32>, ApiError> {
    let ids = service.tokenizer.tokenizer().encode_fill(before, after).map_err(gruff::Error::from)?;
    ids.ok_or_else(|| {
        let message = "this model's vocabulary has no tokens for filling a gap in; leave `suffix` out";
        ApiError::unsupported("suffix", message)
    })
}

/// `POST /v1/completions`.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: CompletionRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    request.check()?;
    let config = request.sampling().config(&service.generation_config)?;
    let stops = stops(request.stop.clone())?;
    let n = request.n.unwrap_or(1);
    let each = request.best_of.unwrap_or(n);
    let (stream, echo) = (request.stream, request.echo);
    let (tells, answers) = (request.logprobs.is_some(), request.max_tokens != Some(0));
    let scores = request.logprobs.filter(|_| echo);
    let envelope = Envelope::new(&service, "cmpl-", "text_completion", request.stream_options);
    let reader = service.clone();
    let work = move || {
        let read = request.prompt.read(&reader, request.suffix.as_deref(), echo)?;
        let mut requests = reader.requests(&read.ids, each, &config)?;
        // A prompt is scored once, for all of its answers.
        requests.iter_mut().step_by(each).for_each(|first| first.outputs.prompt_logprobs = scores);
        Ok((read, requests))
    };
    let (read, requests) = background::run(work).await?;
    let generation = service.begin(requests)?;
    let tokenizer = service.tokenizer.tokenizer();
    let choice = |_| {
        let (ends, format) = (service.end_tokens.clone(), OutputFormat::default());
        Choice::new(tokenizer, TextReader::new(tokenizer, ends, format, stops.clone(), true))
    };
    let choices = (0..read.ids.len() * each).map(choice).collect();
    let prompt = |(ids, text): (Vec<u32>, String)| Prompt::new(ids, echo.then_some(text), scores.is_some());
    let prompts = read.ids.into_iter().zip(read.texts).map(prompt).collect();
    let run = Run {
        envelope,
        generation,
        tokenizer: tokenizer.clone(),
        prompts,
        choices,
        each,
        n,
        tells,
        answers,
        waiting: VecDeque::new(),
    };
    match stream {
        true => Ok(sse::stream(|frames| run.stream(frames))),
        false => run.whole().await,
    }
}
