//! How a request's tokens are chosen.

use gruff_kernels::sampling::SampleSpec;

use crate::error::refuse;
use crate::{Error, Result};

/// Sampling parameters, with transformers' names and meanings.
///
/// `do_sample` is implied: a temperature above 0 samples, 0 is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divide the (positive) logits of tokens seen so far by this; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Seed of the request's random numbers. The same seed, prompt and parameters give the same tokens,
    /// alone or in a batch.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// Greedy.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Request`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", format!("{} must be 0 (greedy) or above", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", format!("{} must be above 0 and at most 1", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", format!("{} must be between 0 and 1", self.min_p));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse("repetition_penalty", format!("{} must be above 0", self.repetition_penalty));
        }
        Ok(())
    }

    /// What the device needs to draw the token with index `position` after `seen`.
    pub(crate) fn spec(&self, seen: &[u32], position: usize) -> SampleSpec {
        let mut penalized = Vec::new();
        if self.repetition_penalty != 1.0 {
            penalized.extend_from_slice(seen);
            penalized.sort_unstable();
            penalized.dedup();
        }
        SampleSpec {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            penalized,
            seed: self.seed,
            position: position as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ranges_name_the_field() {
        let bad: [(&str, SamplingParams); 6] = [
            ("temperature", SamplingParams { temperature: -1.0, ..Default::default() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.0, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 1.5, ..Default::default() }),
            ("min_p", SamplingParams { min_p: -0.1, ..Default::default() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..Default::default() }),
        ];
        for (field, params) in bad {
            let message = params.validate().unwrap_err().to_string();
            assert!(message.starts_with(field), "{message}");
        }
        SamplingParams::default().validate().unwrap();
    }

    #[test]
    fn the_penalty_meets_each_token_once() {
        let params = SamplingParams { repetition_penalty: 1.1, ..Default::default() };
        assert_eq!(params.spec(&[5, 3, 5, 3], 4).penalized, [3, 5]);
        assert!(SamplingParams::default().spec(&[5, 3], 2).penalized.is_empty());
    }
}
