//! A request on its way through the engine.

use std::time::Instant;

use gruff_kernels::PAGE_LEN;

use crate::{FinishReason, Request, RequestId, Usage};

/// A request with what it holds of the caches.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys, values and state the caches hold: a prefix of `tokens`.
    pub(crate) past: usize,
    /// KV pages owned, in order.
    pub(crate) pages: Vec<u32>,
    /// State slot owned while it runs.
    pub(crate) slot: Option<u32>,
    /// Prompt tokens that a cache saved.
    cached: usize,
    admitted: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: Request) -> Self {
        let tokens = request.prompt.clone();
        Self {
            id,
            request,
            tokens,
            past: 0,
            pages: Vec::new(),
            slot: None,
            cached: 0,
            admitted: Instant::now(),
            first_token: None,
            last_token: None,
        }
    }

    /// Starts (or, after a preemption, starts again) with a slot and what a cache holds of the tokens.
    pub(crate) fn admit(&mut self, slot: u32, pages: Vec<u32>, past: usize) {
        self.slot = Some(slot);
        self.pages = pages;
        self.past = past;
        if self.first_token.is_none() {
            self.cached = past;
            self.admitted = Instant::now();
        }
    }

    /// Tokens not yet through the model.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.past
    }

    /// Whether the next step of it is one token of the answer.
    pub(crate) fn decoding(&self) -> bool {
        self.pending() == 1 && self.first_token.is_some()
    }

    /// Pages missing for the first `len` tokens.
    pub(crate) fn missing_pages(&self, len: usize) -> usize {
        len.div_ceil(PAGE_LEN).saturating_sub(self.pages.len())
    }

    /// Takes a new token in and says whether it was the last.
    pub(crate) fn push(&mut self, id: u32, context: usize) -> Option<FinishReason> {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(id);
        let new_tokens = self.tokens.len() - self.request.prompt.len();
        if self.request.end_tokens.contains(&id) {
            Some(FinishReason::EndToken)
        } else if self.request.max_new_tokens.is_some_and(|most| new_tokens >= most) {
            Some(FinishReason::MaxNewTokens)
        } else if self.tokens.len() >= context {
            Some(FinishReason::Context)
        } else {
            None
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let (first, last) = (self.first_token, self.last_token);
        Usage {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached,
            new_tokens: self.tokens.len() - self.request.prompt.len(),
            prompt_time: first.map(|first| first - self.admitted).unwrap_or_default(),
            decode_time: first.zip(last).map(|(first, last)| last - first).unwrap_or_default(),
        }
    }
}
