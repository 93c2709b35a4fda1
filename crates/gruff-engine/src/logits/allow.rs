//! Lists of tokens that may be said, or not.

use std::fmt;
use std::sync::Arc;

use super::{LogitsProcessor, TokenContext, mask};
use crate::Result;
use crate::error::refuse;

/// These tokens never.
#[derive(Clone, Debug)]
pub struct SuppressTokens(pub Vec<u32>);

impl LogitsProcessor for SuppressTokens {
    fn name(&self) -> &str {
        "suppress_tokens"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        mask(logits, &self.0);
        Ok(())
    }
}

/// These tokens not as the answer's first.
#[derive(Clone, Debug)]
pub struct BeginSuppressTokens {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Length of the sequence at which they are ruled out.
    pub begin: usize,
}

impl LogitsProcessor for BeginSuppressTokens {
    fn name(&self) -> &str {
        "begin_suppress_tokens"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if context.tokens.len() == self.begin {
            mask(logits, &self.ids);
        }
        Ok(())
    }
}

/// What a function allows after the tokens so far (transformers' `prefix_allowed_tokens_fn`).
#[derive(Clone)]
pub struct PrefixAllowedTokens(Arc<AllowedFn>);

type AllowedFn = dyn Fn(&[u32]) -> Vec<u32> + Send + Sync;

impl PrefixAllowedTokens {
    /// Of a function from prompt and answer so far to the tokens that may follow.
    pub fn new(allowed: impl Fn(&[u32]) -> Vec<u32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(allowed))
    }
}

impl PartialEq for PrefixAllowedTokens {
    /// Whether both are copies of one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for PrefixAllowedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixAllowedTokens")
    }
}

impl LogitsProcessor for PrefixAllowedTokens {
    fn name(&self) -> &str {
        "prefix_allowed_tokens_fn"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        let mut allowed = (self.0)(context.tokens);
        allowed.retain(|id| (*id as usize) < logits.len());
        if allowed.is_empty() {
            return refuse(
                "prefix_allowed_tokens_fn",
                format!(
                    "it allows no token of the vocabulary at position {}; let it return at least one",
                    context.tokens.len()
                ),
            );
        }
        allowed.sort_unstable();
        allowed.dedup();
        let kept: Vec<f32> = allowed.iter().map(|id| logits[*id as usize]).collect();
        // Where the others have ruled out all that is allowed, the constraint holds against them.
        let none = kept.iter().all(|logit| *logit == f32::NEG_INFINITY);
        logits.fill(f32::NEG_INFINITY);
        for (id, logit) in allowed.into_iter().zip(kept) {
            logits[id as usize] = if none { 0.0 } else { logit };
        }
        Ok(())
    }
}
