//! Answers on their way, with their prompts before them and their logprobs where asked.

use std::collections::VecDeque;

use axum::response::Response;
use gruff::floors::text::{Detokenizer, Tokenizer};
use gruff::{FinishReason, Usage};
use serde_json::{Value, json};

use crate::answer::{Generation, TextReader, ended_with, finish_reason, timings};
use crate::api_error::ApiError;
use crate::body::reply;
use crate::engine_thread::Update;
use crate::logprobs::{Lists, TokenLogprob};
use crate::openai::envelope::Envelope;
use crate::sse::{Frames, Gone};

/// A prompt and what is told of it.
pub(super) struct Prompt {
    ids: Vec<u32>,
    /// Its text, where it is to be repeated.
    echo: Option<String>,
    /// Of its tokens from the second on, where they are told of.
    logprobs: Option<Vec<TokenLogprob>>,
}

impl Prompt {
    pub(super) fn new(ids: Vec<u32>, echo: Option<String>, scored: bool) -> Self {
        Self { ids, echo, logprobs: scored.then(Vec::new) }
    }

    /// Whether all is known that precedes its answers.
    fn is_complete(&self) -> bool {
        self.logprobs.as_ref().is_none_or(|logprobs| logprobs.len() + 1 >= self.ids.len())
    }
}

/// One answer to a prompt.
pub(super) struct Choice {
    pub(super) reader: TextReader,
    /// Logprobs that have not been told.
    lists: Lists,
    /// Counts the characters of the text.
    offsets: Offsets,
    /// Sum and count of its tokens' logprobs.
    score: (f64, usize),
    /// Tokens of the answer, up to its end.
    tokens: usize,
    /// The prompt has been repeated.
    echoed: bool,
    /// A stop string has been found, or nothing is to be told of the answer.
    over: bool,
}

/// The places where tokens begin in a text, in characters.
struct Offsets {
    detokenizer: Detokenizer,
    at: usize,
}

impl Offsets {
    /// Where the token begins.
    fn next(&mut self, id: u32) -> usize {
        let at = self.at;
        self.at += self.detokenizer.push(id).chars().count();
        at
    }
}

impl Choice {
    pub(super) fn new(tokenizer: &Tokenizer, reader: TextReader) -> Self {
        let detokenizer = Detokenizer::new(tokenizer, true).continuing();
        let (lists, score) = (Lists::default(), (0.0, 0));
        let offsets = Offsets { detokenizer, at: 0 };
        Self { reader, lists, offsets, score, tokens: 0, echoed: false, over: false }
    }

    /// Tells of the prompt before anything else.
    fn echo(&mut self, prompt: &Prompt, tokenizer: &Tokenizer) -> String {
        let Some(text) = prompt.echo.as_ref().filter(|_| !self.echoed) else { return String::new() };
        self.echoed = true;
        if let Some(logprobs) = &prompt.logprobs {
            let mut offsets = Offsets { detokenizer: Detokenizer::new(tokenizer, true), at: 0 };
            let mut ids = prompt.ids.iter();
            if let Some(first) = ids.next() {
                self.lists.first(tokenizer, *first, offsets.next(*first));
            }
            for (id, logprob) in ids.zip(logprobs) {
                self.lists.push(logprob, offsets.next(*id));
            }
        }
        self.offsets.at += text.chars().count();
        text.clone()
    }
}

pub(super) struct Run {
    pub(super) envelope: Envelope,
    pub(super) generation: Generation,
    pub(super) tokenizer: Tokenizer,
    pub(super) prompts: Vec<Prompt>,
    /// Of each prompt so many, one prompt after the other.
    pub(super) choices: Vec<Choice>,
    /// Answers that are generated to each prompt.
    pub(super) each: usize,
    /// Answers that are given to each prompt: the best.
    pub(super) n: usize,
    /// Whether logprobs are told.
    pub(super) tells: bool,
    /// Whether answers are wanted at all, and not the prompts alone.
    pub(super) answers: bool,
    /// Updates that wait for their prompt.
    pub(super) waiting: VecDeque<(usize, Update)>,
}

/// More of an answer, or its end.
struct More {
    index: usize,
    text: String,
    logprobs: Value,
    end: Option<(&'static str, Usage)>,
}

/// An answer, added up.
#[derive(Default)]
struct Whole {
    text: String,
    logprobs: Value,
    end: Option<(&'static str, Usage)>,
}

impl Run {
    /// The next update of an answer whose prompt is complete.
    async fn update(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        loop {
            let ready = |index: usize, prompts: &[Prompt]| {
                prompts.get(index / self.each).is_none_or(Prompt::is_complete)
            };
            if let Some(at) = self.waiting.iter().position(|(index, _)| ready(*index, &self.prompts)) {
                return Ok(self.waiting.remove(at));
            }
            let Some((index, update)) = self.generation.next().await? else { return Ok(None) };
            match update {
                Update::Prompt(details) => {
                    let Some(prompt) = self.prompts.get_mut(index / self.each) else { continue };
                    let Some(logprobs) = &mut prompt.logprobs else { continue };
                    let known = logprobs.len() + 1;
                    let ids = prompt.ids.get(known..).unwrap_or_default();
                    logprobs.extend(
                        ids.iter()
                            .zip(&details)
                            .map(|(id, found)| TokenLogprob::new(&self.tokenizer, *id, found)),
                    );
                }
                update if ready(index, &self.prompts) => return Ok(Some((index, update))),
                update => self.waiting.push_back((index, update)),
            }
        }
    }

