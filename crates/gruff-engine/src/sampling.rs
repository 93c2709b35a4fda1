//! How a request's tokens are chosen.

use gruff_kernels::sampling::SampleSpec;

use crate::error::refuse;
use crate::logits::{Dry, DynamicTemperatureRange, Mirostat, PrefixAllowedTokens, WatermarkConfig, Xtc};
use crate::{Error, Result};

/// Sampling parameters, with transformers' names and meanings; those that only llama.cpp and OpenAI's API have bear
/// their names there. The defaults change nothing.
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
    /// Numbers added to the logit of the last token of a sequence behind the sequence's beginning.
    pub sequence_bias: Vec<(Vec<u32>, f32)>,
    /// Numbers added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Draws the answer to the prompt's tokens when above 1.
    pub encoder_repetition_penalty: f32,
    /// Taken off the logits of tokens that occur in the answer.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens for each time they occur in the answer.
    pub frequency_penalty: f32,
    /// Penalty on repetitions that grows with their length.
    pub dry: Option<Dry>,
    /// No so many tokens in a row occur twice; 0 lets them.
    pub no_repeat_ngram_size: usize,
    /// No so many tokens in a row of the prompt occur in the answer; 0 lets them.
    pub encoder_no_repeat_ngram_size: usize,
    /// Sequences of tokens that do not occur in the answer.
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Tokens of prompt and answer before the answer may end.
    pub min_length: usize,
    /// Tokens of the answer before it may end.
    pub min_new_tokens: usize,
    /// What may follow the tokens so far.
    pub prefix_allowed_tokens: Option<PrefixAllowedTokens>,
    /// The token behind a prompt of one token.
    pub forced_bos_token_id: Option<u32>,
    /// The token, one of these, that ends an answer which the length ends.
    pub forced_eos_token_id: Vec<u32>,
    /// Replace NaN by 0 and infinities by finite numbers.
    pub remove_invalid_values: bool,
    /// From how many tokens of the answer on end tokens gain, and the base of the growth.
    pub exponential_decay_length_penalty: Option<(usize, f32)>,
    /// Tokens that are never said.
    pub suppress_tokens: Vec<u32>,
    /// Tokens that do not begin an answer.
    pub begin_suppress_tokens: Vec<u32>,
    /// A temperature that follows the entropy.
    pub dynamic_temperature: Option<DynamicTemperatureRange>,
    /// Keep tokens within so many standard deviations of the largest logit; 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep the most likely tokens within this share of the entropy.
    pub top_h: Option<f32>,
    /// Keep the most typical tokens of this mass; 1 keeps all.
    pub typical_p: f32,
    /// Keep tokens at least this likely; 0 keeps all.
    pub epsilon_cutoff: f32,
    /// As `epsilon_cutoff`, less the surer the model is; 0 keeps all.
    pub eta_cutoff: f32,
    /// Now and then leave out the most likely tokens.
    pub xtc: Option<Xtc>,
    /// Hold the surprise of the text near a target.
    pub mirostat: Option<Mirostat>,
    /// Mark the text.
    pub watermark: Option<WatermarkConfig>,
    /// Give logarithms of probabilities as scores.
    pub renormalize_logits: bool,
}

impl Default for SamplingParams {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            sequence_bias: Vec::new(),
            logit_bias: Vec::new(),
            encoder_repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry: None,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            bad_words_ids: Vec::new(),
            min_length: 0,
            min_new_tokens: 0,
            prefix_allowed_tokens: None,
            forced_bos_token_id: None,
            forced_eos_token_id: Vec::new(),
            remove_invalid_values: false,
            exponential_decay_length_penalty: None,
            suppress_tokens: Vec::new(),
            begin_suppress_tokens: Vec::new(),
            dynamic_temperature: None,
            top_n_sigma: 0.0,
            top_h: None,
            typical_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc: None,
            mirostat: None,
            watermark: None,
            renormalize_logits: false,
        }
    }
}

