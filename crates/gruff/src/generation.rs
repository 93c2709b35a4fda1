//! How an answer is generated: transformers' fields and names.

use std::fmt::Display;
use std::path::Path;

use gruff_engine::{Request, SamplingParams};
use gruff_gguf::Metadata;
use serde::Deserialize;

use crate::{Error, Result};

/// Generation parameters, named as in transformers. A field that is `None` takes the model's own default
/// (`generation_config.json` beside the file, then `general.sampling.*` in it), else the value that changes
/// nothing.
///
/// Differences to transformers: a temperature above 0 samples without `do_sample`, and without
/// `max_new_tokens` an answer goes on to its end token or the end of the context (transformers stops at 20
/// tokens).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// Tokens generated at most.
    pub max_new_tokens: Option<usize>,
    /// `false` is greedy whatever the temperature; `true` without a temperature samples at 1.
    pub do_sample: Option<bool>,
    /// Divisor of the logits; 0 is greedy.
    pub temperature: Option<f32>,
    /// Keep the k most likely tokens; 0 keeps all.
    #[serde(deserialize_with = "negative_keeps_all")]
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens whose probability reaches p.
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the most likely one.
    pub min_p: Option<f32>,
    /// Divide the positive logits of tokens seen so far by this.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers; prompt number i of a batch uses `seed + i`.
    pub seed: Option<u64>,
    /// Tokens that end the answer, instead of the tokenizer's end-of-generation set.
    #[serde(deserialize_with = "one_or_many")]
    pub eos_token_id: Option<Vec<u32>>,
}

impl GenerationConfig {
    /// The fields of `self`, and those of `defaults` where `self` has none.
    pub fn or(self, defaults: &GenerationConfig) -> Self {
        Self {
            max_new_tokens: self.max_new_tokens.or(defaults.max_new_tokens),
            do_sample: self.do_sample.or(defaults.do_sample),
            temperature: self.temperature.or(defaults.temperature),
            top_k: self.top_k.or(defaults.top_k),
            top_p: self.top_p.or(defaults.top_p),
            min_p: self.min_p.or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            seed: self.seed.or(defaults.seed),
            eos_token_id: self.eos_token_id.or_else(|| defaults.eos_token_id.clone()),
        }
    }

    /// Reads `generation_config.json`. Fields that gruff does not know are left aside.
    ///
    /// # Errors
    /// [`Error::GenerationConfig`] when it cannot be read or a known field has another type. A number out of its
    /// range is advice that nobody can follow: it is left aside with a warning.
    pub fn from_file(path: &Path) -> Result<Self> {
        let fail = |fault: String| Error::GenerationConfig { path: path.to_owned(), fault };
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let config: Self = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
        Ok(config.usable(&path.display()))
    }

    /// The sampling defaults that a GGUF file recommends (`general.sampling.*`).
    ///
    /// # Errors
    /// [`Error::Gguf`] when a key has another type. A number out of its range is left aside with a warning.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let float = |name: &str| metadata.f32(&format!("general.sampling.{name}"));
        let top_k = metadata.i64("general.sampling.top_k")?;
        let config = Self {
            temperature: float("temp")?,
            top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repetition_penalty: float("penalty_repeat")?,
            ..Self::default()
        };
        Ok(config.usable(&"general.sampling"))
    }

    /// Without the numbers that sampling would refuse; `place` is where they stand.
    fn usable(mut self, place: &dyn Display) -> Self {
        let keep = |value: &mut Option<f32>, set: fn(&mut SamplingParams, f32)| {
            let Some(number) = *value else { return };
            let mut params = SamplingParams::default();
            set(&mut params, number);
            if let Err(error) = params.validate() {
                tracing::warn!("{place}: {error}; it is left aside");
                *value = None;
            }
        };
        keep(&mut self.temperature, |params, value| params.temperature = value);
        keep(&mut self.top_p, |params, value| params.top_p = value);
        keep(&mut self.min_p, |params, value| params.min_p = value);
        keep(&mut self.repetition_penalty, |params, value| params.repetition_penalty = value);
        self
    }

    /// The engine's request for prompt number `index` of a batch; `end_tokens` end an answer where the
    /// configuration names none.
    pub fn request(&self, prompt: Vec<u32>, index: usize, end_tokens: &[u32]) -> Request {
        let sampled = self.do_sample.unwrap_or(self.temperature.is_some());
        let temperature = if sampled { self.temperature.unwrap_or(1.0) } else { 0.0 };
        Request {
            prompt,
            sampling: SamplingParams {
                temperature,
                top_k: self.top_k.unwrap_or(0),
                top_p: self.top_p.unwrap_or(1.0),
                min_p: self.min_p.unwrap_or(0.0),
                repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
                seed: self.seed.unwrap_or(0).wrapping_add(index as u64),
            },
            max_new_tokens: self.max_new_tokens,
            end_tokens: self.eos_token_id.clone().unwrap_or_else(|| end_tokens.to_vec()),
        }
    }
}

