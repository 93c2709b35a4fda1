use gruff_kernels::attention::{self, AttentionSpec};
use gruff_kernels::{Activation, KvLayer, Tensor, elementwise};

use super::{Branch, Forward, Linear, RmsNorm, RopeTable};
use crate::weights::Module;
use crate::{LayerCache, Result};

/// Sizes and kind of an attention block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionConfig {
    pub(crate) hidden_size: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    /// Factor on scores.
    pub(crate) scale: f32,
    /// Keys seen at most.
    pub(crate) window: Option<usize>,
    /// Soft cap on scores.
    pub(crate) softcap: Option<f32>,
    /// Epsilon of the norms on queries and keys, where the architecture has them.
    pub(crate) qk_norm: Option<f32>,
    /// Whether `q_proj` makes, behind each query head, a gate on the head's output.
    pub(crate) gated: bool,
}

/// Self-attention with grouped query heads (arXiv:2305.13245), rotary positions and a paged cache.
#[derive(Debug)]
pub(crate) struct Attention {
    name: String,
    config: AttentionConfig,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
}

impl Attention {
    pub(crate) fn load(w: Module, config: AttentionConfig) -> Result<Self> {
        let AttentionConfig { hidden_size, heads, kv_heads, head_dim, value_dim, .. } = config;
        let queries = heads * head_dim;
        let parts = [
            ("q_proj", if config.gated { 2 * queries } else { queries }),
            ("k_proj", kv_heads * head_dim),
            ("v_proj", kv_heads * value_dim),
        ];
        let [q_proj, k_proj, v_proj] = Linear::load_many(&w, "qkv_proj", parts, hidden_size)?;
        let norm = |name| config.qk_norm.map(|eps| RmsNorm::load(w.module(name), head_dim, eps)).transpose();
        Ok(Self {
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            o_proj: Linear::load(w.module("o_proj"), hidden_size, heads * value_dim)?,
            name: w.name().to_owned(),
            config,
            q_proj,
            k_proj,
            v_proj,
        })
    }

    /// What the layer remembers.
    pub(crate) fn cache(&self) -> LayerCache {
        let AttentionConfig { kv_heads, head_dim, value_dim, .. } = self.config;
        LayerCache::Kv { kv_heads, key_dim: head_dim, value_dim }
    }

    /// `[T, hidden] -> [T, hidden]`.
    pub(crate) fn forward(
        &self,
        cx: &Forward,
        x: &Tensor,
        rope: &RopeTable,
        cache: &KvLayer,
    ) -> Result<Branch<'_>> {
        let AttentionConfig { heads, kv_heads, head_dim, value_dim, .. } = self.config;
        let x = Activation::new(x)?;
        let [q, k, v] = Linear::forward_many(cx, &x, [&self.q_proj, &self.k_proj, &self.v_proj])?;
        let (k, v) = (k.split_last(kv_heads)?, v.split_last(kv_heads)?);
        let mut q = q.split_last(heads)?;
        let mut gate = None;
        if self.config.gated {
            gate = Some(q.narrow(2, head_dim, head_dim)?);
            q = q.narrow(2, 0, head_dim)?;
        }

        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            q_norm.forward_in_place(cx, &q)?;
            k_norm.forward_in_place(cx, &k)?;
        }
        rope.rotate(&q)?;
        rope.rotate(&k)?;

        attention::write_kv(cx.step, &k, &v, cache)?;
        let out = cx.scratch(&[cx.tokens(), heads, value_dim])?;
        let AttentionConfig { scale, window, softcap, .. } = self.config;
        attention::attention(cx.step, &q, cache, &AttentionSpec { scale, window, softcap }, &out)?;
        if let Some(gate) = gate {
            elementwise::sigmoid_mul(&out, &gate)?;
        }
        let out = out.reshape(&[cx.tokens(), heads * value_dim])?;
        Ok(Branch::Linear { name: &self.name, x: out, projection: &self.o_proj })
    }
}
