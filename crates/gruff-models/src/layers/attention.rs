use gruff_kernels::attention::{self, AttentionSpec};
use gruff_kernels::{Activation, KvLayer, Tensor, elementwise};

use super::eager::Eager;
use super::{Branch, Forward, Linear, RmsNorm, RopeTable};
use crate::weights::Module;
use crate::{LayerCache, ModuleKind, Result};

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
    /// The names of its queries, keys and values.
    qkv: [String; 3],
    attn_weights: String,
    attn_output: String,
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
        w.declare(ModuleKind::Attention);
        Ok(Self {
            qkv: ["q", "k", "v"].map(|name| w.declare_value(name)),
            attn_weights: w.declare_value("attn_weights"),
            attn_output: w.declare_value("attn_output"),
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
        x: &Activation,
        rope: &RopeTable,
        cache: &KvLayer,
    ) -> Result<Branch<'_>> {
        if let Some(out) = cx.replaced(&self.name, x.tensor())? {
            return Ok(Branch::Value(out));
        }
        let AttentionConfig { heads, kv_heads, head_dim, value_dim, .. } = self.config;
        let [q, k, v] = Linear::forward_many(cx, x, [&self.q_proj, &self.k_proj, &self.v_proj])?;
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
        for (name, value) in self.qkv.iter().zip([&q, &k, &v]) {
            cx.output(name, value)?;
        }

        attention::write_kv(cx.step, &k, &v, cache)?;
        let out = cx.scratch(&[cx.tokens(), heads, value_dim])?;
        self.attend(cx, &q, cache, &out)?;
        if let Some(gate) = gate {
            elementwise::sigmoid_mul(&out, &gate)?;
        }
        let out = out.reshape(&[cx.tokens(), heads * value_dim])?;
        cx.output(&self.attn_output, &out)?;
        Ok(Branch::Linear { name: &self.name, x: Activation::new(&out)?, projection: &self.o_proj })
    }
    /// Queries `[T, H, Dk]` over the pages of their sequences, into `[T, H, Dv]`.
    fn attend(&self, cx: &Forward, q: &Tensor, cache: &KvLayer, out: &Tensor) -> Result<()> {
        let AttentionConfig { scale, window, softcap, .. } = self.config;
        let spec = AttentionSpec { scale, window, softcap };
        let eager = cx.is_eager();
        if !eager {
            attention::attention(cx.step, q, cache, &spec, out)?;
        }
        if eager || cx.observes(&self.attn_weights) {
            self.attend_eagerly(cx, q, cache, &spec, out)?;
        }
        Ok(())
    }

    /// Sequence by sequence, with weights: shown to hooks, and kept where they are asked for. A kernel's result stays
    /// as it is unless a hook puts other weights in their place.
    fn attend_eagerly(
        &self,
        cx: &Forward,
        q: &Tensor,
        cache: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        let mut kept = Vec::new();
        for (index, sequence) in cx.step.sequences().iter().enumerate() {
            let (start, len) = (cx.step.starts()[index], sequence.len);
            let eager = Eager::new(&q.narrow(0, start, len)?, sequence, cache, spec)?;
            let mut weights = eager.weights();
            let mut changed = false;
            if cx.observes(&self.attn_weights) || cx.keeps_attentions() {
                let tensor = cx.device().tensor_f32(&weights, &eager.weights_shape())?;
                changed = cx.value(&self.attn_weights, Some(index), &tensor)?;
                if changed {
                    weights = tensor.to_vec_f32()?;
                }
                kept.push(tensor);
            }
            if changed || cx.is_eager() {
                out.narrow(0, start, len)?.write_f32(&eager.sum(&weights))?;
            }
        }
        cx.keep_attentions(&self.name, kept);
        Ok(())
    }
}
