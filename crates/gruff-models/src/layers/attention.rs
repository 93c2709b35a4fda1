use std::ops::Range;

use gruff_kernels::attention::{self, AttentionSpec, HeadNorms};
use gruff_kernels::{Activation, KvLayer, Tensor, elementwise};

use super::eager::Eager;
use super::{Branch, Forward, Linear, RmsNorm, RopeTable};
use crate::shard::{HeadShare, Part};
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
        let HeadShare { queries, keys } = w.shard().heads(w.name(), heads, kv_heads)?;
        let of = |own: &Range<usize>, all: usize, each: usize| {
            (all * each, Part::of_heads(std::slice::from_ref(own), each, all))
        };
        let (q, q_rows) = of(&queries, heads, if config.gated { 2 * head_dim } else { head_dim });
        let (k, k_rows) = of(&keys, kv_heads, head_dim);
        let (v, v_rows) = of(&keys, kv_heads, value_dim);
        let (outputs, columns) = of(&queries, heads, value_dim);
        let parts = [("q_proj", q, q_rows), ("k_proj", k, k_rows), ("v_proj", v, v_rows)];
        let [q_proj, k_proj, v_proj] = Linear::load_many(&w, "qkv_proj", parts, hidden_size)?;
        let norm = |name| config.qk_norm.map(|eps| RmsNorm::load(w.module(name), head_dim, eps)).transpose();
        w.declare(ModuleKind::Attention);
        Ok(Self {
            qkv: ["q", "k", "v"].map(|name| w.declare_value(name)),
            attn_weights: w.declare_value("attn_weights"),
            attn_output: w.declare_value("attn_output"),
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            o_proj: Linear::load_part(w.module("o_proj"), [hidden_size, outputs], [&Part::All, &columns])?,
            name: w.name().to_owned(),
            config: AttentionConfig { heads: queries.len(), kv_heads: keys.len(), ..config },
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

        self.prepare(cx, [&q, &k, &v], rope, cache)?;
        let out = cx.scratch(&[cx.tokens(), heads * value_dim])?;
        let x = self.attend(cx, &q, cache, gate.as_ref(), &out)?;
        Ok(Branch::Linear { name: &self.name, x, projection: &self.o_proj })
    }

    /// Norms of queries and keys, rotation, and keys and values into their pages: at once where nobody looks in between.
    fn prepare(&self, cx: &Forward, qkv: [&Tensor; 3], rope: &RopeTable, cache: &KvLayer) -> Result<()> {
        let norms = self.q_norm.iter().chain(&self.k_norm);
        let watched = norms.clone().any(|norm| cx.intervenes(norm.name()));
        let [q, k, v] = qkv;
        if !watched && !self.qkv.iter().any(|name| cx.observes(name)) {
            let norms = match (&self.q_norm, &self.k_norm) {
                (Some(queries), Some(keys)) => {
                    Some(HeadNorms { queries: queries.weight(cx), keys: keys.weight(cx), eps: queries.eps() })
                }
                _ => None,
            };
            return Ok(attention::prepare_qkv(cx.step, q, k, v, &rope.prepare(norms), cache)?);
        }
        for (norm, heads) in norms.zip([q, k]) {
            norm.forward_in_place(cx, heads)?;
        }
        rope.rotate(q)?;
        rope.rotate(k)?;
        for (name, value) in self.qkv.iter().zip(qkv) {
            cx.output(name, value)?;
        }
        Ok(attention::write_kv(cx.step, k, v, cache)?)
    }

    /// Queries `[T, H, Dk]` over the pages of their sequences, through their gate `[T, H, Dv]` where there is one, into out
    /// `[T, H * Dv]`: what enters `o_proj`.
    fn attend(
        &self,
        cx: &Forward,
        q: &Tensor,
        cache: &KvLayer,
        gate: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<Activation> {
        let AttentionConfig { heads, scale, window, softcap, .. } = self.config;
        let spec = AttentionSpec { scale, window, softcap };
        let (eager, watched) = (cx.is_eager(), cx.observes(&self.attn_weights));
        if !eager && !watched && !cx.observes(&self.attn_output) {
            return Ok(attention::attention_activation(cx.step, q, cache, &spec, gate, out)?);
        }
        let by_head = out.split_last(heads)?;
        if !eager {
            attention::attention(cx.step, q, cache, &spec, &by_head)?;
        }
        if eager || watched {
            self.attend_eagerly(cx, q, cache, &spec, &by_head)?;
        }
        if let Some(gate) = gate {
            elementwise::sigmoid_mul(&by_head, gate)?;
        }
        cx.output(&self.attn_output, out)?;
        Ok(Activation::new(out)?)
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
