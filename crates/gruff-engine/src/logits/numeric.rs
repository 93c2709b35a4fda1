//! Processors about the numbers themselves.

use super::spread::log_softmax;
use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Turns NaN into 0 and infinities into the largest and smallest finite numbers.
#[derive(Clone, Debug)]
pub struct RemoveInvalidValues;

impl LogitsProcessor for RemoveInvalidValues {
    fn name(&self) -> &str {
        "remove_invalid_values"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        for logit in logits {
            *logit = if logit.is_nan() { 0.0 } else { logit.clamp(f32::MIN, f32::MAX) };
        }
        Ok(())
    }
}

/// Logarithms of probabilities in place of logits: always the last.
#[derive(Clone, Debug)]
pub struct Renormalize;

impl LogitsProcessor for Renormalize {
    fn name(&self) -> &str {
        "renormalize_logits"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        for (logit, log) in logits.iter_mut().zip(logs) {
            *logit = log as f32;
        }
        Ok(())
    }
}
