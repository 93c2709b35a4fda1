//! Logarithms of probabilities as OpenAI's API writes them, by the model's own distribution: before penalties, biases,
//! grammars, temperature and cuts.

use gruff::floors::engine::TokenDetails;
use gruff::floors::text::Tokenizer;
use serde_json::{Map, Value, json};

use crate::api_error::ApiError;
use crate::limits::MAX_LOGPROBS;

/// What OpenAI's API says of a token that is all but impossible, JSON having no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// A token and how likely the model found it.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprob {
    token: Likely,
    /// The most likely tokens in its place.
    top: Vec<Likely>,
}

#[derive(Clone, Debug)]
struct Likely {
    bytes: Vec<u8>,
    logprob: f32,
}

impl Likely {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Self {
        Self { bytes: tokenizer.token_to_bytes(id), logprob: logprob.max(IMPOSSIBLE) }
    }

    /// Text, or `prefix` and the bytes in hexadecimal where they are no text by themselves.
    fn text(&self, prefix: &str) -> String {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => {
                let escaped: String = self.bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                format!("{prefix}{escaped}")
            }
        }
    }

    fn chat(&self) -> Value {
        json!({"token": self.text(""), "logprob": self.logprob, "bytes": self.bytes})
    }
}

impl TokenLogprob {
    pub(crate) fn new(tokenizer: &Tokenizer, id: u32, details: &TokenDetails) -> Self {
        let token = Likely::new(tokenizer, id, details.logprob.unwrap_or(IMPOSSIBLE));
        let top = details.top.iter().map(|(id, logprob)| Likely::new(tokenizer, *id, *logprob)).collect();
        Self { token, top }
    }

    /// The token's text.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.token.bytes
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self { token: Likely { bytes: text.as_bytes().to_vec(), logprob: -1.0 }, top: Vec::new() }
    }

    /// The form of chat completions and responses.
    pub(crate) fn chat(&self) -> Value {
        let mut token = self.token.chat();
        token["top_logprobs"] = self.top.iter().map(Likely::chat).collect();
        token
    }
}

/// `logprobs` of a choice of chat completions.
pub(crate) fn content(logprobs: &[TokenLogprob]) -> Value {
    let content: Vec<Value> = logprobs.iter().map(TokenLogprob::chat).collect();
    json!({"content": content, "refusal": null})
}

/// `logprobs` of a choice of completions: four lists of the same length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl Lists {
    /// A token that nothing leads to: the first of a prompt.
    pub(crate) fn first(&mut self, tokenizer: &Tokenizer, id: u32, offset: usize) {
        self.tokens.push(Value::from(Likely::new(tokenizer, id, 0.0).text("bytes:")));
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
        self.text_offset.push(Value::from(offset));
    }

    /// The next token, whose text begins behind so many characters.
    pub(crate) fn push(&mut self, token: &TokenLogprob, offset: usize) {
        let text = token.token.text("bytes:");
        let mut top: Map<String, Value> = Map::new();
        for likely in &token.top {
            // Of tokens with the same text the likeliest comes first.
            top.entry(likely.text("bytes:")).or_insert_with(|| Value::from(likely.logprob));
        }
        top.entry(text.clone()).or_insert_with(|| Value::from(token.token.logprob));
        self.tokens.push(Value::from(text));
        self.token_logprobs.push(Value::from(token.token.logprob));
        self.top_logprobs.push(Value::from(top));
        self.text_offset.push(Value::from(offset));
    }

    /// What has been pushed since the last time.
    pub(crate) fn take(&mut self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = std::mem::take(self);
        json!({"tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top_logprobs,
               "text_offset": text_offset})
    }
}

/// Checks how many of the most likely tokens are asked for in field `param`.
pub(crate) fn check(param: &str, count: Option<usize>) -> Result<(), ApiError> {
    match count {
        Some(count) if count > MAX_LOGPROBS => Err(ApiError::field(
            param,
            format!("`{param}` is {count}; from 0 to {MAX_LOGPROBS} are possible"),
        )),
        _ => Ok(()),
    }
}
