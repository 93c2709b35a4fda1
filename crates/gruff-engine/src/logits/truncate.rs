//! Temperature, and which of the likely tokens stay in the draw.

use gruff_kernels::sampling::uniform;
use serde::{Deserialize, Serialize};

use super::spread::{alive, descending, keep_only, largest, leading, log_softmax, nth_largest, retain};
use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Divides the logits.
#[derive(Clone, Debug)]
pub struct Temperature(pub f32);

/// Divides by the temperature; what overflows stays the largest or smallest finite number.
fn divide(logits: &mut [f32], temperature: f64) {
    for logit in logits.iter_mut().filter(|logit| logit.is_finite()) {
        *logit = ((f64::from(*logit) / temperature) as f32).clamp(f32::MIN, f32::MAX);
    }
}

impl LogitsProcessor for Temperature {
    fn name(&self) -> &str {
        "temperature"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        divide(logits, f64::from(self.0));
        Ok(())
    }
}

/// How far a dynamic temperature may lie from the given one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DynamicTemperatureRange {
    /// The temperature lies between `temperature - range` (at least 0) and `temperature + range`.
    pub range: f32,
    /// Bends the way from the normalised entropy to the temperature.
    pub exponent: f32,
}

/// A temperature that follows the entropy: low where the model is sure, high where it is not (llama.cpp's
/// `dynatemp`): `low + (high - low) * (H / ln n)^exponent` with entropy H of the n tokens in the draw.
#[derive(Clone, Debug)]
pub struct DynamicTemperature {
    /// The temperature in the middle.
    pub temperature: f32,
    /// How it varies.
    pub range: DynamicTemperatureRange,
}

/// Below this a temperature only takes the largest logit, and dividing by it would overflow.
const LEAST_TEMPERATURE: f64 = 1e-6;

impl LogitsProcessor for DynamicTemperature {
    fn name(&self) -> &str {
        "dynamic_temperature"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        let count = logits.iter().filter(|x| alive(**x)).count();
        if count < 2 {
            return Ok(());
        }
        let entropy: f64 = -logs.iter().filter(|log| log.is_finite()).map(|log| log.exp() * log).sum::<f64>();
        let (middle, range) = (f64::from(self.temperature), f64::from(self.range.range));
        let (low, high) = ((middle - range).max(0.0), middle + range);
        let share = (entropy / (count as f64).ln()).clamp(0.0, 1.0);
        let temperature = low + (high - low) * share.powf(f64::from(self.range.exponent));
        divide(logits, temperature.max(LEAST_TEMPERATURE));
        Ok(())
    }
}

/// Keeps the k most likely tokens, and those as likely as the last of them.
#[derive(Clone, Debug)]
pub struct TopK {
    /// Tokens kept.
    pub k: usize,
}

impl LogitsProcessor for TopK {
    fn name(&self) -> &str {
        "top_k"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if self.k < logits.len()
            && let Some(least) = nth_largest(logits, self.k)
        {
            retain(logits, |_, logit| logit >= least);
        }
        Ok(())
    }
}

/// Keeps the smallest set of most likely tokens whose probability reaches p (arXiv:1904.09751).
#[derive(Clone, Debug)]
pub struct TopP {
    /// The probability.
    pub p: f32,
    /// Tokens kept at least.
    pub min_tokens_to_keep: usize,
}

impl LogitsProcessor for TopP {
    fn name(&self) -> &str {
        "top_p"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        let wanted = f64::from(self.p);
        let kept = leading(logits, |sorted| {
            let mut mass = 0.0;
            let count = sorted
                .iter()
                .take_while(|id| {
                    let before = mass;
                    mass += logs[**id as usize].exp();
                    before < wanted
                })
                .count();
            let kept = count.max(self.min_tokens_to_keep);
            (count < sorted.len() && kept <= sorted.len()).then_some(kept)
        });
        keep_only(logits, &kept);
        Ok(())
    }
}

/// Keeps tokens at least `p` times as likely as the most likely one (arXiv:2407.01082).
#[derive(Clone, Debug)]
pub struct MinP {
    /// The share.
    pub p: f32,
    /// Tokens kept at least.
    pub min_tokens_to_keep: usize,
}

impl LogitsProcessor for MinP {
    fn name(&self) -> &str {
        "min_p"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let Some(most) = largest(logits) else { return Ok(()) };
        if self.p <= 0.0 || most == f32::INFINITY {
            return Ok(());
        }
        let bound = f64::from(most) + f64::from(self.p).ln();
        let always = nth_largest(logits, self.min_tokens_to_keep).unwrap_or(most);
        retain(logits, |_, logit| f64::from(logit) >= bound || logit >= always);
        Ok(())
    }
}

/// Keeps tokens within n standard deviations of the largest logit (arXiv:2411.07641).
#[derive(Clone, Debug)]
pub struct TopNSigma(pub f32);

impl LogitsProcessor for TopNSigma {
    fn name(&self) -> &str {
        "top_n_sigma"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let Some(most) = largest(logits) else { return Ok(()) };
        let in_draw = || logits.iter().filter(|x| alive(**x)).map(|x| f64::from(*x));
        let count = in_draw().count() as f64;
        let mean = in_draw().sum::<f64>() / count;
        let deviation = (in_draw().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
        let bound = f64::from(most) - f64::from(self.0) * deviation;
        if bound.is_finite() {
            retain(logits, |_, logit| f64::from(logit) >= bound);
        }
        Ok(())
    }
}

/// Exclude top choices: what is taken out, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Xtc {
    /// Probability that a token is drawn this way.
    pub probability: f32,
    /// Tokens at least this likely are taken out, except the least likely of them; above 0.5 there is never a second.
    pub threshold: f32,
}

/// Now and then takes out all likely tokens but the least likely of them, for less worn words (oobabooga/text-generation-webui
/// pull request 6335).
#[derive(Clone, Debug)]
pub struct XtcSampler(pub Xtc);

/// Tells the random numbers of this processor from those of the draw.
const XTC_STREAM: u64 = 0x5854_4321_7e3a_91c5;

impl LogitsProcessor for XtcSampler {
    fn name(&self) -> &str {
        "xtc"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let chance = uniform(context.seed ^ XTC_STREAM, context.tokens.len() as u64);
        if chance >= f64::from(self.0.probability) {
            return Ok(());
        }
        let logs = log_softmax(logits);
        let least = f64::from(self.0.threshold).ln();
        let likely: Vec<u32> = descending_above(logits, &logs, least);
        if let Some((_, others)) = likely.split_last() {
            super::mask(logits, others);
        }
        Ok(())
    }
}

fn descending_above(logits: &[f32], logs: &[f64], least: f64) -> Vec<u32> {
    // At most 1 / threshold tokens are so likely: only they are sorted.
    let mut ids: Vec<u32> = (0..logs.len() as u32).filter(|id| logs[*id as usize] >= least).collect();
    ids.sort_unstable_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    ids
}

/// The most likely tokens of a row, most likely first, with the logarithms of their probabilities.
pub(crate) fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let logs = log_softmax(logits);
    let ids = if count < 512 {
        leading(logits, |sorted| (sorted.len() >= count).then_some(count))
    } else {
        let mut ids = descending(logits);
        ids.truncate(count);
        ids
    };
    ids.into_iter().map(|id| (id, logs[id as usize] as f32)).collect()
}