    async fn next(&mut self) -> Result<Option<More>, ApiError> {
        loop {
            let Some((index, update)) = self.update().await? else { return Ok(None) };
            let prompt = self.prompts.get(index / self.each);
            let (Some(choice), Some(prompt)) = (self.choices.get_mut(index), prompt) else { continue };
            let mut text = choice.echo(prompt, &self.tokenizer);
            let mut end = None;
            match update {
                Update::Token(id, details) if self.answers && !choice.over => {
                    choice.tokens += 1;
                    if let Some(details) = details {
                        let logprob = TokenLogprob::new(&self.tokenizer, id, &details);
                        choice.score.0 += f64::from(details.logprob.unwrap_or_default());
                        choice.score.1 += 1;
                        if self.tells {
                            let offset = choice.offsets.next(id);
                            choice.lists.push(&logprob, offset);
                        }
                    }
                    text += &choice.reader.token(id).unwrap_or_default();
                    if choice.reader.stopped().is_some() {
                        choice.over = true;
                        self.generation.cancel(index);
                    }
                }
                Update::Token(..) | Update::Prompt(_) => {}
                Update::Finished(reason, usage) => {
                    text += &choice.reader.finish();
                    end = Some(match (self.answers, choice.over) {
                        (false, _) => ("length", ended_with(0, usage)),
                        // Whatever else was computed until the engine heard of it.
                        (true, true) => {
                            (finish_reason(FinishReason::StopString), ended_with(choice.tokens, usage))
                        }
                        (true, false) => (finish_reason(reason), usage),
                    });
                }
                Update::Failed(error) => return Err(error),
            }
            if text.is_empty() && end.is_none() {
                continue;
            }
            if let Some((_, usage)) = &end {
                self.generation.ended(index, usage);
            }
            let logprobs = if self.tells { choice.lists.take() } else { Value::Null };
            return Ok(Some(More { index, text, logprobs, end }));
        }
    }

    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let mut answers: Vec<Whole> = self.choices.iter().map(|_| Whole::default()).collect();
        while let Some(More { index, text, logprobs, end }) = self.next().await? {
            if let Some(whole) = answers.get_mut(index) {
                whole.text.push_str(&text);
                join(&mut whole.logprobs, logprobs);
                whole.end = end.or(whole.end);
            }
        }
        let ends: Option<Vec<_>> = answers.iter().map(|answer| answer.end).collect();
        let usages: Vec<Usage> =
            ends.ok_or_else(ApiError::stopped)?.iter().map(|(_, usage)| *usage).collect();
        let mut choices = Vec::with_capacity(self.prompts.len() * self.n);
        for kept in self.best() {
            let Some(answer) = answers.get_mut(kept) else { continue };
            let Whole { text, logprobs, end } = std::mem::take(answer);
            let reason = end.map(|(reason, _)| reason);
            let index = choices.len();
            choices
                .push(json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}));
        }
        Ok(reply(&self.envelope.whole(choices, self.prompt_tokens(), &usages, self.each, None)))
    }

    /// The answers to give: of each prompt's those with the highest logprob per token, best first, where there are more
    /// than are wanted.
    fn best(&self) -> Vec<usize> {
        let score = |index: usize| {
            let (sum, count) = self.choices.get(index).map_or((0.0, 0), |choice| choice.score);
            if count == 0 { f64::NEG_INFINITY } else { sum / count as f64 }
        };
        let mut best = Vec::with_capacity(self.prompts.len() * self.n);
        for prompt in 0..self.prompts.len() {
            let mut own: Vec<usize> = (prompt * self.each..(prompt + 1) * self.each).collect();
            if self.each > self.n {
                own.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
            }
            best.extend(own.into_iter().take(self.n));
        }
        best
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).sum()
    }

    pub(super) async fn stream(mut self, frames: Frames) -> Result<(), Gone> {
        let mut usages: Vec<Option<Usage>> = vec![None; self.choices.len()];
        loop {
            match frames.wait(self.next()).await? {
                Ok(Some(More { index, text, logprobs, end })) => {
                    let reason = end.map(|(reason, _)| reason);
                    let choice =
                        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason});
                    let mut chunk = self.envelope.chunk(choice);
                    if let (Some((_, usage)), 1) = (&end, self.choices.len()) {
                        chunk["timings"] = timings(usage);
                    }
                    frames.data(&chunk).await?;
                    if let (Some(place), Some((_, usage))) = (usages.get_mut(index), end) {
                        *place = Some(usage);
                    }
                }
                Ok(None) => break,
                Err(error) => return frames.data(&error.body()).await,
            }
        }
        let usages: Option<Vec<Usage>> = usages.into_iter().collect();
        let Some(usages) = usages else { return frames.data(&ApiError::stopped().body()).await };
        self.envelope.end(&frames, self.prompt_tokens(), &usages, self.each, None).await
    }
}

/// Appends lists of logprobs to those so far.
fn join(whole: &mut Value, more: Value) {
    match (whole, more) {
        (Value::Object(whole), Value::Object(more)) => {
            for (name, more) in more {
                if let (Some(Value::Array(whole)), Value::Array(more)) = (whole.get_mut(&name), more) {
                    whole.extend(more);
                }
            }
        }
        (whole, more) if !more.is_null() => *whole = more,
        _ => {}
    }
}
