//! How tokens are chosen: flags, and the generation parameters that they become.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use gruff::logits::{Dry, Mirostat, MirostatVersion, Xtc};
use gruff::{Constraint, GenerationConfig};
use serde_json::Value;

use crate::args::read_file;

/// How tokens are chosen. What is not given comes from the checkpoint's recommendations.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: what the checkpoint recommends, else greedy)")]
pub(super) struct SamplingArgs {
    /// Tokens generated at most
    #[arg(short = 'n', long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    max_new_tokens: Option<usize>,
    /// 0 takes the most likely token; higher is more varied
    #[arg(long, value_name = "T", value_parser = non_negative, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default when sampling: 50]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Keep the smallest set of tokens whose probability reaches P
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Keep the most typical tokens of mass P
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true)]
    typical_p: Option<f32>,
    /// Keep tokens within N standard deviations of the largest logit
    #[arg(long, value_name = "N", value_parser = non_negative, allow_negative_numbers = true)]
    top_n_sigma: Option<f32>,
    /// Leave out the most likely tokens with probability P
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    xtc_probability: Option<f32>,
    /// Tokens at least this likely may be left out
    #[arg(long, value_name = "P", value_parser = positive_share, requires = "xtc_probability")]
    xtc_threshold: Option<f32>,
    /// Hold the surprise of the text near a target, by Mirostat 1 or 2
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    mirostat: Option<u8>,
    /// Surprise that Mirostat holds, in bits
    #[arg(long, value_name = "BITS", value_parser = non_negative, default_value_t = 5.0)]
    mirostat_tau: f32,
    /// How fast Mirostat corrects
    #[arg(long, value_name = "N", value_parser = non_negative, default_value_t = 0.1)]
    mirostat_eta: f32,
    /// Divide the logits of tokens seen so far by R; 1 changes nothing
    #[arg(long, value_name = "R", value_parser = positive, allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Take N off the logits of tokens that occur in the answer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Take N off the logits of tokens for each time they occur in the answer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Penalize repetitions by N times a power of their length (DRY)
    #[arg(long, value_name = "N", value_parser = non_negative, allow_negative_numbers = true)]
    dry_multiplier: Option<f32>,
    /// No N tokens in a row occur twice
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    no_repeat_ngram_size: Option<usize>,
    /// The answer has at least so many tokens
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min_new_tokens: Option<usize>,
    /// Seed of the random numbers [default: a new one each time]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Seconds after which the answer ends
    #[arg(long, value_name = "SECONDS")]
    max_time: Option<f64>,
    /// Search with N beams
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    num_beams: Option<usize>,
    /// Draft up to N tokens from the text itself; changes the speed alone
    #[arg(long, value_name = "N")]
    prompt_lookup_num_tokens: Option<usize>,
    /// Generation parameters as transformers writes them: a JSON object, or a file with one; flags go first
    #[arg(long, value_name = "JSON|FILE")]
    generation_config: Option<String>,
    #[command(flatten)]
    constraint: ConstraintArgs,
}

/// What the answer must be.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
struct ConstraintArgs {
    /// The answer is JSON of this schema: the schema, or a file with it
    #[arg(long, value_name = "JSON|FILE")]
    json_schema: Option<String>,
    /// The answer is a text that this regular expression matches
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// The answer follows the GBNF grammar in this file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// The answer follows the Lark grammar in this file
    #[arg(long, value_name = "FILE")]
    lark_file: Option<PathBuf>,
}

/// XTC's threshold unless given, as in llama.cpp.
const XTC_THRESHOLD: f32 = 0.1;

impl SamplingArgs {
    /// The parameters that the flags give.
    pub(super) fn config(&self, deterministic: bool) -> anyhow::Result<GenerationConfig> {
        let version = |number| if number == 1 { MirostatVersion::V1 } else { MirostatVersion::V2 };
        let (tau, eta) = (self.mirostat_tau, self.mirostat_eta);
        let threshold = self.xtc_threshold.unwrap_or(XTC_THRESHOLD);
        let own = GenerationConfig {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc: self.xtc_probability.map(|probability| Xtc { probability, threshold }),
            mirostat: self.mirostat.map(|number| Mirostat { version: version(number), tau, eta }),
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry: self.dry_multiplier.map(|multiplier| Dry { multiplier, ..Dry::default() }),
            no_repeat_ngram_size: self.no_repeat_ngram_size,
            min_new_tokens: self.min_new_tokens,
            seed: self.seed,
            stop_strings: (!self.stop.is_empty()).then(|| self.stop.clone()),
            max_time: self.max_time,
            num_beams: self.num_beams,
            prompt_lookup_num_tokens: self.prompt_lookup_num_tokens,
            constraint: self.constraint.constraint()?,
            ..GenerationConfig::default()
        };
        let mut config = match &self.generation_config {
            Some(given) => {
                let value = json_or_file(given).context("--generation-config")?;
                own.or(&GenerationConfig::from_json(&value).context("--generation-config")?)
            }
            None => own,
        };
        config.seed = Some(config.seed.unwrap_or_else(|| if deterministic { 0 } else { fresh_seed() }));
        Ok(config)
    }
}

impl ConstraintArgs {
    fn constraint(&self) -> anyhow::Result<Option<Constraint>> {
        Ok(if let Some(schema) = &self.json_schema {
            Some(Constraint::json_schema(json_or_file(schema).context("--json-schema")?))
        } else if let Some(regex) = &self.regex {
            Some(Constraint::Regex(regex.clone()))
        } else if let Some(path) = &self.grammar_file {
            Some(Constraint::Gbnf(read_file(path)?))
        } else if let Some(path) = &self.lark_file {
            Some(Constraint::Lark(read_file(path)?))
        } else {
            None
        })
    }
}

/// JSON as it is given, or of the file that is named.
fn json_or_file(given: &str) -> anyhow::Result<Value> {
    let text = match given.trim_start().starts_with(['{', '[']) {
        true => given.to_owned(),
        false => read_file(given.as_ref())?,
    };
    serde_json::from_str(&text).context("it is no JSON")
}

fn fresh_seed() -> u64 {
    // The standard library seeds its hash maps from the system.
    std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "give a whole number above 0".to_owned())
}

fn number(text: &str, allowed: impl Fn(f32) -> bool, wanted: &str) -> Result<f32, String> {
    text.parse().ok().filter(|n: &f32| n.is_finite() && allowed(*n)).ok_or_else(|| format!("give {wanted}"))
}

fn non_negative(text: &str) -> Result<f32, String> {
    number(text, |n| n >= 0.0, "0 or a number above it")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0, "a number above 0")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "a number from 0 to 1")
}

fn positive_share(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0 && n <= 1.0, "a number above 0 and at most 1")
}
