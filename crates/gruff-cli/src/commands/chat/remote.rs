//! A model behind a server, as a partner in a conversation.

use std::ops::ControlFlow;

use serde_json::{Map, Value, json};

use super::answer::{self, Answer};
use super::client::Client;
use crate::commands::run::Reasoning;
use crate::conversation::{Part, Partner};

pub(super) struct Remote {
    client: Client,
    model: String,
    system: Option<String>,
    fields: Map<String, Value>,
    reasoning: Reasoning,
    messages: Vec<Value>,
    /// Tokens of the last prompt and answer, where the server told.
    tokens: Option<u64>,
}

impl Remote {
    pub(super) fn new(
        client: Client,
        model: String,
        system: Option<String>,
        fields: Map<String, Value>,
        reasoning: Reasoning,
    ) -> Self {
        let mut remote =
            Self { client, model, system, fields, reasoning, messages: Vec::new(), tokens: None };
        remote.restart(None);
        remote
    }

    /// Answers the last message.
    pub(super) fn ask(&mut self, on_part: &mut dyn FnMut(Part) -> ControlFlow<()>) -> anyhow::Result<Answer> {
        let answer = answer::ask(&self.client, self.body(), on_part)?;
        self.tokens = answer.total().or(self.tokens);
        // Reasoning stays out: many servers refuse it in a history, and templates drop it from there.
        self.messages.push(json!({"role": "assistant", "content": answer.text}));
        Ok(answer)
    }

    fn body(&self) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": self.messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(effort) = match self.reasoning {
            Reasoning::On => Some("medium"),
            Reasoning::Off => Some("none"),
            Reasoning::Auto => None,
        } {
            body["reasoning_effort"] = Value::from(effort);
        }
        for (name, value) in &self.fields {
            body[name] = value.clone();
        }
        body
    }
}

impl Partner for Remote {
    fn name(&self) -> &str {
        &self.model
    }

    fn info(&self) -> String {
        let models = match self.client.models() {
            Ok(models) => models.join(", "),
            Err(error) => format!("{error:#}"),
        };
        let tokens =
            self.tokens.map_or_else(|| "tokens unknown".to_owned(), |tokens| format!("{tokens} tokens"));
        format!(
            "{} at {}\nmodels there: {models}\n{} messages, {tokens}",
            self.model,
            self.client.address(),
            self.messages.len(),
        )
    }

    fn restart(&mut self, system: Option<Option<String>>) {
        if let Some(system) = system {
            self.system = system;
        }
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
        self.tokens = None;
    }

    fn set_reasoning(&mut self, reasoning: Reasoning) -> &'static str {
        self.reasoning = reasoning;
        match reasoning {
            Reasoning::Auto => "Reasoning is as the server has it.\n",
            Reasoning::On | Reasoning::Off => "The server is asked for that, from the next answer on.\n",
        }
    }

    fn push(&mut self, message: String) {
        self.messages.push(json!({"role": "user", "content": message}));
    }

    fn pop(&mut self) {
        self.messages.pop();
    }

    fn retry(&mut self) -> bool {
        if self.messages.last().is_some_and(|message| message["role"] == "assistant") {
            self.messages.pop();
        }
        if self.messages.last().is_none_or(|message| message["role"] != "user") {
            return false;
        }
        if let Some(seed) = self.fields.get("seed").and_then(Value::as_i64) {
            self.fields.insert("seed".to_owned(), Value::from(seed.wrapping_add(1)));
        }
        true
    }

    fn answer(&mut self, on_part: &mut dyn FnMut(Part) -> ControlFlow<()>) -> anyhow::Result<String> {
        Ok(self.ask(on_part)?.speed())
    }
}
