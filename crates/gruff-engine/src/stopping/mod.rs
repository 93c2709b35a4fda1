//! When an answer ends.

use std::fmt;
use std::time::{Duration, Instant};

use crate::logits::TokenContext;
use crate::{FinishReason, Result};

/// Ends an answer.
///
/// Anything that is `Clone` and has [`check`](Self::check) can be one; a copy in the same state serves each sequence
/// and each beam. [`criterion_fn`] makes one of a closure.
pub trait StoppingCriteria: ForkCriteria + Send {
    /// What it is called in messages.
    fn name(&self) -> &str;

    /// Says whether the last token of `context` ends the answer. Called once for each token of it, in order.
    ///
    /// # Errors
    /// An error ends the request with its message; other requests go on.
    fn check(&mut self, context: &TokenContext<'_>) -> Result<Option<FinishReason>>;
}

/// Copies a criterion in its present state; everything that is `Clone` has it.
pub trait ForkCriteria {
    /// The copy.
    fn fork(&self) -> Box<dyn StoppingCriteria>;
}

impl<T: StoppingCriteria + Clone + 'static> ForkCriteria for T {
    fn fork(&self) -> Box<dyn StoppingCriteria> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn StoppingCriteria> {
    fn clone(&self) -> Self {
        (**self).fork()
    }
}

impl fmt::Debug for dyn StoppingCriteria {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A criterion from a closure that says whether the answer ends.
pub fn criterion_fn<F>(name: impl Into<String>, ends: F) -> Box<dyn StoppingCriteria>
where
    F: FnMut(&TokenContext<'_>) -> bool + Clone + Send + 'static,
{
    Box::new(FromFn { name: name.into(), ends })
}

#[derive(Clone)]
struct FromFn<F> {
    name: String,
    ends: F,
}

impl<F> StoppingCriteria for FromFn<F>
where
    F: FnMut(&TokenContext<'_>) -> bool + Clone + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&mut self, context: &TokenContext<'_>) -> Result<Option<FinishReason>> {
        Ok((self.ends)(context).then_some(FinishReason::Criterion))
    }
}

/// Ends an answer when a time is over; the token that is then being computed is the last.
#[derive(Clone, Debug)]
pub struct MaxTime {
    start: Instant,
    most: Duration,
}

impl MaxTime {
    /// From now on.
    pub fn new(most: Duration) -> Self {
        Self { start: Instant::now(), most }
    }
}

impl StoppingCriteria for MaxTime {
    fn name(&self) -> &str {
        "max_time"
    }

    fn check(&mut self, _: &TokenContext<'_>) -> Result<Option<FinishReason>> {
        Ok((self.start.elapsed() >= self.most).then_some(FinishReason::MaxTime))
    }
}
