use gruff_kernels::Activation;
use gruff_kernels::matmul::Glu;

use super::{Branch, Forward, Mlp, Moe, MoeConfig};
use crate::Result;
use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::weights::Module;

/// Sizes of the feed-forward of every layer.
#[derive(Clone, Debug)]
pub(crate) enum FeedForwardConfig {
    /// A width for each layer.
    Dense(Vec<usize>),
    Sparse(MoeConfig),
}

impl FeedForwardConfig {
    /// Sparse in files that count experts.
    pub(crate) fn new(keys: &Keys, decoder: &DecoderConfig) -> Result<Self> {
        Ok(match keys.count("expert_count")? {
            0 => Self::Dense(decoder.intermediate_size(keys)?),
            _ => Self::Sparse(MoeConfig::new(keys, decoder.num_blocks())?),
        })
    }
}

/// The feed-forward of one layer.
#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Box<Mlp>),
    Sparse(Box<Moe>),
}

impl FeedForward {
    pub(crate) fn load(
        w: Module,
        hidden_size: usize,
        config: &FeedForwardConfig,
        layer: usize,
    ) -> Result<Self> {
        Ok(match config {
            FeedForwardConfig::Dense(sizes) => {
                let width = sizes.get(layer).copied().unwrap_or(0);
                Self::Dense(Box::new(Mlp::load(w, hidden_size, width, Glu::Silu)?))
            }
            FeedForwardConfig::Sparse(moe) => Self::Sparse(Box::new(Moe::load(w, hidden_size, moe, layer)?)),
        })
    }

    /// `[T, hidden] -> [T, hidden]`.
    pub(crate) fn forward(&self, cx: &Forward, x: &Activation) -> Result<Branch<'_>> {
        match self {
            Self::Dense(mlp) => mlp.forward(cx, x),
            Self::Sparse(moe) => moe.forward(cx, x),
        }
    }
}
