//! What is asked, and what comes back.

use std::time::Duration;

use crate::SamplingParams;

/// A request's number, unique within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens generated at most; `None` for as many as the context holds.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end the answer (the end token itself is delivered last).
    pub end_tokens: Vec<u32>,
}

impl Request {
    /// A greedy request without end tokens.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { prompt, sampling: SamplingParams::default(), max_new_tokens: None, end_tokens: Vec::new() }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose an end token.
    EndToken,
    /// `max_new_tokens` were generated.
    MaxNewTokens,
    /// The sequence fills the context.
    Context,
    /// The caller cancelled it.
    Cancelled,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose computation was saved by a cache.
    pub cached_tokens: usize,
    /// Tokens generated, the end token included.
    pub new_tokens: usize,
    /// From admission to the first new token.
    pub prompt_time: Duration,
    /// From the first new token to the last.
    pub decode_time: Duration,
}

impl Usage {
    /// Prompt tokens computed a second.
    pub fn prompt_per_second(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt_time)
    }

    /// Tokens a second after the first.
    pub fn decode_per_second(&self) -> f64 {
        rate(self.new_tokens.saturating_sub(1), self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens went through the model; the answer has not begun.
    Prompt {
        /// Whose.
        request: RequestId,
        /// Prompt tokens done so far.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A new token.
    Token {
        /// Whose.
        request: RequestId,
        /// Its id.
        id: u32,
    },
    /// The answer has ended.
    Finished {
        /// Whose.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
    /// The request failed; others go on.
    Failed {
        /// Whose.
        request: RequestId,
        /// Why.
        message: String,
    },
}
