//! What a forward pass is asked for besides logits, and what it gives.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use gruff_kernels::Tensor;

use crate::{Error, LoraScales, Result};

/// How attention is computed, as transformers' `attn_implementation` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AttnImplementation {
    /// The device's kernel; where attention weights are asked for, [`Eager`](Self::Eager) with a warning.
    #[default]
    Auto,
    /// Scores, softmax and sum one after the other, in plain code: slow, and has weights to show.
    Eager,
    /// The device's kernel, page by page with an online softmax, which never has the weights of a row together.
    Flash,
}

impl AttnImplementation {
    /// transformers' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Eager => "eager",
            Self::Flash => "flash",
        }
    }
}

impl fmt::Display for AttnImplementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AttnImplementation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Auto, Self::Eager, Self::Flash];
        all.into_iter()
            .find(|own| own.name() == name)
            .ok_or_else(|| Error::Attention(format!("{name:?} is not one; choose auto, eager or flash")))
    }
}

/// A model's choice, which may change between passes.
#[derive(Debug, Default)]
pub struct AttnChoice {
    choice: AtomicU8,
    /// How often it was changed.
    revision: AtomicU64,
}

impl AttnChoice {
    /// What is chosen now.
    pub fn get(&self) -> AttnImplementation {
        match self.choice.load(Ordering::Relaxed) {
            1 => AttnImplementation::Eager,
            2 => AttnImplementation::Flash,
            _ => AttnImplementation::Auto,
        }
    }

    /// Chooses for the passes to come.
    pub fn set(&self, attention: AttnImplementation) {
        if self.choice.swap(attention as u8, Ordering::Relaxed) != attention as u8 {
            self.revision.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }
}

/// What a forward pass is asked for besides logits.
#[derive(Clone, Debug, Default)]
pub struct ForwardOptions {
    /// The residual stream behind the embedding and every layer.
    pub output_hidden_states: bool,
    /// The last layer's output behind the final norm, for every token: what embeddings are made of. Hooks on
    /// `model.norm` then see every token, not only output rows.
    pub output_last_hidden_state: bool,
    /// The weights of every softmax attention.
    pub output_attentions: bool,
    /// How attention is computed; `None` for the model's own choice.
    pub attn_implementation: Option<AttnImplementation>,
    /// Scales of adapters, one set for each sequence of the step; `None` for the adapters' own scales.
    pub adapters: Option<Vec<LoraScales>>,
}

impl ForwardOptions {
    /// Whether they ask for logits only.
    pub fn is_plain(&self) -> bool {
        let Self { output_hidden_states, output_last_hidden_state, output_attentions, .. } = *self;
        !output_hidden_states
            && !output_last_hidden_state
            && !output_attentions
            && self.attn_implementation.is_none()
            && self.adapters.is_none()
    }
}

/// What a forward pass gives.
#[derive(Clone, Debug)]
pub struct ModelOutput {
    /// `[R, vocab_size]` f32: a row for each of the step's output rows.
    pub logits: Tensor,
    /// Where asked for, as in transformers: the embeddings, then the output of every layer but the last, then the last
    /// layer's output behind the final norm; each `[T, hidden_size]`.
    pub hidden_states: Option<Vec<Tensor>>,
    /// Where asked for: `[T, hidden_size]`, the last of the hidden states.
    pub last_hidden_state: Option<Tensor>,
    /// Where asked for: one entry for each layer with softmax attention.
    pub attentions: Option<Vec<LayerAttentions>>,
}

/// The attention weights of one layer.
#[derive(Clone, Debug)]
pub struct LayerAttentions {
    /// The layer's number.
    pub layer: usize,
    /// For each sequence of the step `[heads, len, keys]` f32, `keys` counting all tokens so far; every row sums to 1.
    pub weights: Vec<Tensor>,
}
