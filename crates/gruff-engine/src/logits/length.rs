//! Rules about how an answer begins and how long it is.

use super::{LogitsProcessor, TokenContext, force, mask};
use crate::Result;

/// No end before the sequence, prompt included, has so many tokens.
#[derive(Clone, Debug)]
pub struct MinLength(pub usize);

impl LogitsProcessor for MinLength {
    fn name(&self) -> &str {
        "min_length"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.tokens.len() < self.0 {
            mask(logits, context.end_tokens);
        }
        Ok(())
    }
}

/// No end before the answer has so many tokens.
#[derive(Clone, Debug)]
pub struct MinNewTokens(pub usize);

impl LogitsProcessor for MinNewTokens {
    fn name(&self) -> &str {
        "min_new_tokens"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.new_tokens().len() < self.0 {
            mask(logits, context.end_tokens);
        }
        Ok(())
    }
}

/// This token after a prompt of one token.
#[derive(Clone, Debug)]
pub struct ForcedBosToken(pub u32);

impl LogitsProcessor for ForcedBosToken {
    fn name(&self) -> &str {
        "forced_bos_token_id"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.tokens.len() == 1 {
            force(logits, &[self.0]);
        }
        Ok(())
    }
}

/// One of these tokens where the length ends the answer.
#[derive(Clone, Debug)]
pub struct ForcedEosToken(pub Vec<u32>);

impl LogitsProcessor for ForcedEosToken {
    fn name(&self) -> &str {
        "forced_eos_token_id"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.tokens.len() + 1 == context.max_length {
            force(logits, &self.0);
        }
        Ok(())
    }
}

/// From `start` tokens of the answer on, end tokens gain `|logit| * (factor^n - 1)` at the n-th token after it.
#[derive(Clone, Debug)]
pub struct ExponentialDecayLengthPenalty {
    /// Tokens of the answer without a penalty.
    pub start: usize,
    /// Its base.
    pub factor: f32,
}

impl LogitsProcessor for ExponentialDecayLengthPenalty {
    fn name(&self) -> &str {
        "exponential_decay_length_penalty"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let over = context.new_tokens().len().saturating_sub(self.start);
        if over == 0 {
            return Ok(());
        }
        let gain = f64::from(self.factor).powi(i32::try_from(over).unwrap_or(i32::MAX)) - 1.0;
        for id in context.end_tokens {
            if let Some(logit) = logits.get_mut(*id as usize).filter(|logit| logit.is_finite()) {
                let raised = f64::from(*logit) + f64::from(logit.abs()) * gain;
                // An answer that is far too long must end, not fail.
                *logit = if raised.is_nan() { *logit } else { (raised as f32).clamp(f32::MIN, f32::MAX) };
            }
        }
        Ok(())
    }
}
