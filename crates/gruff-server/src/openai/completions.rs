//! `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::Usage;
use gruff::floors::text::chat::OutputFormat;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::StreamOptions;
use super::envelope::Envelope;
use crate::answer::{Generation, TextReader, finish_reason};
use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::engine_thread::Update;
use crate::limits::MAX_CHOICES;
use crate::registry::Registry;
use crate::sampling::{OneOrMany, Sampling, stops};
use crate::service::Service;
use crate::sse::{self, Frames, Gone};

/// A request, as OpenAI's reference has it, and the fields that llama-server and vLLM add.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompletionRequest {
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
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl CompletionRequest {
    fn check(&self) -> Result<(), ApiError> {
        if self.logprobs.is_some() {
            return Err(ApiError::unsupported(
                "logprobs",
                "this build of gruff gives no `logprobs`; leave it out",
            ));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported(
                "suffix",
                "this build of gruff does not fill in; leave `suffix` out",
            ));
        }
        if self.best_of.is_some_and(|best| best != self.n.unwrap_or(1)) {
            return Err(ApiError::unsupported(
                "best_of",
                "every answer is given; `best_of` can only equal `n`",
            ));
        }
        if self.stream_options.is_some() && !self.stream {
            return Err(ApiError::field("stream_options", "`stream_options` belong to `stream: true`"));
        }
        Ok(())
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            // The default of OpenAI's completions.
            max_tokens: Some(self.max_tokens.unwrap_or(16)),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            ..Sampling::default()
        }
    }
}

impl Prompts {
    /// Ids of every prompt, and the texts to echo.
    fn read(self, service: &Service, echo: bool) -> Result<(Vec<Vec<u32>>, Vec<String>), ApiError> {
        let texts = match self {
            Prompts::Text(text) => vec![text],
            Prompts::Texts(texts) => texts,
            Prompts::Ids(ids) => return Ok(Self::from_ids(service, vec![ids], echo)),
            Prompts::ManyIds(prompts) => return Ok(Self::from_ids(service, prompts, echo)),
        };
        if texts.len() > MAX_CHOICES {
            return Err(ApiError::field(
                "prompt",
                format!("{} prompts are more than {MAX_CHOICES}", texts.len()),
            ));
        }
        let ids = texts.iter().map(|text| service.tokenizer.encode(text)).collect::<Result<_, _>>()?;
        Ok((ids, texts))
    }

    fn from_ids(service: &Service, prompts: Vec<Vec<u32>>, echo: bool) -> (Vec<Vec<u32>>, Vec<String>) {
        let text = |ids: &Vec<u32>| if echo { service.tokenizer.decode(ids, true) } else { String::new() };
        let texts = prompts.iter().map(text).collect();
        (prompts, texts)
    }
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
    let (stream, echo) = (request.stream, request.echo);
    let envelope = Envelope::new(&service, "cmpl-", "text_completion", request.stream_options);
    let reader = service.clone();
    let work = move || {
        let (prompts, texts) = request.prompt.read(&reader, echo)?;
        let requests = reader.requests(&prompts, n, &config)?;
        Ok((prompts, texts, requests))
    };
    let (prompts, texts, requests) = background::run(work).await?;
    let generation = service.begin(requests)?;
    let choices = (0..prompts.len() * n).map(|choice| Choice {
        reader: TextReader::new(
            service.tokenizer.tokenizer(),
            service.end_tokens.clone(),
            OutputFormat::default(),
            stops.clone(),
            true,
        ),
        echo: if echo { texts.get(choice / n).cloned().unwrap_or_default() } else { String::new() },
        over: false,
    });
    let run = Run {
        envelope,
        generation,
        choices: choices.collect(),
        prompt_tokens: prompts.iter().map(Vec::len).sum(),
    };
    match stream {
        true => Ok(sse::stream(|frames| run.stream(frames))),
        false => run.whole().await,
    }
}

struct Choice {
    reader: TextReader,
    /// The prompt's text where it is to be repeated.
    echo: String,
    /// A stop string has been found.
    over: bool,
}

struct Run {
    envelope: Envelope,
    generation: Generation,
    choices: Vec<Choice>,
    prompt_tokens: usize,
}

/// More of an answer, or its end.
struct More {
    index: usize,
    text: String,
    end: Option<(&'static str, Usage)>,
}

impl Run {
    async fn next(&mut self) -> Result<Option<More>, ApiError> {
        loop {
            let Some((index, update)) = self.generation.next().await? else { return Ok(None) };
            let Some(choice) = self.choices.get_mut(index) else { continue };
            match update {
                Update::Token(_) if choice.over => {}
                Update::Token(id) => {
                    let text = choice.reader.token(id);
                    if choice.reader.stopped().is_some() {
                        choice.over = true;
                        self.generation.cancel(index);
                    }
                    if !text.is_empty() {
                        return Ok(Some(More { index, text, end: None }));
                    }
                }
                Update::Finished(reason, usage) => {
                    let text = choice.reader.finish();
                    return Ok(Some(More { index, text, end: Some((finish_reason(reason), usage)) }));
                }
                Update::Failed(error) => return Err(error),
            }
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let count = self.choices.len();
        let mut texts: Vec<String> = self.choices.iter().map(|choice| choice.echo.clone()).collect();
        let mut ends = vec![None; count];
        while let Some(More { index, text, end }) = self.next().await? {
            if let (Some(whole), Some(slot)) = (texts.get_mut(index), ends.get_mut(index)) {
                whole.push_str(&text);
                *slot = end.or(*slot);
            }
        }
        let mut usages = Vec::with_capacity(count);
        let mut choices = Vec::with_capacity(count);
        for (index, (text, end)) in texts.into_iter().zip(ends).enumerate() {
            let (reason, usage) = end.ok_or_else(ApiError::stopped)?;
            usages.push(usage);
            choices.push(json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason}));
        }
        Ok(reply(&self.envelope.whole(choices, self.prompt_tokens, &usages)))
    }

    async fn stream(mut self, frames: Frames) -> Result<(), Gone> {
        for index in 0..self.choices.len() {
            let echo = self
                .choices
                .get_mut(index)
                .map(|choice| std::mem::take(&mut choice.echo))
                .unwrap_or_default();
            if !echo.is_empty() {
                frames.data(&self.chunk(index, &echo, None)).await?;
            }
        }
        let mut usages = Vec::with_capacity(self.choices.len());
        loop {
            match frames.wait(self.next()).await? {
                Ok(Some(More { index, text, end })) => {
                    frames.data(&self.chunk(index, &text, end.map(|(reason, _)| reason))).await?;
                    usages.extend(end.map(|(_, usage)| usage));
                }
                Ok(None) if usages.len() == self.choices.len() => break,
                Ok(None) => return frames.data(&ApiError::stopped().body()).await,
                Err(error) => return frames.data(&error.body()).await,
            }
        }
        self.envelope.end(&frames, self.prompt_tokens, &usages).await
    }

    fn chunk(&self, index: usize, text: &str, reason: Option<&str>) -> Value {
        let choice = json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason});
        self.envelope.chunk(choice)
    }
}
