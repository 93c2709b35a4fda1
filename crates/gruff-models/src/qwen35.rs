//! Qwen3.5, dense and mixture of experts: three layers of gated delta net, one of gated attention.

use gruff_kernels::rope::{Mrope, RopeSpec, RopeStyle};

use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::layers::{
    Attention, AttentionConfig, Decoder, FeedForward, FeedForwardConfig, Forward, GatedDeltaNet,
    GatedDeltaNetConfig, Layer, Residual, RmsNorm, RopeTable, rope_spec,
};
use crate::weights::{Module, Weights};
use crate::{Caches, LayerCache, Model, Names, Result};

pub(crate) const NAMES: Names = Names(&[
    ("model.embed_tokens", "token_embd"),
    ("model.layers.N.input_layernorm", "blk.N.attn_norm"),
    ("model.layers.N.linear_attn.in_proj_qkv", "blk.N.attn_qkv"),
    ("model.layers.N.linear_attn.in_proj_z", "blk.N.attn_gate"),
    ("model.layers.N.linear_attn.in_proj_b", "blk.N.ssm_beta"),
    ("model.layers.N.linear_attn.in_proj_a", "blk.N.ssm_alpha"),
    ("model.layers.N.linear_attn.conv1d", "blk.N.ssm_conv1d"),
    ("model.layers.N.linear_attn.dt_bias", "blk.N.ssm_dt.bias"),
    ("model.layers.N.linear_attn.A_log", "blk.N.ssm_a"),
    ("model.layers.N.linear_attn.norm", "blk.N.ssm_norm"),
    ("model.layers.N.linear_attn.out_proj", "blk.N.ssm_out"),
    ("model.layers.N.self_attn.qkv_proj", "blk.N.attn_qkv"),
    ("model.layers.N.self_attn.q_proj", "blk.N.attn_q"),
    ("model.layers.N.self_attn.k_proj", "blk.N.attn_k"),
    ("model.layers.N.self_attn.v_proj", "blk.N.attn_v"),
    ("model.layers.N.self_attn.o_proj", "blk.N.attn_output"),
    ("model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm"),
    ("model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm"),
    ("model.layers.N.post_attention_layernorm", "blk.N.post_attention_norm"),
    ("model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"),
    ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
    ("model.layers.N.mlp.down_proj", "blk.N.ffn_down"),
    ("model.layers.N.mlp.gate", "blk.N.ffn_gate_inp"),
    ("model.layers.N.mlp.experts.gate_up_proj", "blk.N.ffn_gate_up_exps"),
    ("model.layers.N.mlp.experts.gate_proj", "blk.N.ffn_gate_exps"),
    ("model.layers.N.mlp.experts.up_proj", "blk.N.ffn_up_exps"),
    ("model.layers.N.mlp.experts.down_proj", "blk.N.ffn_down_exps"),
    ("model.layers.N.mlp.shared_expert_gate", "blk.N.ffn_gate_inp_shexp"),
    ("model.layers.N.mlp.shared_expert.gate_proj", "blk.N.ffn_gate_shexp"),
    ("model.layers.N.mlp.shared_expert.up_proj", "blk.N.ffn_up_shexp"),
    ("model.layers.N.mlp.shared_expert.down_proj", "blk.N.ffn_down_shexp"),
    ("model.layers.N.eh_proj", "blk.N.nextn.eh_proj"),
    ("model.layers.N.enorm", "blk.N.nextn.enorm"),
    ("model.layers.N.hnorm", "blk.N.nextn.hnorm"),
    ("model.layers.N.shared_head.norm", "blk.N.nextn.shared_head_norm"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
]);

/// Layers from one full attention to the next, where the file does not say.
const FULL_ATTENTION_INTERVAL: usize = 4;

struct Config {
    decoder: DecoderConfig,
    linear_attention: GatedDeltaNetConfig,
    /// One a layer: gated delta net, else full attention.
    is_linear: Vec<bool>,
    feed_forward: FeedForwardConfig,
}

impl Config {
    fn new(keys: &Keys) -> Result<Self> {
        let decoder = DecoderConfig::new(keys, NAMES)?;
        let layers = decoder.num_hidden_layers;
        let is_linear = match keys.flags("attention.recurrent_layers", decoder.num_blocks())? {
            Some(flags) => flags,
            None => {
                let interval = keys.size("full_attention_interval")?.unwrap_or(FULL_ATTENTION_INTERVAL);
                (0..layers).map(|layer| (layer + 1) % interval != 0).collect()
            }
        };
        let feed_forward = FeedForwardConfig::new(keys, &decoder)?;
        let linear_attention = GatedDeltaNetConfig::new(keys, decoder.hidden_size, decoder.rms_norm_eps)?;
        Ok(Self { decoder, linear_attention, is_linear, feed_forward })
    }

    fn attention(&self, keys: &Keys, layer: usize) -> Result<AttentionConfig> {
        let attention = self.decoder.attention(keys, layer)?;
        Ok(AttentionConfig { qk_norm: Some(self.decoder.rms_norm_eps), gated: true, ..attention })
    }

    /// Rotary positions of three axes, interleaved; for text all axes are equal.
    fn rope(&self, keys: &Keys, weights: &Weights) -> Result<RopeSpec> {
        let spec = rope_spec(keys, weights, RopeStyle::NeoX, self.decoder.head_dim)?;
        let key = "rope.dimension_sections";
        let Some(sections) = keys.ints(key)? else { return Ok(spec) };
        let mut axes = [0; 3];
        axes.iter_mut().zip(&sections).for_each(|(axis, section)| *axis = *section as usize);
        if axes.iter().sum::<usize>() > spec.half() {
            let expected = format!("there are {} pairs of dimensions to turn", spec.half());
            return Err(keys.refuse(key, format!("{sections:?}"), expected));
        }
        Ok(spec.with_mrope(Mrope { sections: axes, interleaved: true }))
    }
}

#[expect(clippy::large_enum_variant, reason = "one a layer, made once")]
enum Mixer {
    LinearAttention(GatedDeltaNet),
    SelfAttention(Attention),
}

struct DecoderLayer {
    name: String,
    index: usize,
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl DecoderLayer {
    fn load(w: Module, config: &Config, keys: &Keys, index: usize) -> Result<Self> {
        let DecoderConfig { hidden_size, rms_norm_eps, .. } = config.decoder;
        let mixer = if config.is_linear[index] {
            Mixer::LinearAttention(GatedDeltaNet::load(w.module("linear_attn"), config.linear_attention)?)
        } else {
            Mixer::SelfAttention(Attention::load(w.module("self_attn"), config.attention(keys, index)?)?)
        };
        let norm = |name| RmsNorm::load(w.module(name), hidden_size, rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: FeedForward::load(w.module("mlp"), hidden_size, &config.feed_forward, index)?,
            name: w.name().to_owned(),
            mixer,
            index,
        })
    }
}

impl Layer for DecoderLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn cache(&self) -> LayerCache {
        match &self.mixer {
            Mixer::LinearAttention(mixer) => mixer.cache(),
            Mixer::SelfAttention(mixer) => mixer.cache(),
        }
    }

    fn forward(&self, cx: &Forward, x: &mut Residual, rope: &RopeTable, caches: &Caches) -> Result<()> {
        let h = x.norm(cx, &self.input_layernorm)?;
        let h = match &self.mixer {
            Mixer::LinearAttention(mixer) => mixer.forward(cx, &h, caches.state(self.index)?)?,
            Mixer::SelfAttention(mixer) => mixer.forward(cx, &h, rope, caches.kv(self.index)?)?,
        };
        x.add(cx, h)?;
        let h = x.norm(cx, &self.post_attention_layernorm)?;
        x.add(cx, self.mlp.forward(cx, &h)?)?;
        x.end_layer(cx, &self.name)
    }
}

/// Puts the model together. Blocks for multi-token prediction stay in the file.
pub(crate) fn load(keys: &Keys, weights: &Weights) -> Result<Box<dyn Model>> {
    let config = Config::new(keys)?;
    let rope = config.rope(keys, weights)?;
    let trunk = config.decoder.num_hidden_layers;
    (trunk..config.decoder.num_blocks()).for_each(|block| weights.skip_block(block));
    Decoder::load(keys, weights, NAMES, &config.decoder, rope, |i, w| DecoderLayer::load(w, &config, keys, i))
}
