//! Biases on tokens and on sequences of them.

use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Adds a bias to the last token of a sequence, where the tokens before it are the sequence's beginning.
#[derive(Clone, Debug)]
pub struct SequenceBias(pub Vec<(Vec<u32>, f32)>);

fn add(biases: &[(Vec<u32>, f32)], context: &TokenContext<'_>, logits: &mut [f32]) {
    for (sequence, bias) in biases {
        let Some((last, prefix)) = sequence.split_last() else { continue };
        if context.tokens.ends_with(prefix)
            && let Some(logit) = logits.get_mut(*last as usize)
        {
            let sum = *logit + bias;
            // Opposite infinities: ruled out stays ruled out.
            *logit = if sum.is_nan() && !logit.is_nan() { f32::NEG_INFINITY } else { sum };
        }
    }
}

impl LogitsProcessor for SequenceBias {
    fn name(&self) -> &str {
        "sequence_bias"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        add(&self.0, context, logits);
        Ok(())
    }
}

/// Rules out sequences of tokens. An end token alone cannot be ruled out this way, as in transformers.
#[derive(Clone, Debug)]
pub struct BadWords(Vec<(Vec<u32>, f32)>);

impl BadWords {
    /// Of the words' ids.
    pub fn new(words: &[Vec<u32>], end_tokens: &[u32]) -> Self {
        let ends = |word: &[u32]| matches!(word, [id] if end_tokens.contains(id));
        let words = words.iter().filter(|word| !ends(word));
        Self(words.map(|word| (word.clone(), f32::NEG_INFINITY)).collect())
    }
}

impl LogitsProcessor for BadWords {
    fn name(&self) -> &str {
        "bad_words_ids"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        add(&self.0, context, logits);
        Ok(())
    }
}

/// OpenAI's `logit_bias`: a number added to a token's logit.
#[derive(Clone, Debug)]
pub struct LogitBias(pub Vec<(u32, f32)>);

impl LogitsProcessor for LogitBias {
    fn name(&self) -> &str {
        "logit_bias"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        for (id, bias) in &self.0 {
            if let Some(logit) = logits.get_mut(*id as usize) {
                let sum = *logit + bias;
                *logit = if sum.is_nan() && !logit.is_nan() { f32::NEG_INFINITY } else { sum };
            }
        }
        Ok(())
    }
}