/// vLLM's way to keep all tokens is -1.
fn negative_keeps_all<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let k = Option::<i64>::deserialize(deserializer)?;
    Ok(k.map(|k| usize::try_from(k).unwrap_or(0)))
}

/// transformers writes `eos_token_id` as a number or as a list.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ids {
        One(u32),
        Many(Vec<u32>),
    }
    Ok(Option::<Ids>::deserialize(deserializer)?.map(|ids| match ids {
        Ids::One(id) => vec![id],
        Ids::Many(ids) => ids,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_transformers_writes() {
        let text = r#"{"bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "temperature": 0.6,
                       "top_k": 20, "top_p": 0.95, "transformers_version": "5.24.0"}"#;
        let config: GenerationConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.eos_token_id, Some(vec![2, 3]));
        assert_eq!((config.temperature, config.top_k, config.do_sample), (Some(0.6), Some(20), Some(true)));
        let one: GenerationConfig = serde_json::from_str(r#"{"eos_token_id": 7}"#).unwrap();
        assert_eq!(one.eos_token_id, Some(vec![7]));
    }

    #[test]
    fn advice_that_nobody_can_follow_is_left_aside() {
        let read = |text| serde_json::from_str::<GenerationConfig>(text).unwrap().usable(&"a file");
        let config = read(
            r#"{"temperature": -5, "top_k": -1, "top_p": 0, "min_p": 2, "repetition_penalty": 1e60, "seed": 3}"#,
        );
        let expected = GenerationConfig { top_k: Some(0), seed: Some(3), ..Default::default() };
        assert_eq!(config, expected);
        let config = read(r#"{"temperature": 0.6, "top_p": 1, "min_p": 0, "repetition_penalty": 1.1}"#);
        assert_eq!((config.temperature, config.top_p), (Some(0.6), Some(1.0)));
        assert_eq!((config.min_p, config.repetition_penalty), (Some(0.0), Some(1.1)));
    }

    #[test]
    fn own_fields_win_over_defaults() {
        let defaults = GenerationConfig { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let own = GenerationConfig { temperature: Some(0.0), ..Default::default() }.or(&defaults);
        assert_eq!((own.temperature, own.top_k), (Some(0.0), Some(20)));
    }

    #[test]
    fn temperature_decides_whether_to_sample() {
        let temperature = |config: GenerationConfig| config.request(vec![1], 0, &[2]).sampling.temperature;
        let with = |do_sample, temperature| GenerationConfig { do_sample, temperature, ..Default::default() };
        assert_eq!(temperature(with(None, None)), 0.0);
        assert_eq!(temperature(with(None, Some(0.7))), 0.7);
        assert_eq!(temperature(with(Some(true), None)), 1.0);
        assert_eq!(temperature(with(Some(false), Some(0.7))), 0.0);
    }

    #[test]
    fn prompts_of_a_batch_draw_their_own_numbers() {
        let config = GenerationConfig { seed: Some(5), ..Default::default() };
        assert_eq!(config.request(vec![1], 0, &[]).sampling.seed, 5);
        assert_eq!(config.request(vec![1], 3, &[]).sampling.seed, 8);
    }
}
