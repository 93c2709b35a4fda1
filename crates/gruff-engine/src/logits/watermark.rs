//! A watermark: tokens of a list that the last tokens determine become more likely (arXiv:2301.10226, 2306.04634).
//!
//! Lists are the ones that transformers makes with a CPU generator of torch, so that its detector finds what gruff
//! wrote: a permutation of the vocabulary by Fisher and Yates with MT19937, seeded from the last token.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::spread::descending;
use super::{LogitsProcessor, TokenContext};
use crate::Result;
use crate::error::refuse;

/// What the green list depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeedingScheme {
    /// The last token.
    LeftHash,
    /// The last tokens and the candidate itself.
    SelfHash,
}

/// transformers' `WatermarkingConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatermarkConfig {
    /// Share of the vocabulary that is green.
    pub greenlist_ratio: f32,
    /// Added to the logits of green tokens.
    pub bias: f32,
    /// The secret.
    pub hashing_key: u64,
    /// What the green list depends on.
    pub seeding_scheme: SeedingScheme,
    /// Tokens that [`SeedingScheme::SelfHash`] looks back at.
    pub context_width: usize,
}

impl Default for WatermarkConfig {
    fn default() -> Self {
        Self {
            greenlist_ratio: 0.25,
            bias: 2.0,
            hashing_key: 15_485_863,
            seeding_scheme: SeedingScheme::LeftHash,
            context_width: 1,
        }
    }
}

impl WatermarkConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        if !(self.greenlist_ratio > 0.0 && self.greenlist_ratio < 1.0) {
            return refuse(
                "watermarking_config.greenlist_ratio",
                format!("{} must be between 0 and 1, exclusively", self.greenlist_ratio),
            );
        }
        if !self.bias.is_finite() {
            return refuse("watermarking_config.bias", format!("{} must be a finite number", self.bias));
        }
        if self.context_width == 0 {
            return refuse("watermarking_config.context_width", "0 must be at least 1");
        }
        Ok(())
    }
}

/// [`WatermarkConfig`] at work.
#[derive(Clone, Debug)]
pub struct Watermark {
    config: WatermarkConfig,
    /// A fixed permutation that tokens are hashed by; empty where none is needed.
    table: Arc<Vec<u32>>,
}

/// Entries of the hash table, a prime.
const TABLE: usize = 1_000_003;

/// Candidates that the self-hash looks at.
const CANDIDATES: usize = 40;

impl Watermark {
    /// For a new sequence.
    pub fn new(config: WatermarkConfig) -> Self {
        let table = match config.seeding_scheme {
            SeedingScheme::LeftHash => Vec::new(),
            SeedingScheme::SelfHash => Mt19937::new(config.hashing_key).permutation(TABLE, TABLE),
        };
        Self { config, table: Arc::new(table) }
    }

    /// The green tokens after these.
    fn green(&self, tokens: &[u32], vocabulary: usize) -> Vec<u32> {
        let tokens = &tokens[tokens.len().saturating_sub(self.config.context_width)..];
        let Some(last) = tokens.last() else { return Vec::new() };
        let hash = |id: u32| u64::from(self.table[id as usize % TABLE]) + 1;
        let product = match self.config.seeding_scheme {
            SeedingScheme::LeftHash => i128::from(self.config.hashing_key) * i128::from(*last),
            // torch multiplies and compares in i64.
            SeedingScheme::SelfHash => {
                let hashed = |id: &u32| {
                    self.config.hashing_key.wrapping_mul(hash(*id)).wrapping_mul(hash(*last)) as i64
                };
                i128::from(tokens.iter().map(hashed).min().unwrap_or_default())
            }
        };
        let seed = product.rem_euclid(i128::from(u64::MAX)) as u64;
        let size = (vocabulary as f64 * f64::from(self.config.greenlist_ratio)) as usize;
        Mt19937::new(seed).permutation(vocabulary, size)
    }
}

impl LogitsProcessor for Watermark {
    fn name(&self) -> &str {
        "watermarking_config"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.tokens.len() < self.config.context_width {
            return Ok(());
        }
        let green = match self.config.seeding_scheme {
            SeedingScheme::LeftHash => self.green(context.tokens, logits.len()),
            SeedingScheme::SelfHash => {
                let mut tokens = context.tokens.to_vec();
                let mut green = descending(logits);
                green.truncate(CANDIDATES);
                green.retain(|id| {
                    tokens.push(*id);
                    let own = self.green(&tokens, logits.len()).contains(id);
                    tokens.pop();
                    own
                });
                green
            }
        };
        for id in green {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += self.config.bias;
            }
        }
        Ok(())
    }
}

/// The Mersenne Twister of 32 bits (Matsumoto and Nishimura, 1998), as torch's CPU generator uses it.
struct Mt19937 {
    state: [u32; Self::N],
    next: usize,
}

impl Mt19937 {
    const N: usize = 624;
    const M: usize = 397;

    /// Of the low half of a seed.
    fn new(seed: u64) -> Self {
        let mut state = [0u32; Self::N];
        state[0] = seed as u32;
        for i in 1..Self::N {
            let before = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] = before.wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: Self::N }
    }

    fn draw(&mut self) -> u32 {
        if self.next == Self::N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..Self::N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % Self::N] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + Self::M) % Self::N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// The first `count` of a random permutation of `0..len`, as `torch.randperm` draws it.
    fn permutation(mut self, len: usize, count: usize) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..len as u32).collect();
        for i in 0..count.min(len.saturating_sub(1)) {
            let other = i + self.draw() as usize % (len - i);
            numbers.swap(i, other);
        }
        numbers.truncate(count);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // The first and the ten thousandth number of the reference implementation with its default seed.
        let mut generator = Mt19937::new(5489);
        assert_eq!(generator.draw(), 3_499_211_612);
        let last = (0..9_999).map(|_| generator.draw()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
