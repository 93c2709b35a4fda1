//! Functions that change the logits before a token is chosen, with transformers' names, meanings and order.
//!
//! A [`LogitsProcessor`] sees the tokens of one sequence and the logits of the next one. Its state belongs to that
//! sequence alone, so a request is served the same alone and in a batch. [`ProcessorList`] builds those that
//! [`SamplingParams`](crate::SamplingParams) ask for, in transformers' order.

mod allow;
mod bias;
mod dry;
mod entropy;
mod guidance;
mod length;
mod list;
mod mirostat;
mod ngrams;
mod numeric;
mod penalties;
mod spread;
mod truncate;
mod watermark;

pub use allow::{BeginSuppressTokens, PrefixAllowedTokens, SuppressTokens};
pub use bias::{BadWords, LogitBias, SequenceBias};
pub use dry::{Dry, DryPenalty};
pub use entropy::{EpsilonCutoff, EtaCutoff, TopH, TypicalP};
pub use guidance::guide;
pub use length::{ExponentialDecayLengthPenalty, ForcedBosToken, ForcedEosToken, MinLength, MinNewTokens};
pub use list::ProcessorList;
pub use mirostat::{Mirostat, MirostatSampler, MirostatVersion};
pub use ngrams::{EncoderNoRepeatNGram, NoRepeatNGram};
pub use numeric::{RemoveInvalidValues, Renormalize};
pub use penalties::{EncoderRepetitionPenalty, OccurrencePenalty, RepetitionPenalty};
pub use truncate::{
    DynamicTemperature, DynamicTemperatureRange, MinP, Temperature, TopK, TopNSigma, TopP, Xtc, XtcSampler,
};
pub use watermark::{SeedingScheme, Watermark, WatermarkConfig};

pub use spread::log_softmax;
pub(crate) use spread::only_infinite;
pub(crate) use truncate::most_likely;

use std::fmt;

use crate::{FinishReason, Result};

/// What a processor or a stopping criterion knows about its sequence.
#[derive(Clone, Copy, Debug)]
pub struct TokenContext<'a> {
    /// Prompt and answer so far.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// Tokens that end an answer.
    pub end_tokens: &'a [u32],
    /// Length of `tokens` at which the answer ends at the latest.
    pub max_length: usize,
    /// Seed of the sequence's random numbers. With [`gruff_kernels::sampling::uniform`] and the length of `tokens`
    /// it gives numbers that do not depend on the batch.
    pub seed: u64,
}

impl<'a> TokenContext<'a> {
    /// The answer so far.
    pub fn new_tokens(&self) -> &'a [u32] {
        self.tokens.get(self.prompt_len..).unwrap_or_default()
    }

    /// The prompt.
    pub fn prompt(&self) -> &'a [u32] {
        self.tokens.get(..self.prompt_len).unwrap_or(self.tokens)
    }
}

/// Changes the logits of the next token of one sequence.
///
/// Anything that is `Clone` and has [`process`](Self::process) can be one; a copy in the same state serves each
/// sequence and each beam. [`processor_fn`] makes one of a closure.
///
/// ```
/// use gruff_engine::logits::{LogitsProcessor, TokenContext};
///
/// /// Never says the same token twice in a row.
/// #[derive(Clone)]
/// struct NoEcho;
///
/// impl LogitsProcessor for NoEcho {
///     fn name(&self) -> &str {
///         "no echo"
///     }
///
///     fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> gruff_engine::Result<()> {
///         if let Some(last) = context.new_tokens().last() {
///             logits[*last as usize] = f32::NEG_INFINITY;
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait LogitsProcessor: ForkProcessor + Send {
    /// What it is called in messages.
    fn name(&self) -> &str;

    /// Changes `logits` `[vocab_size]` in place; minus infinity rules a token out. Called once for each token of
    /// the sequence, in order.
    ///
    /// # Errors
    /// An error ends the request with its message; other requests go on.
    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()>;

    /// The answer ends for `reason`; its last token is in `context`.
    ///
    /// # Errors
    /// An error ends the request with its message instead: what must be whole, such as a document that follows a
    /// grammar, is not.
    fn finish(&mut self, _context: &TokenContext<'_>, _reason: FinishReason) -> Result<()> {
        Ok(())
    }
}

/// Copies a processor in its present state; everything that is `Clone` has it.
pub trait ForkProcessor {
    /// The copy.
    fn fork(&self) -> Box<dyn LogitsProcessor>;
}

impl<T: LogitsProcessor + Clone + 'static> ForkProcessor for T {
    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn LogitsProcessor> {
    fn clone(&self) -> Self {
        (**self).fork()
    }
}

impl fmt::Debug for dyn LogitsProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A processor from a closure.
pub fn processor_fn<F>(name: impl Into<String>, process: F) -> Box<dyn LogitsProcessor>
where
    F: FnMut(&TokenContext<'_>, &mut [f32]) -> Result<()> + Clone + Send + 'static,
{
    Box::new(FromFn { name: name.into(), process })
}

#[derive(Clone)]
struct FromFn<F> {
    name: String,
    process: F,
}

impl<F> LogitsProcessor for FromFn<F>
where
    F: FnMut(&TokenContext<'_>, &mut [f32]) -> Result<()> + Clone + Send + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        (self.process)(context, logits)
    }
}

/// Rules out every token of `ids` that the vocabulary has.
fn mask(logits: &mut [f32], ids: &[u32]) {
    for id in ids {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Rules out everything but `ids`, which get a logit of 0.
fn force(logits: &mut [f32], ids: &[u32]) {
    logits.fill(f32::NEG_INFINITY);
    for id in ids {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit = 0.0;
        }
    }
}
