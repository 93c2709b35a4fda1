//! How an answer is generated: transformers' fields and names.

use std::time::Duration;

use gruff_engine::logits::{Dry, DynamicTemperatureRange, Mirostat, WatermarkConfig, Xtc};
use gruff_engine::speculation::Schedule;
use gruff_engine::{BeamParams, EarlyStopping, OutputOptions, Request, SamplingParams};
use gruff_models::LoraScales;
use serde::Deserialize;

use crate::generation_json::{early_stopping, negative_keeps_all, one_or_many, one_or_many_texts};
use crate::{Constraint, Error, Result};

/// States the fields once, for the structure, its defaults and its readers.
macro_rules! generation_config {
    ($($(#[$meta:meta])* $field:ident: $type:ty,)*) => {
        /// Generation parameters, named as in transformers. A field that is `None` takes the model's own default
        /// (`generation_config.json` beside the file, then `general.sampling.*` in it), else transformers' own.
        ///
        /// Differences to transformers: a temperature above 0 samples without `do_sample`, and without
        /// `max_new_tokens` an answer goes on to its end token or the end of the context (transformers stops at 20
        /// tokens). Fields without a counterpart there say so.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct GenerationConfig {
            $($(#[$meta])* pub $field: Option<$type>,)*
        }

        impl GenerationConfig {
            /// The names of all fields.
            pub const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];

            /// The fields of `self`, and those of `defaults` where `self` has none.
            pub fn or(self, defaults: &GenerationConfig) -> Self {
                Self { $($field: self.$field.or_else(|| defaults.$field.clone()),)* }
            }
        }
    };
}

generation_config! {
    /// Tokens of prompt and answer together at most; `max_new_tokens` goes first.
    max_length: usize,
    /// Tokens generated at most.
    max_new_tokens: usize,
    /// Tokens of prompt and answer before the answer may end.
    min_length: usize,
    /// Tokens of the answer before it may end.
    min_new_tokens: usize,
    /// When a search with beams ends: `false`, `true` or `"never"`.
    #[serde(deserialize_with = "early_stopping")]
    early_stopping: EarlyStopping,
    /// Seconds after which an answer ends.
    max_time: f64,
    /// Texts that end an answer, across token borders.
    #[serde(deserialize_with = "one_or_many_texts")]
    stop_strings: Vec<String>,
    /// Whether the stop string stays in an answer's text (not in transformers, whose output is ids; vLLM's name).
    /// The ids always have it.
    include_stop_str_in_output: bool,
    /// `false` is greedy whatever the temperature; `true` without a temperature samples at 1.
    do_sample: bool,
    /// Sequences that a search follows at once; 1 is no search.
    num_beams: usize,
    /// Exponent of the length by which scores of a search are divided.
    length_penalty: f32,
    /// Divisor of the logits; 0 is greedy.
    temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all. 50 unless said otherwise, as in transformers.
    #[serde(deserialize_with = "negative_keeps_all")]
    top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches p.
    top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one.
    min_p: f32,
    /// Keep the most likely tokens within this share of the entropy.
    top_h: f32,
    /// Keep the most typical tokens of this mass.
    typical_p: f32,
    /// Keep tokens at least this likely.
    epsilon_cutoff: f32,
    /// As `epsilon_cutoff`, less the surer the model is.
    eta_cutoff: f32,
    /// Divide the positive logits of tokens seen so far by this.
    repetition_penalty: f32,
    /// Draw the answer to the prompt's tokens when above 1.
    encoder_repetition_penalty: f32,
    /// No so many tokens in a row occur twice.
    no_repeat_ngram_size: usize,
    /// No so many tokens in a row of the prompt occur in the answer.
    encoder_no_repeat_ngram_size: usize,
    /// Sequences of tokens that do not occur in the answer.
    bad_words_ids: Vec<Vec<u32>>,
    /// Give logarithms of probabilities as scores.
    renormalize_logits: bool,
    /// The token behind a prompt of one token.
    forced_bos_token_id: u32,
    /// The token that ends an answer which the length ends.
    #[serde(deserialize_with = "one_or_many")]
    forced_eos_token_id: Vec<u32>,
    /// Replace NaN by 0 and infinities by finite numbers.
    remove_invalid_values: bool,
    /// From how many tokens of the answer on end tokens gain, and the base of the growth.
    exponential_decay_length_penalty: (usize, f32),
    /// Tokens that are never said.
    suppress_tokens: Vec<u32>,
    /// Tokens that do not begin an answer.
    begin_suppress_tokens: Vec<u32>,
    /// Numbers added to the logit of the last token of a sequence behind the sequence's beginning.
    sequence_bias: Vec<(Vec<u32>, f32)>,
    /// How far answers are led away from the negative prompt's.
    guidance_scale: f32,
    /// Mark the text for transformers' detector.
    watermarking_config: WatermarkConfig,
    /// Answers to each prompt.
    num_return_sequences: usize,
    /// Give the logits that tokens were chosen from, behind all processors.
    output_scores: bool,
    /// Give the model's own logits.
    output_logits: bool,
    /// Give what went from layer to layer, for the prompt and every new token.
    output_hidden_states: bool,
    /// Give the weights of every softmax attention, which then is eager.
    output_attentions: bool,
    /// The token that pads shorter rows of a padded batch.
    pad_token_id: u32,
    /// The token that begins texts; prompts have it from the tokenizer.
    bos_token_id: u32,
    /// Tokens that end the answer, instead of the tokenizer's end-of-generation set.
    #[serde(deserialize_with = "one_or_many")]
    eos_token_id: Vec<u32>,
    /// Tokens that a draft model drafts at once.
    num_assistant_tokens: usize,
    /// How that changes: `constant`, `heuristic` or `heuristic_transient`.
    num_assistant_tokens_schedule: String,
    /// A draft ends before a token that the draft model gives less than this probability.
    assistant_confidence_threshold: f32,
    /// Tokens that are drafted from the text itself; 0 drafts none.
    prompt_lookup_num_tokens: usize,
    /// Tokens at the end of the text that such a draft looks for.
    max_matching_ngram_size: usize,
    /// Seed of the random numbers; answer number i of a batch uses `seed + i` (not in transformers).
    seed: u64,
    /// Give the logarithm of each token's probability, and of so many of the most likely ones (OpenAI's API).
    logprobs: usize,
    /// Numbers added to logits (OpenAI's API).
    logit_bias: Vec<(u32, f32)>,
    /// Taken off the logits of tokens that occur in the answer (OpenAI's API).
    presence_penalty: f32,
    /// Taken off the logits of tokens for each time they occur in the answer (OpenAI's API).
    frequency_penalty: f32,
    /// Penalty on repetitions that grows with their length (llama.cpp).
    dry: Dry,
    /// Now and then leave out the most likely tokens (llama.cpp).
    xtc: Xtc,
    /// Keep tokens within so many standard deviations of the largest logit (llama.cpp).
    top_n_sigma: f32,
    /// Hold the surprise of the text near a target (llama.cpp).
    mirostat: Mirostat,
    /// A temperature that follows the entropy (llama.cpp).
    dynamic_temperature: DynamicTemperatureRange,
    /// Scales of LoRA adapters by name, one that is not named being off, instead of the adapters' own scales.
    adapters: LoraScales,
    /// A grammar that the answer follows to the letter: JSON schema, regular expression, Lark or GBNF.
    constraint: Constraint,
}

/// transformers' `top_k` where none is given.
const TOP_K: usize = 50;

fn refuse<T>(field: &str, fault: impl std::fmt::Display) -> Result<T> {
    Err(Error::Option(format!("{field}: {fault}")))
}

impl GenerationConfig {
    /// Whether tokens are drawn rather than the most likely taken.
    pub fn samples(&self) -> bool {
        match self.do_sample {
            Some(false) => false,
            Some(true) => self.temperature != Some(0.0),
            None => self.temperature.is_some_and(|temperature| temperature > 0.0),
        }
    }

    /// The parameters of the draw, with seed number `index`.
    pub(crate) fn sampling(&self, index: usize) -> SamplingParams {
        let sampled = self.samples();
        let top_k = if sampled && self.mirostat.is_none() { TOP_K } else { 0 };
        let given = self.clone();
        SamplingParams {
            temperature: if sampled {
                self.temperature.unwrap_or(1.0)
            } else {
                // What is out of range is refused, not read as greedy.
                self.temperature.filter(|t| *t < 0.0 || t.is_nan()).unwrap_or(0.0)
            },
            top_k: self.top_k.unwrap_or(top_k),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            seed: self.seed.unwrap_or(0).wrapping_add(index as u64),
            sequence_bias: given.sequence_bias.unwrap_or_default(),
            logit_bias: given.logit_bias.unwrap_or_default(),
            encoder_repetition_penalty: self.encoder_repetition_penalty.unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            dry: given.dry,
            no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(0),
            encoder_no_repeat_ngram_size: self.encoder_no_repeat_ngram_size.unwrap_or(0),
            bad_words_ids: given.bad_words_ids.unwrap_or_default(),
            min_length: self.min_length.unwrap_or(0),
            min_new_tokens: self.min_new_tokens.unwrap_or(0),
            prefix_allowed_tokens: None,
            forced_bos_token_id: self.forced_bos_token_id,
            forced_eos_token_id: given.forced_eos_token_id.unwrap_or_default(),
            remove_invalid_values: self.remove_invalid_values.unwrap_or(false),
            exponential_decay_length_penalty: self.exponential_decay_length_penalty,
            suppress_tokens: given.suppress_tokens.unwrap_or_default(),
            begin_suppress_tokens: given.begin_suppress_tokens.unwrap_or_default(),
            dynamic_temperature: self.dynamic_temperature,
            top_n_sigma: self.top_n_sigma.unwrap_or(0.0),
            top_h: self.top_h,
            typical_p: self.typical_p.unwrap_or(1.0),
            epsilon_cutoff: self.epsilon_cutoff.unwrap_or(0.0),
            eta_cutoff: self.eta_cutoff.unwrap_or(0.0),
            xtc: self.xtc,
            mirostat: self.mirostat,
            watermark: self.watermarking_config,
            renormalize_logits: self.renormalize_logits.unwrap_or(false),
        }
    }

    /// Answers to each prompt.
    pub(crate) fn answers(&self) -> usize {
        self.num_return_sequences.unwrap_or(1)
    }

    /// Sequences that one prompt takes at once.
    pub(crate) fn width(&self) -> usize {
        let answers = self.num_beams.unwrap_or(1).max(self.answers());
        if self.guides() { answers.saturating_mul(2) } else { answers }
    }

    /// Whether answers are guided by a negative prompt.
    pub(crate) fn guides(&self) -> bool {
        self.guidance_scale.is_some_and(|scale| scale != 1.0)
    }

    /// Checks what does not depend on the prompt.
    ///
    /// # Errors
    /// [`Error::Option`] names the field.
    pub(crate) fn validate(&self) -> Result<()> {
        let answers = self.answers();
        let beams = self.num_beams.unwrap_or(1);
        if answers == 0 {
            return refuse("num_return_sequences", "0 has to be at least 1");
        }
        if beams == 0 {
            return refuse("num_beams", "0 has to be at least 1");
        }
        if beams > 1 && answers > beams {
            return refuse(
                "num_return_sequences",
                format_args!("{answers} has to be at most num_beams ({beams})"),
            );
        }
        if beams == 1 && answers > 1 && !self.samples() {
            return refuse(
                "num_return_sequences",
                format_args!(
                    "greedy decoding gives one answer, not {answers}; sample (a temperature above 0) or search with \
                     num_beams"
                ),
            );
        }
        if let (Some(least), Some(most)) = (self.min_new_tokens, self.max_new_tokens)
            && least > most
        {
            return refuse("min_new_tokens", format_args!("{least} is larger than max_new_tokens ({most})"));
        }
        if let (Some(least), Some(most), None) = (self.min_length, self.max_length, self.max_new_tokens)
            && least > most
        {
            return refuse("min_length", format_args!("{least} is larger than max_length ({most})"));
        }
        if let Some(seconds) = self.max_time.filter(|seconds| !(*seconds > 0.0 && seconds.is_finite())) {
            return refuse("max_time", format_args!("{seconds} has to be a number of seconds above 0"));
        }
        if self.max_new_tokens == Some(0) {
            return refuse("max_new_tokens", "0 new tokens are nothing to compute; ask for at least 1");
        }
        for (field, value) in
            [("length_penalty", self.length_penalty), ("guidance_scale", self.guidance_scale)]
        {
            if let Some(wild) = value.filter(|value| !value.is_finite()) {
                return refuse(field, format_args!("{wild} has to be a finite number"));
            }
        }
        if let Some(wild) = self.assistant_confidence_threshold.filter(|share| !(0.0..=1.0).contains(share)) {
            return refuse("assistant_confidence_threshold", format_args!("{wild} has to be from 0 to 1"));
        }
        if self.stop_strings.iter().flatten().any(String::is_empty) {
            return refuse(
                "stop_strings",
                "an empty text stands everywhere; give texts of at least one character",
            );
        }
        self.schedule().map(drop)
    }

    pub(crate) fn schedule(&self) -> Result<Schedule> {
        match self.num_assistant_tokens_schedule.as_deref() {
            None | Some("constant") => Ok(Schedule::Constant),
            // Lengths are never kept from one call to the next.
            Some("heuristic" | "heuristic_transient") => Ok(Schedule::Heuristic),
            Some(other) => refuse(
                "num_assistant_tokens_schedule",
                format_args!("{other:?} has to be constant, heuristic or heuristic_transient"),
            ),
        }
    }

    /// Checks what depends on the prompt's length.
    ///
    /// # Errors
    /// [`Error::Option`] names the field.
    pub(crate) fn validate_prompt(&self, prompt_len: usize) -> Result<()> {
        match (self.max_new_tokens, self.max_length) {
            (None, Some(most)) if most <= prompt_len => refuse(
                "max_length",
                format_args!(
                    "{most} leaves no room behind a prompt of {prompt_len} tokens; give max_new_tokens"
                ),
            ),
            _ => Ok(()),
        }
    }

    /// The engine's request for prompt number `index` of a batch; `end_tokens` end an answer where the
    /// configuration names none.
    ///
    /// What needs a vocabulary (`stop_strings`, `constraint`), another prompt (`guidance_scale`) or another model is
    /// not in it: [`AutoModelForCausalLM::requests`](crate::AutoModelForCausalLM::requests) gives whole requests.
    pub fn request(&self, prompt: Vec<u32>, index: usize, end_tokens: &[u32]) -> Request {
        let answers = self.answers();
        let beams = self.num_beams.filter(|beams| *beams > 1).map(|num_beams| BeamParams {
            num_beams,
            length_penalty: self.length_penalty.unwrap_or(1.0),
            early_stopping: self.early_stopping.unwrap_or_default(),
            sample: self.samples(),
        });
        let most = self.max_length.map(|most| most.saturating_sub(prompt.len()));
        Request {
            sampling: self.sampling(index.wrapping_mul(answers)),
            max_new_tokens: self.max_new_tokens.or(most),
            end_tokens: self.eos_token_id.clone().unwrap_or_else(|| end_tokens.to_vec()),
            max_time: self.max_time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            num_return_sequences: answers,
            beams,
            adapters: self.adapters.clone(),
            outputs: OutputOptions {
                scores: self.output_scores.unwrap_or(false),
                logits: self.output_logits.unwrap_or(false),
                logprobs: self.logprobs,
                prompt_logprobs: None,
                hidden_states: self.output_hidden_states.unwrap_or(false),
                attentions: self.output_attentions.unwrap_or(false),
            },
            ..Request::new(prompt)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(config: &GenerationConfig, index: usize) -> Request {
        config.request(vec![1], index, &[2])
    }

    #[test]
    fn own_fields_win_over_defaults() {
        let defaults = GenerationConfig { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let own = GenerationConfig { temperature: Some(0.0), ..Default::default() }.or(&defaults);
        assert_eq!((own.temperature, own.top_k), (Some(0.0), Some(20)));
    }

    #[test]
    fn temperature_decides_whether_to_sample() {
        let temperature = |config: GenerationConfig| request(&config, 0).sampling.temperature;
        let with = |do_sample, temperature| GenerationConfig { do_sample, temperature, ..Default::default() };
        assert_eq!(temperature(with(None, None)), 0.0);
        assert_eq!(temperature(with(None, Some(0.7))), 0.7);
        assert_eq!(temperature(with(Some(true), None)), 1.0);
        assert_eq!(temperature(with(Some(false), Some(0.7))), 0.0);
        assert_eq!(temperature(with(None, Some(-1.0))), -1.0, "the engine refuses it");
    }

    #[test]
    fn sampling_keeps_fifty_tokens_unless_told_otherwise() {
        let top_k = |config: GenerationConfig| request(&config, 0).sampling.top_k;
        let with = |temperature, top_k| GenerationConfig { temperature, top_k, ..Default::default() };
        assert_eq!(top_k(with(Some(0.7), None)), 50);
        assert_eq!(top_k(with(Some(0.7), Some(0))), 0);
        assert_eq!(top_k(with(None, None)), 0);
    }

    #[test]
    fn prompts_of_a_batch_draw_their_own_numbers() {
        let config = GenerationConfig { seed: Some(5), ..Default::default() };
        assert_eq!(request(&config, 0).sampling.seed, 5);
        assert_eq!(request(&config, 3).sampling.seed, 8);
        let several = GenerationConfig { num_return_sequences: Some(4), ..config };
        assert_eq!(request(&several, 3).sampling.seed, 17);
    }

    #[test]
    fn contradictions_name_their_field() {
        let config = GenerationConfig::default;
        let bad = [
            ("num_return_sequences", GenerationConfig { num_return_sequences: Some(2), ..config() }),
            (
                "num_return_sequences",
                GenerationConfig { num_return_sequences: Some(3), num_beams: Some(2), ..config() },
            ),
            ("num_beams", GenerationConfig { num_beams: Some(0), ..config() }),
            (
                "min_new_tokens",
                GenerationConfig { min_new_tokens: Some(9), max_new_tokens: Some(3), ..config() },
            ),
            ("min_length", GenerationConfig { min_length: Some(9), max_length: Some(3), ..config() }),
            ("max_time", GenerationConfig { max_time: Some(-1.0), ..config() }),
            ("stop_strings", GenerationConfig { stop_strings: Some(vec![String::new()]), ..config() }),
            (
                "num_assistant_tokens_schedule",
                GenerationConfig { num_assistant_tokens_schedule: Some("fast".into()), ..config() },
            ),
        ];
        for (field, config) in bad {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
        let short = GenerationConfig { max_length: Some(2), ..config() };
        let message = short.validate_prompt(3).unwrap_err().to_string();
        assert!(message.starts_with("max_length: 2"), "{message}");
        assert_eq!(request(&GenerationConfig { max_length: Some(9), ..config() }, 0).max_new_tokens, Some(8));
    }
}
