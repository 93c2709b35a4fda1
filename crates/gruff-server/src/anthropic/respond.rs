//! Answers as Anthropic's API writes them: blocks of thinking, text and calls, in the order in which they come.

use axum::response::Response;
use gruff::Usage;
use gruff::floors::text::chat::OutputEvent;
use serde_json::{Value, json};

use super::error_body;
use crate::api_error::ApiError;
use crate::body::reply;
use crate::chat::{ChatEvent, ChatRun, Finish};
use crate::ids;
use crate::sse::{Frames, Gone};

/// An answer in progress.
pub(super) struct Answer {
    id: String,
    model: String,
    run: ChatRun,
    blocks: Blocks,
}

/// The blocks so far; the last one may be open.
#[derive(Default)]
struct Blocks {
    all: Vec<Value>,
    /// The arguments of an open call, as JSON so far.
    arguments: String,
    open: bool,
}

impl Blocks {
    /// Takes an event in; gives what a stream tells of it.
    fn push(&mut self, event: &OutputEvent) -> Vec<(&'static str, Value)> {
        let mut events = Vec::new();
        let delta = match event {
            OutputEvent::Reasoning(text) => {
                self.continue_with(&mut events, json!({"type": "thinking", "thinking": "", "signature": ""}));
                self.append("thinking", text);
                json!({"type": "thinking_delta", "thinking": text})
            }
            OutputEvent::Content(text) => {
                self.continue_with(&mut events, json!({"type": "text", "text": ""}));
                self.append("text", text);
                json!({"type": "text_delta", "text": text})
            }
            OutputEvent::CallStart { id, name, .. } => {
                self.close(&mut events);
                let id = if id.is_empty() { ids::id("toolu_") } else { id.clone() };
                self.begin(&mut events, json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
                return events;
            }
            OutputEvent::CallArguments { text, .. } => {
                self.arguments.push_str(text);
                json!({"type": "input_json_delta", "partial_json": text})
            }
            OutputEvent::CallEnd { .. } => {
                self.close(&mut events);
                return events;
            }
        };
        let index = self.all.len().saturating_sub(1);
        events.push((
            "content_block_delta",
            json!({"type": "content_block_delta", "index": index, "delta": delta}),
        ));
        events
    }

    /// Goes on with the open block if it is of the same kind, else begins that one.
    fn continue_with(&mut self, events: &mut Vec<(&'static str, Value)>, block: Value) {
        if self.open && self.all.last().is_some_and(|last| last["type"] == block["type"]) {
            return;
        }
        self.close(events);
        self.begin(events, block);
    }

    fn begin(&mut self, events: &mut Vec<(&'static str, Value)>, block: Value) {
        let index = self.all.len();
        events.push((
            "content_block_start",
            json!({"type": "content_block_start", "index": index, "content_block": block}),
        ));
        self.all.push(block);
        self.open = true;
    }

    fn append(&mut self, field: &str, text: &str) {
        if let Some(Value::String(whole)) = self.all.last_mut().and_then(|block| block.get_mut(field)) {
            whole.push_str(text);
        }
    }

    fn close(&mut self, events: &mut Vec<(&'static str, Value)>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let arguments = std::mem::take(&mut self.arguments);
        if let Some(input) = self.all.last_mut().and_then(|block| block.get_mut("input")) {
            *input = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
        }
        let index = self.all.len().saturating_sub(1);
        events.push(("content_block_stop", json!({"type": "content_block_stop", "index": index})));
    }
}

fn stop_reason(finish: &Finish) -> &'static str {
    match (finish.reason, &finish.stop) {
        ("tool_calls", _) => "tool_use",
        ("length", _) => "max_tokens",
        (_, Some(_)) => "stop_sequence",
        _ => "end_turn",
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.new_tokens,
    })
}

impl Answer {
    pub(super) fn new(id: String, model: String, run: ChatRun) -> Self {
        Self { id, model, run, blocks: Blocks::default() }
    }

    fn message(&self, content: &[Value], finish: Option<&Finish>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": finish.map(stop_reason),
            "stop_sequence": finish.and_then(|finish| finish.stop.as_deref()),
            "usage": usage,
        })
    }

    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let mut finish = None;
        while let Some((_, event)) = self.run.next().await? {
            match event {
                ChatEvent::Output(event, _) => drop(self.blocks.push(&event)),
                ChatEvent::Finished(finished) => finish = Some(finished),
            }
        }
        let finish = finish.ok_or_else(ApiError::stopped)?;
        self.blocks.close(&mut Vec::new());
        Ok(reply(&self.message(&self.blocks.all, Some(&finish), usage(&finish.usage))))
    }

    pub(super) async fn stream(mut self, frames: Frames) -> Result<(), Gone> {
        let begun = json!({"input_tokens": self.run.prompt_tokens, "output_tokens": 0});
        let start = json!({"type": "message_start", "message": self.message(&[], None, begun)});
        frames.event("message_start", &start).await?;
        let finish = loop {
            let mut events = Vec::new();
            match frames.wait(self.run.next()).await? {
                Ok(Some((_, ChatEvent::Output(event, _)))) => events = self.blocks.push(&event),
                Ok(Some((_, ChatEvent::Finished(finish)))) => {
                    self.blocks.close(&mut events);
                    for (name, event) in &events {
                        frames.event(name, event).await?;
                    }
                    break finish;
                }
                Ok(None) => return frames.event("error", &error_body(&ApiError::stopped())).await,
                Err(error) => return frames.event("error", &error_body(&error)).await,
            }
            for (name, event) in &events {
                frames.event(name, event).await?;
            }
        };
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(&finish), "stop_sequence": finish.stop},
            "usage": usage(&finish.usage),
        });
        frames.event("message_delta", &delta).await?;
        frames.event("message_stop", &json!({"type": "message_stop"})).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_blocks_in_their_order() {
        let mut blocks = Blocks::default();
        let call = |index| OutputEvent::CallStart { index, id: String::new(), name: "f".to_owned() };
        let events = [
            OutputEvent::Reasoning("I".to_owned()),
            OutputEvent::Reasoning(" think".to_owned()),
            OutputEvent::Content("A".to_owned()),
            call(0),
            OutputEvent::CallArguments { index: 0, text: "{\"a\"".to_owned() },
            OutputEvent::CallArguments { index: 0, text: ": 1}".to_owned() },
            OutputEvent::CallEnd { index: 0 },
            OutputEvent::Content("B".to_owned()),
        ];
        let mut told: Vec<String> = Vec::new();
        for event in &events {
            told.extend(
                blocks.push(event).into_iter().map(|(name, event)| format!("{name} {}", event["index"])),
            );
        }
        let mut last = Vec::new();
        blocks.close(&mut last);
        assert_eq!(last[0].0, "content_block_stop");
        let expected = [
            "content_block_start 0",
            "content_block_delta 0",
            "content_block_delta 0",
            "content_block_stop 0",
            "content_block_start 1",
            "content_block_delta 1",
            "content_block_stop 1",
            "content_block_start 2",
            "content_block_delta 2",
            "content_block_delta 2",
            "content_block_stop 2",
            "content_block_start 3",
            "content_block_delta 3",
        ];
        assert_eq!(told, expected);
        let kinds: Vec<_> = blocks.all.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use", "text"]);
        assert_eq!(blocks.all[2]["input"], json!({"a": 1}));
        assert_eq!(blocks.all[0]["thinking"], "I think");
    }
}
