//! Llama and what was built like it: Mistral, Mixtral, SmolLM, TinyLlama.

use gruff_kernels::rope::{RopeSpec, RopeStyle};

use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::layers::{AttentionConfig, Decoder, DecoderLayer, FeedForwardConfig, rope_spec};
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
    ("model.layers.N.mlp.gate_up_proj", "blk.N.ffn_gate_up"),
    ("model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"),
    ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
    ("model.layers.N.mlp.down_proj", "blk.N.ffn_down"),
    ("model.layers.N.mlp.gate", "blk.N.ffn_gate_inp"),
    ("model.layers.N.mlp.experts.gate_up_proj", "blk.N.ffn_gate_up_exps"),
    ("model.layers.N.mlp.experts.gate_proj", "blk.N.ffn_gate_exps"),
    ("model.layers.N.mlp.experts.up_proj", "blk.N.ffn_up_exps"),
    ("model.layers.N.mlp.experts.down_proj", "blk.N.ffn_down_exps"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
]);

struct Config {
    decoder: DecoderConfig,
    feed_forward: FeedForwardConfig,
    /// Keys seen at most (Mistral 7B).
    sliding_window: Option<usize>,
}

impl Config {
    fn new(keys: &Keys) -> Result<Self> {
        let decoder = DecoderConfig::new(keys, NAMES)?;
        let feed_forward = FeedForwardConfig::new(keys, &decoder)?;
        let sliding_window = Some(keys.count("attention.sliding_window")?).filter(|window| *window > 0);
        Ok(Self { decoder, feed_forward, sliding_window })
    }

    fn attention(&self, keys: &Keys, layer: usize) -> Result<AttentionConfig> {
        Ok(AttentionConfig { window: self.sliding_window, ..self.decoder.attention(keys, layer)? })
    }

    /// GGUF orders the rows of queries and keys so that the dimensions of a pair lie side by side.
    fn rope(&self, keys: &Keys, weights: &Weights) -> Result<RopeSpec> {
        rope_spec(keys, weights, RopeStyle::Interleaved, self.decoder.head_dim)
    }
}

/// Puts the model together.
pub(crate) fn load(keys: &Keys, weights: &Weights) -> Result<Box<dyn Model>> {
    let config = Config::new(keys)?;
    let rope = config.rope(keys, weights)?;
    Decoder::load(keys, weights, NAMES, &config.decoder, rope, |i, w| {
        DecoderLayer::load(w, i, &config.decoder, config.attention(keys, i)?, &config.feed_forward)
    })
}
