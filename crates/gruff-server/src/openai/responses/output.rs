//! Answers as items: reasoning, messages, calls, in the order in which they come.

use std::sync::Arc;

use axum::response::Response;
use gruff::Message;
use gruff::floors::text::chat::{OutputEvent, ParsedOutput};
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::body::reply;
use crate::chat::{ChatEvent, ChatRun, Finish};
use crate::ids;
use crate::logprobs::TokenLogprob;
use crate::openai::chat::call_id;
use crate::service::Service;
use crate::sse::{Frames, Gone};

/// An answer in progress.
pub(super) struct Answer {
    service: Arc<Service>,
    id: String,
    created: u64,
    echo: Map<String, Value>,
    run: ChatRun,
    items: Items,
    parsed: ParsedOutput,
    /// The conversation that the answer continues, where it is to be kept.
    history: Option<Vec<Message>>,
}

/// The items so far; the last one may be open.
#[derive(Default)]
struct Items {
    all: Vec<Value>,
    open: bool,
}

/// What a stream tells: an event's name and its fields.
type Told = Vec<(&'static str, Value)>;

impl Items {
    /// Takes an event in; gives what a stream tells of it.
    fn push(&mut self, event: &OutputEvent, logprobs: &[TokenLogprob]) -> Told {
        let logprobs: Vec<Value> = logprobs.iter().map(TokenLogprob::chat).collect();
        let mut told = Vec::new();
        match event {
            OutputEvent::Reasoning(text) => {
                let part = json!({"type": "reasoning_text", "text": ""});
                self.text(
                    "reasoning",
                    || json!({"id": ids::id("rs_"), "type": "reasoning", "summary": [], "content": []}),
                    &part,
                    (text, logprobs),
                    &mut told,
                );
            }
            OutputEvent::Content(text) => {
                let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
                let item = || json!({"id": ids::id("msg_"), "type": "message", "role": "assistant", "status": "in_progress", "content": []});
                self.text("message", item, &part, (text, logprobs), &mut told);
            }
            OutputEvent::CallStart { id, name, .. } => {
                self.close(&mut told);
                let item = json!({
                    "id": ids::id("fc_"), "type": "function_call", "status": "in_progress", "call_id": call_id(id), "name": name,
                    "arguments": "",
                });
                self.begin(item, &mut told);
            }
            OutputEvent::CallArguments { text, .. } => {
                append(self.all.last_mut().and_then(|item| item.get_mut("arguments")), text);
                told.push(("response.function_call_arguments.delta", self.place(json!({"delta": text}))));
            }
            OutputEvent::CallEnd { .. } => self.close(&mut told),
        }
        told
    }

    /// More text of an item of that kind.
    fn text(
        &mut self,
        kind: &str,
        item: impl FnOnce() -> Value,
        part: &Value,
        (text, logprobs): (&str, Vec<Value>),
        told: &mut Told,
    ) {
        if !self.open || self.all.last().is_none_or(|last| last["type"] != kind) {
            self.close(told);
            self.begin(item(), told);
            told.push(("response.content_part.added", self.place(json!({"content_index": 0, "part": part}))));
            if let Some(Value::Array(parts)) = self.all.last_mut().and_then(|item| item.get_mut("content")) {
                parts.push(part.clone());
            }
        }
        append(self.all.last_mut().and_then(|item| item.pointer_mut("/content/0/text")), text);
        let (name, delta) = match kind {
            "reasoning" => ("response.reasoning_text.delta", json!({"content_index": 0, "delta": text})),
            _ => {
                let delta = json!({"content_index": 0, "delta": text, "logprobs": logprobs});
                ("response.output_text.delta", delta)
            }
        };
        let whole = self.all.last_mut().and_then(|item| item.pointer_mut("/content/0/logprobs"));
        if let Some(Value::Array(whole)) = whole {
            whole.extend(logprobs);
        }
        told.push((name, self.place(delta)));
    }

    fn begin(&mut self, item: Value, told: &mut Told) {
        let index = self.all.len();
        told.push(("response.output_item.added", json!({"output_index": index, "item": item})));
        self.all.push(item);
        self.open = true;
    }

    /// Fields with the place of the last item.
    fn place(&self, mut fields: Value) -> Value {
        fields["output_index"] = Value::from(self.all.len().saturating_sub(1));
        fields["item_id"] = self.all.last().map(|item| item["id"].clone()).unwrap_or_default();
        fields
    }

    /// Completes the open item.
    fn close(&mut self, told: &mut Told) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Some(item) = self.all.last_mut() else { return };
        if let Some(status) = item.get_mut("status") {
            *status = Value::from("completed");
        }
        let item = item.clone();
        if item["type"] == "function_call" {
            let fields = json!({"arguments": item["arguments"], "name": item["name"]});
            told.push(("response.function_call_arguments.done", self.place(fields)));
        } else {
            let part = &item["content"][0];
            let (name, mut fields) = match item["type"] == "reasoning" {
                true => ("response.reasoning_text.done", json!({"content_index": 0, "text": part["text"]})),
                false => (
                    "response.output_text.done",
                    json!({"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]}),
                ),
            };
            told.push((name, self.place(fields.take())));
            told.push(("response.content_part.done", self.place(json!({"content_index": 0, "part": part}))));
        }
        let index = self.all.len().saturating_sub(1);
        told.push(("response.output_item.done", json!({"output_index": index, "item": item})));
    }
}

fn append(text: Option<&mut Value>, more: &str) {
    if let Some(Value::String(text)) = text {
        text.push_str(more);
    }
}

impl Answer {
    pub(super) fn new(
        service: Arc<Service>,
        run: ChatRun,
        echo: Map<String, Value>,
        history: Option<Vec<Message>>,
    ) -> Self {
        Self {
            service,
            id: Service::new_id("resp_"),
            created: ids::now(),
            echo,
            run,
            items: Items::default(),
            parsed: ParsedOutput::default(),
            history,
        }
    }

    /// The response's object, as far as it has come.
    fn response(&self, finish: Option<&Finish>) -> Value {
        let (status, incomplete) = match finish {
            None => ("in_progress", Value::Null),
            Some(finish) if finish.reason == "length" => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            Some(_) => ("completed", Value::Null),
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.service.id,
            "output": self.items.all,
            "usage": null,
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.echo.clone());
        }
        if let Some(finish) = finish {
            let usage = &finish.usage;
            response["usage"] = json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.new_tokens,
                "output_tokens_details": {"reasoning_tokens": finish.reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.new_tokens,
            });
        }
        response
    }

    fn take(&mut self, event: OutputEvent, logprobs: &[TokenLogprob]) -> Told {
        let told = self.items.push(&event, logprobs);
        self.parsed.push(event);
        told
    }

    /// Keeps the conversation for a request that continues it.
    fn keep(&mut self) {
        let Some(mut messages) = self.history.take() else { return };
        // The ids that the client knows are those of the items.
        let given = self.items.all.iter().filter_map(|item| item["call_id"].as_str());
        for (call, id) in self.parsed.calls.iter_mut().zip(given) {
            call.id = id.to_owned();
        }
        messages.push(self.parsed.message());
        self.service.responses.put(self.id.clone(), messages);
    }

    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let mut finish = None;
        while let Some((_, event)) = self.run.next().await? {
            match event {
                ChatEvent::Output(event, logprobs) => drop(self.take(event, &logprobs)),
                ChatEvent::Finished(finished) => finish = Some(finished),
            }
        }
        let finish = finish.ok_or_else(ApiError::stopped)?;
        self.items.close(&mut Vec::new());
        self.keep();
        Ok(reply(&self.response(Some(&finish))))
    }

    pub(super) async fn stream(mut self, frames: Frames) -> Result<(), Gone> {
        let mut numbered = Numbered { frames, next: 0 };
        for name in ["response.created", "response.in_progress"] {
            numbered.send(name, json!({"response": self.response(None)})).await?;
        }
        loop {
            match numbered.frames.wait(self.run.next()).await? {
                Ok(Some((_, ChatEvent::Output(event, logprobs)))) => {
                    numbered.send_all(self.take(event, &logprobs)).await?;
                }
                Ok(Some((_, ChatEvent::Finished(finish)))) => {
                    let mut told = Vec::new();
                    self.items.close(&mut told);
                    self.keep();
                    numbered.send_all(told).await?;
                    let name =
                        if finish.reason == "length" { "response.incomplete" } else { "response.completed" };
                    return numbered.send(name, json!({"response": self.response(Some(&finish))})).await;
                }
                Ok(None) => return numbered.error(&ApiError::stopped()).await,
                Err(error) => return numbered.error(&error).await,
            }
        }
    }
}