/// Checks a number, naming its field; `wanted` completes "... has to be".
fn check(field: &'static str, value: f32, fits: bool, wanted: &str) -> Result<()> {
    if fits { Ok(()) } else { refuse(field, format!("{value} has to be {wanted}")) }
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Request`] names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let positive = |x: f32| x > 0.0 && x.is_finite();
        let share = |x: f32| (0.0..1.0).contains(&x);
        let t = self.temperature;
        check("temperature", t, t >= 0.0 && t.is_finite(), "0 (greedy) or a number above it")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        let p = self.repetition_penalty;
        check("repetition_penalty", p, positive(p), "a number above 0")?;
        let p = self.encoder_repetition_penalty;
        check("encoder_repetition_penalty", p, positive(p), "a number above 0")?;
        let p = self.presence_penalty;
        check("presence_penalty", p, p.is_finite(), "a finite number")?;
        let p = self.frequency_penalty;
        check("frequency_penalty", p, p.is_finite(), "a finite number")?;
        let n = self.top_n_sigma;
        check("top_n_sigma", n, n >= 0.0 && n.is_finite(), "0 (off) or a number above it")?;
        if let Some(h) = self.top_h {
            check("top_h", h, h > 0.0 && h <= 1.0, "above 0 and at most 1")?;
        }
        let p = self.typical_p;
        check("typical_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        check(
            "epsilon_cutoff",
            self.epsilon_cutoff,
            share(self.epsilon_cutoff),
            "0 (off) or between 0 and 1",
        )?;
        check("eta_cutoff", self.eta_cutoff, share(self.eta_cutoff), "0 (off) or between 0 and 1")?;
        if let Some((_, factor)) = self.exponential_decay_length_penalty {
            check("exponential_decay_length_penalty", factor, positive(factor), "a factor above 0")?;
        }
        self.validate_families()?;
        self.validate_sequences()
    }

    fn validate_families(&self) -> Result<()> {
        if let Some(range) = self.dynamic_temperature {
            let (r, e) = (range.range, range.exponent);
            check("dynamic_temperature.range", r, r >= 0.0 && r.is_finite(), "0 (off) or a number above it")?;
            check("dynamic_temperature.exponent", e, e >= 0.0 && e.is_finite(), "0 or a number above it")?;
        }
        if let Some(dry) = &self.dry {
            let (m, b) = (dry.multiplier, dry.base);
            check("dry.multiplier", m, m >= 0.0 && m.is_finite(), "0 (off) or a number above it")?;
            check("dry.base", b, b >= 1.0 && b.is_finite(), "1 or a number above it")?;
        }
        if let Some(xtc) = self.xtc {
            let whole = |x: f32| (0.0..=1.0).contains(&x);
            check("xtc.probability", xtc.probability, whole(xtc.probability), "from 0 to 1")?;
            let t = xtc.threshold;
            check("xtc.threshold", t, t > 0.0 && t <= 1.0, "above 0 and at most 1")?;
        }
        if let Some(mirostat) = self.mirostat {
            let (tau, eta) = (mirostat.tau, mirostat.eta);
            check("mirostat.tau", tau, tau >= 0.0 && tau.is_finite(), "0 or a number above it")?;
            check("mirostat.eta", eta, eta >= 0.0 && eta.is_finite(), "0 or a number above it")?;
        }
        self.watermark.as_ref().map_or(Ok(()), WatermarkConfig::validate)
    }

    fn validate_sequences(&self) -> Result<()> {
        let empty = |field| refuse(field, "one of its sequences is empty; give each at least one token id");
        if self.sequence_bias.iter().any(|(sequence, _)| sequence.is_empty()) {
            return empty("sequence_bias");
        }
        if self.bad_words_ids.iter().any(Vec::is_empty) {
            return empty("bad_words_ids");
        }
        if self.sequence_bias.iter().any(|(_, bias)| bias.is_nan()) {
            return refuse("sequence_bias", "NaN is no bias; give numbers");
        }
        if self.logit_bias.iter().any(|(_, bias)| bias.is_nan()) {
            return refuse("logit_bias", "NaN is no bias; give numbers");
        }
        Ok(())
    }

    /// Checks that every token id is one of the vocabulary's.
    ///
    /// # Errors
    /// [`Error::Request`] names the field.
    pub fn validate_ids(&self, vocabulary: usize) -> Result<()> {
        fn check(field: &'static str, mut ids: impl Iterator<Item = u32>, vocabulary: usize) -> Result<()> {
            match ids.find(|id| *id as usize >= vocabulary) {
                Some(id) => refuse(field, format!("token id {id} is outside the vocabulary of {vocabulary}")),
                None => Ok(()),
            }
        }
        check("sequence_bias", self.sequence_bias.iter().flat_map(|(ids, _)| ids).copied(), vocabulary)?;
        check("logit_bias", self.logit_bias.iter().map(|(id, _)| *id), vocabulary)?;
        check("bad_words_ids", self.bad_words_ids.iter().flatten().copied(), vocabulary)?;
        check("suppress_tokens", self.suppress_tokens.iter().copied(), vocabulary)?;
        check("begin_suppress_tokens", self.begin_suppress_tokens.iter().copied(), vocabulary)?;
        check("forced_bos_token_id", self.forced_bos_token_id.into_iter(), vocabulary)?;
        check("forced_eos_token_id", self.forced_eos_token_id.iter().copied(), vocabulary)
    }

    /// What the device needs to draw the token behind `seen` by itself.
    pub(crate) fn spec(&self, seen: &[u32]) -> SampleSpec {
        let mut penalized = Vec::new();
        if self.repetition_penalty != 1.0 {
            penalized.extend_from_slice(seen);
            penalized.sort_unstable();
            penalized.dedup();
        }
        SampleSpec { repetition_penalty: self.repetition_penalty, penalized, ..self.tail_spec(seen.len()) }
    }

    /// What the device needs to draw the token with index `position` from logits that were processed up to
    /// sampling.
    pub(crate) fn tail_spec(&self, position: usize) -> SampleSpec {
        SampleSpec {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: 1.0,
            penalized: Vec::new(),
            seed: self.seed,
            position: position as u64,
        }
    }

    /// What the device needs to draw the token with index `position` from logits that were processed to the end.
    pub(crate) fn draw_spec(&self, position: usize) -> SampleSpec {
        SampleSpec {
            temperature: if self.temperature > 0.0 { 1.0 } else { 0.0 },
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..self.tail_spec(position)
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
        assert_eq!(params.spec(&[5, 3, 5, 3]).penalized, [3, 5]);
        assert!(SamplingParams::default().spec(&[5, 3]).penalized.is_empty());
    }
}
