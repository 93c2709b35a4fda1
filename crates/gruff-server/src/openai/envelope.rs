//! What the responses of `/v1/chat/completions` and `/v1/completions` have in common.

use gruff::Usage;
use serde_json::{Value, json};

use super::StreamOptions;
use crate::answer::{timings, usage};
use crate::ids;
use crate::service::Service;
use crate::sse::{Frames, Gone};

/// A response's head, in each of its chunks the same.
pub(crate) struct Envelope {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    include_usage: bool,
}

impl Envelope {
    /// A new response; `object` is what OpenAI calls it, or a chunk of it.
    pub(crate) fn new(
        service: &Service,
        id_prefix: &str,
        object: &'static str,
        stream: Option<StreamOptions>,
    ) -> Self {
        Self {
            id: Service::new_id(id_prefix),
            object,
            created: ids::now(),
            model: service.id.clone(),
            include_usage: stream.unwrap_or_default().include_usage,
        }
    }

    /// The response as one object; `usages` are of `each` answers to one prompt after the other.
    pub(crate) fn whole(
        &self,
        choices: Vec<Value>,
        prompt_tokens: usize,
        usages: &[Usage],
        each: usize,
        reasoning_tokens: Option<usize>,
    ) -> Value {
        let mut response = self.with_choices(Value::from(choices));
        response["usage"] = usage(prompt_tokens, usages, each, reasoning_tokens);
        if let [one] = usages {
            response["timings"] = timings(one);
        }
        response
    }

    /// A chunk with a piece of one answer.
    pub(crate) fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.with_choices(Value::from(vec![choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The end of a stream: the usage, where it was asked for, and the mark.
    pub(crate) async fn end(
        &self,
        frames: &Frames,
        prompt_tokens: usize,
        usages: &[Usage],
        each: usize,
        reasoning_tokens: Option<usize>,
    ) -> Result<(), Gone> {
        if self.include_usage {
            let mut last = self.with_choices(json!([]));
            last["usage"] = usage(prompt_tokens, usages, each, reasoning_tokens);
            frames.data(&last).await?;
        }
        frames.raw("data: [DONE]\n\n".to_owned()).await
    }

    fn with_choices(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}
