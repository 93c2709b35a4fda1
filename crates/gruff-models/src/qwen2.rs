//! Qwen2 and Qwen2.5: Llama's layers with biases on queries, keys and values.

use gruff_kernels::rope::RopeStyle;

use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::layers::{Decoder, DecoderLayer, FeedForwardConfig, rope_spec};
use crate::weights::Weights;
use crate::{Model, Names, Result};

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

/// Puts the model together.
pub(crate) fn load(keys: &Keys, weights: &Weights) -> Result<Box<dyn Model>> {
    let config = DecoderConfig::new(keys, NAMES)?;
    let feed_forward = FeedForwardConfig::Dense(config.intermediate_size(keys)?);
    let rope = rope_spec(keys, weights, RopeStyle::NeoX, config.head_dim)?;
    Decoder::load(keys, weights, NAMES, &config, rope, |i, w| {
        DecoderLayer::load(w, i, &config, config.attention(keys, i)?, &feed_forward)
    })
}
