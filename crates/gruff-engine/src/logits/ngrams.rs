//! Sequences of tokens that may occur only once.

use super::{LogitsProcessor, TokenContext, mask};
use crate::Result;

/// No n tokens in a row occur twice, prompt included.
#[derive(Clone, Debug)]
pub struct NoRepeatNGram(pub usize);

/// Rules out what followed the last `size - 1` tokens of `tokens` wherever they stand in `text`.
fn ban(logits: &mut [f32], tokens: &[u32], text: &[u32], size: usize) {
    let Some(start) = (tokens.len() + 1).checked_sub(size) else { return };
    let Some(prefix) = tokens.get(start..) else { return };
    for window in text.windows(size) {
        if let Some((last, before)) = window.split_last()
            && before == prefix
        {
            mask(logits, &[*last]);
        }
    }
}

impl LogitsProcessor for NoRepeatNGram {
    fn name(&self) -> &str {
        "no_repeat_ngram_size"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        ban(logits, context.tokens, context.tokens, self.0);
        Ok(())
    }
}

/// No n tokens in a row of the prompt occur in the answer.
#[derive(Clone, Debug)]
pub struct EncoderNoRepeatNGram(pub usize);

impl LogitsProcessor for EncoderNoRepeatNGram {
    fn name(&self) -> &str {
        "encoder_no_repeat_ngram_size"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        ban(logits, context.tokens, context.prompt(), self.0);
        Ok(())
    }
}