/// Events with their numbers.
struct Numbered {
    frames: Frames,
    next: u64,
}

impl Numbered {
    async fn send(&mut self, name: &str, mut fields: Value) -> Result<(), Gone> {
        fields["type"] = Value::from(name);
        fields["sequence_number"] = Value::from(self.next);
        self.next += 1;
        self.frames.event(name, &fields).await
    }

    async fn send_all(&mut self, told: Told) -> Result<(), Gone> {
        for (name, fields) in told {
            self.send(name, fields).await?;
        }
        Ok(())
    }

    async fn error(&mut self, error: &ApiError) -> Result<(), Gone> {
        let fields = json!({"code": error.code, "message": error.message, "param": error.param});
        self.send("error", fields).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_items_in_their_order() {
        let mut items = Items::default();
        let events = [
            OutputEvent::Reasoning("I think".to_owned()),
            OutputEvent::Content("A".to_owned()),
            OutputEvent::Content("B".to_owned()),
            OutputEvent::CallStart { index: 0, id: "c".to_owned(), name: "f".to_owned() },
            OutputEvent::CallArguments { index: 0, text: "{\"a\":".to_owned() },
            OutputEvent::CallArguments { index: 0, text: "1}".to_owned() },
            OutputEvent::CallEnd { index: 0 },
        ];
        let told: Told = events.iter().flat_map(|event| items.push(event, &[])).collect();
        let names: Vec<_> = told.iter().map(|(name, _)| name.trim_start_matches("response.")).collect();
        let expected = [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ];
        assert_eq!(names, expected);
        assert_eq!(items.all[1]["content"][0]["text"], "AB");
        assert_eq!(
            (&items.all[1]["status"], &items.all[2]["arguments"]),
            (&json!("completed"), &json!("{\"a\":1}"))
        );
        assert!(told.iter().all(|(_, fields)| fields["output_index"].is_u64()));
    }
}
