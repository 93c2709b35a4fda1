//! Drafting tokens that a model verifies several at once.
//!
//! The random numbers of a request are a function of seed and position, so a drafted token is right exactly when the
//! model itself would have chosen it there: greedy or sampled, the answer is the same with and without drafts. What
//! was computed behind the first wrong one is dropped, which costs nothing (`docs/architecture.md`).

mod draft_model;
mod prompt_lookup;

pub use draft_model::DraftModel;
pub use prompt_lookup::PromptLookup;

use std::fmt;

use crate::{Result, SamplingParams};

/// A way to draft, for any number of sequences.
pub trait Speculation: fmt::Debug + Send + Sync {
    /// Tokens of a draft at most. Models with recurrent state need an engine that can roll back so many
    /// ([`EngineOptions::rollback`](crate::EngineOptions::rollback)).
    fn most(&self) -> usize;

    /// A drafter for one sequence of up to `max_length` tokens, whose tokens are chosen by `sampling`.
    ///
    /// # Errors
    /// When it cannot be made; the request is then refused.
    fn drafter(&self, sampling: &SamplingParams, max_length: usize) -> Result<Box<dyn Drafter>>;
}

/// Drafts for one sequence.
pub trait Drafter: Send {
    /// Up to `most` tokens that may follow `tokens`; none is an answer too.
    ///
    /// # Errors
    /// An error ends the request.
    fn draft(&mut self, tokens: &[u32], most: usize) -> Result<Vec<u32>>;

    /// Tells how many tokens of the last draft were right.
    fn verified(&mut self, _drafted: usize, _accepted: usize) {}
}

/// How the length of drafts follows their success (transformers' `num_assistant_tokens_schedule`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Not at all.
    #[default]
    Constant,
    /// Two more after a draft that was right to its end, one less after any other.
    Heuristic,
}

/// The present length of drafts.
#[derive(Clone, Copy, Debug)]
struct DraftLength {
    now: usize,
    most: usize,
    schedule: Schedule,
}

impl DraftLength {
    fn new(first: usize, most: usize, schedule: Schedule) -> Self {
        Self { now: first.clamp(1, most.max(1)), most, schedule }
    }

    fn verified(&mut self, drafted: usize, accepted: usize) {
        if self.schedule == Schedule::Heuristic && drafted > 0 {
            let next = if accepted == drafted { self.now + 2 } else { self.now.saturating_sub(1) };
            self.now = next.clamp(1, self.most.max(1));
        }
    }
}
