//! One answer of the server, from the request to its last word.

use std::io::BufReader;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::address::Address;
use super::client::Client;
use super::stream::{Event, Events, events};
use crate::conversation::Part;

/// How long a server may be silent before Ctrl-C is looked for.
const MOMENT: Duration = Duration::from_millis(50);
/// Events that may wait to be shown.
const WAITING: usize = 256;

/// What a server answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) reasoning: String,
    finish: Option<String>,
    usage: Option<Value>,
    timings: Option<Value>,
    stopped: bool,
    /// From the request to the first word, and from there to the end.
    first: Option<Duration>,
    rest: Duration,
}

/// Asks, and hands out what comes. Reading is done beside, so that a silent server can be left.
pub(super) fn ask(
    client: &Client,
    body: Value,
    on_part: &mut dyn FnMut(Part) -> ControlFlow<()>,
) -> anyhow::Result<Answer> {
    let (sender, receiver) = sync_channel(WAITING);
    let reader = client.clone();
    std::thread::Builder::new()
        .name("answer".to_owned())
        .spawn(move || {
            if let Err(error) = read(&reader, &body, &sender) {
                // Who has left does not hear of it.
                let _ = sender.send(Err(error));
            }
        })
        .context("no thread can be started")?;
    let mut answer = Answer::default();
    answer.take(&receiver, on_part, client.address())?;
    Ok(answer)
}

/// Sends everything that the server says; ends when nobody listens.
fn read(client: &Client, body: &Value, sender: &SyncSender<anyhow::Result<Event>>) -> anyhow::Result<()> {
    let response = match client.chat(body) {
        // A server of old does not know this field, which only asks for the usage.
        Err(error) if error.to_string().contains("stream_options") => {
            let mut plain = body.clone();
            if let Some(fields) = plain.as_object_mut() {
                fields.remove("stream_options");
            }
            client.chat(&plain)?
        }
        response => response?,
    };
    let kind =
        response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.trim_start().to_ascii_lowercase().starts_with("application/json") {
        // The answer at once: the server does not stream.
        let whole = client.json(response)?;
        for event in events(&whole) {
            if sender.send(Ok(event)).is_err() {
                return Ok(());
            }
        }
        let _ = sender.send(Ok(Event::End { marked: true }));
        return Ok(());
    }
    let mut events = Events::new(BufReader::new(response.into_body().into_reader()));
    loop {
        let event = events.next().with_context(|| client.address().to_string())?;
        let is_end = matches!(event, Event::End { .. } | Event::Failed(_));
        if sender.send(Ok(event)).is_err() || is_end {
            return Ok(());
        }
    }
}

impl Answer {
    fn take(
        &mut self,
        events: &Receiver<anyhow::Result<Event>>,
        on_part: &mut dyn FnMut(Part) -> ControlFlow<()>,
        server: &Address,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let event = match events.recv_timeout(MOMENT) {
                Ok(event) => event?,
                Err(RecvTimeoutError::Timeout) => {
                    if on_part(Part::Waiting).is_break() {
                        self.stopped = true;
                        return Ok(());
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => bail!("{server}: the answer was lost"),
            };
            let part = match &event {
                Event::Reasoning(text) => {
                    self.reasoning.push_str(text);
                    Part::Reasoning(text)
                }
                Event::Text(text) => {
                    self.text.push_str(text);
                    Part::Text(text)
                }
                Event::Finish(reason) => {
                    self.finish = Some(reason.clone());
                    continue;
                }
                Event::Usage(usage) => {
                    self.usage = Some(usage.clone());
                    continue;
                }
                Event::Timings(timings) => {
                    self.timings = Some(timings.clone());
                    continue;
                }
                Event::Failed(said) => bail!("{server}: {said}"),
                Event::End { marked } => return self.end(*marked, server),
            };
            let now = began.elapsed();
            self.rest = now - *self.first.get_or_insert(now);
            if on_part(part).is_break() {
                self.stopped = true;
                return Ok(());
            }
        }
    }

    /// Whether what there is is an answer.
    fn end(&self, marked: bool, server: &Address) -> anyhow::Result<()> {
        if marked || self.finish.is_some() {
            return Ok(());
        }
        if self.first.is_none() {
            bail!("{server}: the server ended without an answer; is this OpenAI's API?");
        }
        bail!("{server}: the connection ended before the answer did");
    }

    fn tokens(&self, name: &str) -> Option<u64> {
        self.usage.as_ref()?.get(name)?.as_u64()
    }

    /// Tokens a second: as the server measured, or as they arrived.
    fn per_second(&self) -> Option<f64> {
        let told = self.timings.as_ref().and_then(|timings| timings.get("predicted_per_second")?.as_f64());
        told.filter(|speed| speed.is_finite() && *speed > 0.0).or_else(|| {
            // The first one's time is the prompt's.
            let tokens = self.tokens("completion_tokens")?.checked_sub(1).filter(|tokens| *tokens > 0)?;
            let seconds = self.rest.as_secs_f64();
            (seconds > 1e-3).then(|| tokens as f64 / seconds)
        })
    }

    /// Speed, in one line.
    pub(super) fn speed(&self) -> String {
        let mut parts = Vec::new();
        if let Some(tokens) = self.tokens("completion_tokens") {
            parts.push(if tokens == 1 { "1 token".to_owned() } else { format!("{tokens} tokens") });
        }
        parts.extend(self.per_second().map(|speed| format!("{speed:.1} tok/s")));
        parts.extend(self.first.map(|first| format!("first after {:.2} s", first.as_secs_f64())));
        if let Some(prompt) = self.tokens("prompt_tokens") {
            let details = self.usage.as_ref().and_then(|usage| usage.get("prompt_tokens_details"));
            let cached = details.and_then(|details| details.get("cached_tokens")?.as_u64()).unwrap_or(0);
            let cached = if cached > 0 { format!(" ({cached} cached)") } else { String::new() };
            parts.push(format!("prompt {prompt} token{}{cached}", if prompt == 1 { "" } else { "s" }));
        }
        match (self.stopped, self.finish.as_deref()) {
            (true, _) => parts.push("stopped".to_owned()),
            (_, Some("length")) => parts.push("ended by the longest answer allowed".to_owned()),
            (_, Some("stop") | None) => {}
            (_, Some(reason)) => parts.push(format!("ended by {reason}")),
        }
        format!("[{}]", parts.join(", "))
    }

    /// Tokens of the conversation so far, where the server tells.
    pub(super) fn total(&self) -> Option<u64> {
        Some(self.tokens("prompt_tokens")? + self.tokens("completion_tokens")?)
    }

    pub(super) fn as_json(&self, model: &str) -> Value {
        let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        json!({
            "model": model,
            "text": self.text,
            "reasoning": (!self.reasoning.is_empty()).then_some(&self.reasoning),
            "finish_reason": self.finish,
            "usage": self.usage,
            "timings": self.timings,
            "first_token_s": self.first.map(seconds),
            "tokens_per_second": self.per_second(),
        })
    }
}
