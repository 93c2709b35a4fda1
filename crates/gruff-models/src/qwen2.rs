//! Qwen2 and Qwen2.5: Llama's layers with biases on queries, keys and values.

use gruff_kernels::rope::{RopeSpec, RopeStyle};
use gruff_kernels::{Step, Tensor};

use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::layers::{DecoderLayer, Embedding, FeedForwardConfig, Forward, Head, rope_spec};
use crate::weights::Weights;
use crate::{Caches, Model, ModelBase, Names, Result};

pub(crate) const NAMES: Names = Names(&[
    ("model.embed_tokens", "token_embd"),
    ("model.layers.N.input_layernorm", "blk.N.attn_norm"),
    ("model.layers.N.self_attn.qkv_proj", "blk.N.attn_qkv"),
    ("model.layers.N.self_attn.q_proj", "blk.N.attn_q"),
    ("model.layers.N.self_attn.k_proj", "blk.N.attn_k"),
    ("model.layers.N.self_attn.v_proj", "blk.N.attn_v"),
    ("model.layers.N.self_attn.o_proj", "blk.N.attn_output"),
    ("model.layers.N.post_attention_layernorm", "blk.N.ffn_norm"),
    ("model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"),
    ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
    ("model.layers.N.mlp.down_proj", "blk.N.ffn_down"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
]);

struct Qwen2 {
    base: ModelBase,
    embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    head: Head,
    rope: RopeSpec,
}

/// Puts the model together.
pub(crate) fn load(keys: &Keys, weights: &Weights) -> Result<Box<dyn Model>> {
    let config = DecoderConfig::new(keys, NAMES)?;
    let feed_forward = FeedForwardConfig::Dense(config.intermediate_size(keys)?);
    let embed_tokens = Embedding::load(weights, &config, 1.0)?;
    let layer = |i| {
        let w = weights.module(format!("model.layers.{i}"));
        DecoderLayer::load(w, i, &config, config.attention(keys, i)?, &feed_forward)
    };
    let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<Vec<_>>>()?;
    let head = Head::load(weights, &config, &embed_tokens, None)?;
    let rope = rope_spec(keys, weights, RopeStyle::NeoX, config.head_dim)?;
    let caches = layers.iter().map(DecoderLayer::cache).collect();
    let base = config.base(keys, weights, NAMES, caches)?;
    Ok(Box::new(Qwen2 { base, embed_tokens, layers, head, rope }))
}

impl Model for Qwen2 {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn forward(&self, step: &Step, caches: &mut Caches) -> Result<Tensor> {
        let cx = Forward::new(&self.base, step);
        let rope = cx.rope(&self.rope)?;
        let mut x = self.embed_tokens.forward(&cx)?;
        for layer in &self.layers {
            layer.forward(&cx, &mut x, &rope, caches)?;
        }
        self.head.forward(&cx, x)
    }
}
