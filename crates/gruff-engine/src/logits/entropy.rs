//! Processors that choose by entropy.

use super::spread::{alive, keep_only, log_softmax, nth_largest, retain};
use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Keeps the most likely tokens whose share of the entropy stays within `h` of the whole (arXiv:2509.02510).
#[derive(Clone, Debug)]
pub struct TopH(pub f32);

/// transformers looks at so many of the most likely tokens.
const TOP_H_TOKENS: usize = 100;

impl LogitsProcessor for TopH {
    fn name(&self) -> &str {
        "top_h"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let ids =
            super::spread::leading(logits, |sorted| (sorted.len() >= TOP_H_TOKENS).then_some(TOP_H_TOKENS));
        let top: Vec<f32> = ids.iter().map(|id| logits[*id as usize]).collect();
        let logs = log_softmax(&top);
        let parts: Vec<f64> =
            logs.iter().map(|log| if log.is_finite() { -log.exp() * log } else { 0.0 }).collect();
        let bound = f64::from(self.0) * parts.iter().sum::<f64>();
        let mut sum = 0.0;
        let count = parts
            .iter()
            .take_while(|part| {
                sum += **part;
                sum <= bound
            })
            .count();
        keep_only(logits, &ids[..count.max(1).min(ids.len())]);
        Ok(())
    }
}

/// Keeps the tokens whose surprise is nearest to the entropy, until they hold this mass (arXiv:2202.00666).
#[derive(Clone, Debug)]
pub struct TypicalP {
    /// The mass.
    pub mass: f32,
    /// Tokens kept at least.
    pub min_tokens_to_keep: usize,
}

impl LogitsProcessor for TypicalP {
    fn name(&self) -> &str {
        "typical_p"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        let entropy: f64 = -logs.iter().filter(|log| log.is_finite()).map(|log| log.exp() * log).sum::<f64>();
        let distance = |id: &u32| (-logs[*id as usize] - entropy).abs();
        let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| alive(logits[*id as usize])).collect();
        ids.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let mut mass = 0.0;
        let count = ids
            .iter()
            .take_while(|id| {
                mass += logs[**id as usize].exp();
                mass < f64::from(self.mass)
            })
            .count();
        // The token that reaches the mass is kept, and those as far from the entropy as it.
        let Some(last) = ids.get(count).or(ids.last()).map(distance) else { return Ok(()) };
        let kept = ids.iter().take_while(|id| distance(id) <= last).count();
        keep_only(logits, &ids[..kept.max(self.min_tokens_to_keep).min(ids.len())]);
        Ok(())
    }
}

/// Keeps what is at least as likely as `bound`, and the `least` most likely tokens in any case.
fn keep_likely(logits: &mut [f32], logs: &[f64], bound: f64, least: usize) {
    let always = nth_largest(logits, least).unwrap_or(f32::INFINITY);
    retain(logits, |id, logit| logs[id].exp() >= bound || logit >= always);
}

/// Keeps tokens at least this likely (arXiv:2210.15191).
#[derive(Clone, Debug)]
pub struct EpsilonCutoff {
    /// The probability.
    pub epsilon: f32,
    /// Tokens kept at least.
    pub min_tokens_to_keep: usize,
}

impl LogitsProcessor for EpsilonCutoff {
    fn name(&self) -> &str {
        "epsilon_cutoff"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        keep_likely(logits, &logs, f64::from(self.epsilon), self.min_tokens_to_keep);
        Ok(())
    }
}

/// Keeps tokens at least as likely as `min(epsilon, sqrt(epsilon) * exp(-entropy))` (arXiv:2210.15191).
#[derive(Clone, Debug)]
pub struct EtaCutoff {
    /// The probability.
    pub epsilon: f32,
    /// Tokens kept at least.
    pub min_tokens_to_keep: usize,
}

impl LogitsProcessor for EtaCutoff {
    fn name(&self) -> &str {
        "eta_cutoff"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let logs = log_softmax(logits);
        let entropy: f64 = -logs.iter().filter(|log| log.is_finite()).map(|log| log.exp() * log).sum::<f64>();
        let epsilon = f64::from(self.epsilon);
        let bound = epsilon.min(epsilon.sqrt() * (-entropy).exp());
        keep_likely(logits, &logs, bound, self.min_tokens_to_keep);
        Ok(())
    }
}
