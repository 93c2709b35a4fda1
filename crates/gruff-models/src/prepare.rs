//! Kernels got ready ahead, by rehearsing the steps that a model will be given.

use std::cell::RefCell;

use gruff_kernels::sampling::{self, SampleSpec};
use gruff_kernels::{DType, Device, KvDtype, PAGE_LEN, Step, StepSequence, elementwise};

use crate::{CacheOptions, Caches, Model, Result};

/// Steps that a model will be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// How keys and values are kept.
    pub kv_dtype: KvDtype,
    /// Sequences of a step at most.
    pub sequences: usize,
    /// Tokens of a step at most.
    pub tokens: usize,
}

/// Tokens that sequences have before, so that their keys are more than a block of a kernel takes.
const PAST: usize = 6 * PAGE_LEN + 5;

thread_local! {
    static REHEARSED: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Lasts until it is dropped.
struct Rehearsal;

impl Rehearsal {
    fn of(device: &Device) -> Self {
        REHEARSED.set(Some(device.clone()));
        Self
    }
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        REHEARSED.set(None);
    }
}

/// The device whose kernels this thread gets ready: passes compute nothing on others meanwhile.
pub(crate) fn rehearsed() -> Option<Device> {
    REHEARSED.with_borrow(Clone::clone)
}

/// Numbers up to `most`, all of them where kernels differ by one more, then in steps, which grow where steps are so large
/// that one takes longer than a kernel to compile.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    const LARGE: usize = 1024;
    let doubled = std::iter::successors(Some(2 * LARGE), |size| size.checked_mul(2));
    let all = (1..=9).chain((16..128).step_by(8)).chain((128..=LARGE).step_by(64));
    let all = all.chain(doubled.take_while(move |size| *size < most));
    all.filter(move |size| *size < most).chain([most])
}

/// Gets the kernels ready that `steps` need, those that are to be compiled several at a time, so that none is compiled
/// between two tokens; says how many were compiled. Nothing is done on devices whose kernels are part of the program,
/// nor where hooks or modules of one's own would see the rehearsal.
///
/// # Errors
/// [`crate::Error::Kernel`] when the device is lost. A kernel that cannot be compiled or loaded costs a warning here and is
/// the error of the step that needs it.
pub fn prepare(model: &dyn Model, steps: &Steps) -> Result<usize> {
    if !model.is_as_loaded() {
        return Ok(0);
    }
    let mut compiled = 0;
    for device in model.devices() {
        compiled += device.prepare(|| {
            let _ended = Rehearsal::of(device);
            if let Err(error) = rehearse(model, steps, device) {
                // What is missing is compiled when it is needed.
                tracing::debug!("a rehearsal ended early: {error}");
            }
        })?;
    }
    Ok(compiled)
}

fn rehearse(model: &dyn Model, steps: &Steps, device: &Device) -> Result<()> {
    let (sequences, tokens) = (steps.sequences.max(1), steps.tokens.max(1));
    let pages = (PAST + tokens).div_ceil(PAGE_LEN);
    let options = CacheOptions { kv_dtype: steps.kv_dtype, pages, slots: sequences, rollback: 0 };
    // On the device that is rehearsed they take no memory; other devices' are not touched.
    let mut caches = Caches::new(device, &model.config().caches, &options)?;
    // By copies states are kept and come back.
    let [from, to] = [device.scratch(DType::F32, &[1, 1])?, device.scratch(DType::F32, &[1, 1])?];
    elementwise::copy(&from, &to)?;
    let sequence = |slot, len| StepSequence { len, past: PAST, slot, pages: (0..pages as u32).collect() };
    let answers = sizes(sequences).map(|count| (0..count).map(|slot| sequence(slot, 1)).collect());
    let prompts = sizes(tokens).map(|len| vec![sequence(0, len)]);
    for sequences in answers.chain(prompts) {
        let sequences: Vec<StepSequence> = sequences;
        let count = sequences.iter().map(|sequence| sequence.len).sum();
        let logits = model.forward(&Step::text(vec![0; count], sequences)?, &mut caches)?;
        if !logits.device().same(device) {
            continue;
        }
        let rows = logits.shape()[0];
        if rows == 0 {
            continue;
        }
        let ids = logits.device().scratch(DType::I32, &[rows])?;
        for (temperature, repetition_penalty) in [(0.0, 1.0), (1.0, 1.1)] {
            let spec = SampleSpec {
                temperature,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                repetition_penalty,
                penalized: vec![0],
                seed: 0,
                position: 0,
            };
            sampling::sample(&logits, &vec![spec; rows], &ids)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_to_the_largest() {
        for most in [1, 2, 9, 10, 16, 100, 512, 513, 1024, 1025, 4096, 5000, 1 << 40] {
            let sizes: Vec<usize> = sizes(most).collect();
            assert_eq!(sizes.last(), Some(&most));
            assert!(sizes.is_sorted() && sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
            assert!(sizes.len() < 100, "{most}: {} steps", sizes.len());
        }
    }
}
