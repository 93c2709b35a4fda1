//! From logits to a token id.
//!
//! # Contract
//!
//! For each row, in transformers' order: repetition penalty (logit / p if positive, * p if negative, for
//! every id in `penalized`, once each), temperature, top-k, top-p, min-p, softmax, draw. `temperature = 0`
//! takes the largest logit (after the penalty), ties to the lower id. top-k keeps ties with the k-th value;
//! top-p keeps the smallest set of most likely ids whose probability reaches p; min-p keeps ids at least
//! `min_p` times as likely as the most likely one. At least one id is always kept.
//!
//! Random numbers are counter-based: the draw of a row is a function of `(seed, position)` alone
//! ([`uniform`]), so a request gives the same ids alone, in a batch, or on another device.

mod cpu;
pub(crate) mod cuda;
mod random;
mod reference;

pub use random::uniform;

use crate::check::Check;
use crate::profile::Work;
use crate::{DType, Draw, Family, Result, Step, Tensor};

/// How one row is sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    /// Divisor of the logits; 0 for the largest.
    pub temperature: f32,
    /// Ids kept; 0 for all.
    pub top_k: usize,
    /// Probability mass kept; 1 for all.
    pub top_p: f32,
    /// Least probability relative to the most likely id; 0 for none.
    pub min_p: f32,
    /// Penalty on ids in `penalized`; 1 for none.
    pub repetition_penalty: f32,
    /// The ids that the penalty meets.
    pub penalized: Vec<u32>,
    /// The request's seed.
    pub seed: u64,
    /// The index of the drawn token in its sequence: the counter of the random number.
    pub position: u64,
}

pub(crate) trait SamplingOps {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()>;
    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()>;

    /// What a step asks for, of which a device may have tables already.
    fn draw(&self, logits: &Tensor, _step: &Step, draw: &Draw) -> Result<()> {
        self.sample(logits, draw.specs(), draw.ids())
    }
}

/// The largest logit of each row, ties to the lower id: logits `[R, V]` f32 -> ids `[R]` i32. A row without
/// a finite value gives -1.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn argmax(logits: &Tensor, ids: &Tensor) -> Result<()> {
    let check = Check::new("argmax", ids)?;
    check.rank("the logits", logits, 2)?;
    check.tensor("the logits", logits, DType::F32, logits.shape())?;
    check.tensor("the ids", ids, DType::I32, &logits.shape()[..1])?;
    check.run(Family::Sampling, || Work::through([logits, ids]), |backend| backend.argmax(logits, ids))
}

/// Draws one id a row: logits `[R, V]` f32, one spec a row -> ids `[R]` i32. The logits are not changed. A
/// row without a finite value gives -1.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a penalized id is outside the vocabulary.
pub fn sample(logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
    let check = checked("sample", logits, specs, ids)?;
    check.run(Family::Sampling, || Work::through([logits, ids]), |backend| backend.sample(logits, specs, ids))
}

/// Draws what a step asks for ([`Step::with_draw`]) from its logits `[R, V]` f32; nothing where it asks for nothing. As
/// [`sample`], which it gives the ids of.
///
/// # Errors
/// As [`sample`].
pub fn draw(logits: &Tensor, step: &Step) -> Result<()> {
    let Some(draw) = step.draw() else { return Ok(()) };
    let check = checked("draw", logits, draw.specs(), draw.ids())?;
    let work = || Work::through([logits, draw.ids()]);
    check.run(Family::Sampling, work, |backend| backend.draw(logits, step, draw))
}

fn checked<'a>(
    op: &'static str,
    logits: &Tensor,
    specs: &[SampleSpec],
    ids: &'a Tensor,
) -> Result<Check<'a>> {
    let check = Check::new(op, ids)?;
    check.rank("the logits", logits, 2)?;
    check.tensor("the logits", logits, DType::F32, logits.shape())?;
    check.tensor("the ids", ids, DType::I32, &logits.shape()[..1])?;
    check.that(specs.len() == logits.shape()[0], || {
        format!("{} sampling specs for {} rows", specs.len(), logits.shape()[0])
    })?;
    let vocabulary = logits.shape()[1];
    let wild = specs.iter().flat_map(|spec| &spec.penalized).find(|id| **id as usize >= vocabulary);
    check.value(wild.is_none(), || format!("penalized id {wild:?} of {vocabulary}"))?;
    Ok(check)
}
