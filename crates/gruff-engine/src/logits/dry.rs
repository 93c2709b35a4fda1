//! Don't repeat yourself: a penalty that grows with the length of a repetition.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// How repetitions are penalized (oobabooga/text-generation-webui pull request 5677).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dry {
    /// The penalty of a token that continues a repetition of n tokens is `multiplier * base^(n - allowed_length)`.
    pub multiplier: f32,
    /// Its base, at least 1.
    pub base: f32,
    /// Repetitions shorter than this are free.
    pub allowed_length: usize,
    /// Tokens looked back at; `None` for all of them.
    pub penalty_last_n: Option<usize>,
    /// Sequences of tokens that no repetition is followed across: line ends, quotation marks.
    pub sequence_breakers: Vec<Vec<u32>>,
}

impl Default for Dry {
    /// llama.cpp's numbers, with a multiplier that has an effect.
    fn default() -> Self {
        Self {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: None,
            sequence_breakers: Vec::new(),
        }
    }
}

/// [`Dry`] at work.
#[derive(Clone, Debug)]
pub struct DryPenalty(pub Dry);

/// Logarithm of the largest f32: penalties beyond it would be infinite.
const LARGEST_LN: f32 = 88.722_84;

impl Dry {
    /// Tokens at the end of `tokens` that no breaker is among.
    fn unbroken(&self, tokens: &[u32]) -> usize {
        let breaks = |at: usize| {
            self.sequence_breakers.iter().filter(|b| !b.is_empty() && tokens[..at].ends_with(b)).count() > 0
        };
        (1..=tokens.len()).rev().find(|at| breaks(*at)).map_or(tokens.len(), |at| tokens.len() - at)
    }

    fn penalty(&self, length: usize) -> f32 {
        let most = if self.base > 1.000_001 { LARGEST_LN / self.base.ln() } else { 0.0 };
        let mut exponent = (length - self.allowed_length) as f32;
        if most > 0.0 {
            exponent = exponent.min(most.floor());
        }
        self.multiplier * self.base.powf(exponent)
    }
}

/// For each place in `tokens`, how many tokens before it equal the tokens at the end: the Z function of the reversed
/// tokens. Linear in their number.
fn suffix_matches(tokens: &[u32]) -> Vec<usize> {
    let len = tokens.len();
    let at = |index: usize| tokens[len - 1 - index];
    let mut lengths = vec![0; len];
    let (mut left, mut right) = (0, 0);
    for k in 1..len {
        let mut matched = if k < right { lengths[k - left].min(right - k) } else { 0 };
        while k + matched < len && at(matched) == at(k + matched) {
            matched += 1;
        }
        if k + matched > right {
            (left, right) = (k, k + matched);
        }
        lengths[k] = matched;
    }
    lengths
}

impl LogitsProcessor for DryPenalty {
    fn name(&self) -> &str {
        "dry"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let dry = &self.0;
        let start = dry.penalty_last_n.map_or(0, |last| context.tokens.len().saturating_sub(last));
        let tokens = &context.tokens[start..];
        if tokens.len() <= dry.allowed_length {
            return Ok(());
        }
        let most = dry.unbroken(tokens);
        if most < dry.allowed_length {
            return Ok(());
        }
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for (back, matched) in suffix_matches(tokens).into_iter().enumerate().skip(1) {
            let length = matched.min(most);
            if length >= dry.allowed_length {
                // The token behind the earlier occurrence: saying it continues the repetition.
                let next = tokens[tokens.len() - back];
                let entry = longest.entry(next).or_default();
                *entry = (*entry).max(length);
            }
        }
        for (id, length) in longest {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= dry.penalty(length);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_of_repetitions_are_those_of_the_definition() {
        let mut state = 1u32;
        for _ in 0..200 {
            let tokens: Vec<u32> = (0..30)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 30
                })
                .collect();
            let plain = |k: usize| (0..30 - k).take_while(|i| tokens[29 - i] == tokens[29 - k - i]).count();
            let expected: Vec<usize> = (0..30).map(|k| if k == 0 { 0 } else { plain(k) }).collect();
            assert_eq!(suffix_matches(&tokens), expected);
        }
    }
}
