//! Mirostat: a truncation that holds the surprise of the text near a target (arXiv:2007.14966).

use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};

use super::spread::{keep_only, leading, log_softmax};
use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Which way the truncation is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MirostatVersion {
    /// By an estimate of the exponent of Zipf's law from the 100 most likely tokens.
    V1,
    /// By the surprise itself.
    V2,
}

/// Parameters of Mirostat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mirostat {
    /// Which way.
    pub version: MirostatVersion,
    /// Surprise to hold, in bits.
    pub tau: f32,
    /// How fast it is corrected.
    pub eta: f32,
}

/// Tokens that version 1 estimates from.
const ESTIMATED_FROM: usize = 100;

/// [`Mirostat`] at work: `mu` starts at twice the target and follows the surprise of each token that was drawn.
#[derive(Clone, Debug)]
pub struct MirostatSampler {
    params: Mirostat,
    mu: f64,
    /// The last distribution that a token was drawn from: ids and logarithms of probabilities.
    last: Option<(usize, Vec<(u32, f64)>)>,
}

impl MirostatSampler {
    /// For a new sequence.
    pub fn new(params: Mirostat) -> Self {
        Self { params, mu: 2.0 * f64::from(params.tau), last: None }
    }

    /// Learns from the token that was drawn from the last distribution.
    fn follow(&mut self, tokens: &[u32]) {
        let Some((len, last)) = self.last.take() else { return };
        let Some(drawn) = tokens.get(len) else { return };
        if let Some((_, log)) = last.iter().find(|(id, _)| id == drawn) {
            let surprise = -log / LN_2;
            self.mu -= f64::from(self.params.eta) * (surprise - f64::from(self.params.tau));
        }
    }

    /// How many tokens version 1 keeps.
    fn estimated(&self, sorted: &[f64], vocabulary: usize) -> usize {
        let (mut upper, mut lower) = (0.0, 0.0);
        for (index, pair) in sorted.windows(2).take(ESTIMATED_FROM - 1).enumerate() {
            let step = ((index + 2) as f64 / (index + 1) as f64).ln();
            upper += step * (pair[0] - pair[1]);
            lower += step * step;
        }
        let exponent = upper / lower;
        let epsilon = exponent - 1.0;
        let k =
            ((epsilon * self.mu.exp2()) / (1.0 - (vocabulary as f64).powf(-epsilon))).powf(1.0 / exponent);
        // The cast takes NaN to 0 and what is too large to the largest number.
        (k as usize).max(1)
    }
}

impl LogitsProcessor for MirostatSampler {
    fn name(&self) -> &str {
        "mirostat"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        self.follow(context.tokens);
        let logs = log_softmax(logits);
        let vocabulary = logits.len();
        let kept = match self.params.version {
            MirostatVersion::V1 => {
                let top =
                    leading(logits, |sorted| (sorted.len() >= ESTIMATED_FROM).then_some(ESTIMATED_FROM));
                let sorted: Vec<f64> = top.iter().map(|id| logs[*id as usize]).collect();
                let count = self.estimated(&sorted, vocabulary);
                leading(logits, |sorted| (sorted.len() >= count).then_some(count))
            }
            MirostatVersion::V2 => leading(logits, |sorted| {
                let surprising = |id: &&u32| -logs[**id as usize] / LN_2 <= self.mu;
                let count = sorted.iter().take_while(surprising).count();
                (count < sorted.len() && !sorted.is_empty()).then_some(count.max(1))
            }),
        };
        keep_only(logits, &kept);
        let kept_logs = log_softmax(logits);
        let last = kept.iter().map(|id| (*id, kept_logs[*id as usize])).collect();
        self.last = Some((context.tokens.len(), last));
        Ok(())
    }
}
