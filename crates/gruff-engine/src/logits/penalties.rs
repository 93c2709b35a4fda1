//! Penalties on tokens that were said before.

use super::{LogitsProcessor, TokenContext};
use crate::Result;

/// Divides the positive and multiplies the negative logits of every token seen (arXiv:1909.05858).
#[derive(Clone, Debug)]
pub struct RepetitionPenalty(pub f32);

fn penalize(logits: &mut [f32], ids: &[u32], penalty: f32) {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
}

impl LogitsProcessor for RepetitionPenalty {
    fn name(&self) -> &str {
        "repetition_penalty"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        penalize(logits, context.tokens, self.0);
        Ok(())
    }
}

/// The inverse of [`RepetitionPenalty`] on the prompt's tokens: above 1 it draws the answer to them.
#[derive(Clone, Debug)]
pub struct EncoderRepetitionPenalty(pub f32);

impl LogitsProcessor for EncoderRepetitionPenalty {
    fn name(&self) -> &str {
        "encoder_repetition_penalty"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        penalize(logits, context.prompt(), 1.0 / self.0);
        Ok(())
    }
}

/// OpenAI's presence and frequency penalties, on tokens of the answer:
/// `logit -= presence + frequency * occurrences`.
#[derive(Clone, Debug)]
pub struct OccurrencePenalty {
    /// Taken off once a token has occurred.
    pub presence: f32,
    /// Taken off for each time it has occurred.
    pub frequency: f32,
}

impl LogitsProcessor for OccurrencePenalty {
    fn name(&self) -> &str {
        "presence_penalty and frequency_penalty"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let mut ids = context.new_tokens().to_vec();
        ids.sort_unstable();
        for run in ids.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(run[0] as usize) {
                *logit -= self.presence + self.frequency * run.len() as f32;
            }
        }
        Ok(())
    }
}
