//! Gemma 3: sliding-window layers with one global layer in six, norms before and after each block.

use gruff_kernels::matmul::Glu;
use gruff_kernels::rope::{RopeSpec, RopeStyle};
use gruff_kernels::{Step, Tensor};

use crate::config::DecoderConfig;
use crate::keys::Keys;
use crate::layers::{
    Attention, AttentionConfig, Branch, Embedding, Forward, Head, Mlp, Residual, RmsNorm, RopeTable,
    rope_spec,
};
use crate::weights::{Module, Weights};
use crate::{Caches, ForwardOptions, LayerCache, Model, ModelBase, ModelOutput, ModuleKind, Names, Result};

pub(crate) const NAMES: Names = Names(&[
    ("model.embed_tokens", "token_embd"),
    ("model.layers.N.input_layernorm", "blk.N.attn_norm"),
    ("model.layers.N.self_attn.qkv_proj", "blk.N.attn_qkv"),
    ("model.layers.N.self_attn.q_proj", "blk.N.attn_q"),
    ("model.layers.N.self_attn.k_proj", "blk.N.attn_k"),
    ("model.layers.N.self_attn.v_proj", "blk.N.attn_v"),
    ("model.layers.N.self_attn.o_proj", "blk.N.attn_output"),
    ("model.layers.N.self_attn.q_norm", "blk.N.attn_q_norm"),
    ("model.layers.N.self_attn.k_norm", "blk.N.attn_k_norm"),
    ("model.layers.N.post_attention_layernorm", "blk.N.post_attention_norm"),
    ("model.layers.N.pre_feedforward_layernorm", "blk.N.ffn_norm"),
    ("model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"),
    ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
    ("model.layers.N.mlp.down_proj", "blk.N.ffn_down"),
    ("model.layers.N.post_feedforward_layernorm", "blk.N.post_ffw_norm"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
]);

/// Layers from one global layer to the next, where the file does not say.
const SLIDING_WINDOW_PATTERN: usize = 6;

/// Base of the frequencies of layers with a window, where the file does not say.
const LOCAL_ROPE_BASE: f64 = 10_000.0;

/// The layers of Gemma 3 27B, the one size whose scores are scaled by the width of the residual stream a head
/// instead of the head's own; no key tells it.
const LAYERS_27B: usize = 62;

struct Config {
    decoder: DecoderConfig,
    intermediate_size: Vec<usize>,
    sliding_window: usize,
    /// One a layer: the last `sliding_window` keys are seen, else all.
    is_sliding: Vec<bool>,
    final_logit_softcapping: Option<f32>,
}

impl Config {
    fn new(keys: &Keys) -> Result<Self> {
        let decoder = DecoderConfig::new(keys, NAMES)?;
        let layers = decoder.num_hidden_layers;
        let sliding_window = keys.count("attention.sliding_window")?;
        let pattern_key = "attention.sliding_window_pattern";
        let is_sliding = match keys.flags(pattern_key, layers)? {
            Some(flags) => flags,
            None => {
                let pattern = keys.size(pattern_key)?.unwrap_or(SLIDING_WINDOW_PATTERN);
                (0..layers).map(|layer| (layer + 1) % pattern != 0).collect()
            }
        };
        Ok(Self {
            intermediate_size: decoder.intermediate_size(keys)?,
            is_sliding: is_sliding.into_iter().map(|sliding| sliding && sliding_window > 0).collect(),
            final_logit_softcapping: keys.positive("final_logit_softcapping")?.map(|cap| cap as f32),
            sliding_window,
            decoder,
        })
    }

    fn attention(&self, keys: &Keys, layer: usize) -> Result<AttentionConfig> {
        let attention = self.decoder.attention(keys, layer)?;
        let scale = match keys.positive("attention.scale")? {
            Some(scale) => scale as f32,
            None if self.decoder.num_hidden_layers == LAYERS_27B => {
                (attention.hidden_size as f64 / attention.heads as f64).sqrt().recip() as f32
            }
            None => attention.scale,
        };
        Ok(AttentionConfig {
            qk_norm: Some(self.decoder.rms_norm_eps),
            window: self.is_sliding[layer].then_some(self.sliding_window),
            softcap: keys.positive("attn_logit_softcapping")?.map(|cap| cap as f32),
            scale,
            ..attention
        })
    }

    /// Angles of global layers, which may be scaled, and of layers with a window, which never are.
    fn ropes(&self, keys: &Keys, weights: &Weights) -> Result<(RopeSpec, RopeSpec)> {
        let global = rope_spec(keys, weights, RopeStyle::NeoX, self.decoder.head_dim)?;
        let base = keys.positive("rope.freq_base_swa")?.unwrap_or(LOCAL_ROPE_BASE);
        let local = RopeSpec::new(RopeStyle::NeoX, 2 * global.half(), base);
        Ok((global, local))
    }
}

struct DecoderLayer {
    name: String,
    index: usize,
    is_sliding: bool,
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: Mlp,
    post_feedforward_layernorm: RmsNorm,
}

impl DecoderLayer {
    fn load(w: Module, config: &Config, keys: &Keys, index: usize) -> Result<Self> {
        let DecoderConfig { hidden_size, rms_norm_eps, .. } = config.decoder;
        w.declare(ModuleKind::Layer);
        let norm = |name| RmsNorm::load(w.module(name), hidden_size, rms_norm_eps);
        let width = config.intermediate_size[index];
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(w.module("self_attn"), config.attention(keys, index)?)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: Mlp::load(w.module("mlp"), hidden_size, width, Glu::GeluTanh)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            is_sliding: config.is_sliding[index],
            name: w.name().to_owned(),
            index,
        })
    }

    fn cache(&self) -> LayerCache {
        self.self_attn.cache()
    }

    fn forward(&self, cx: &Forward, x: &mut Residual, rope: &RopeTable, caches: &Caches) -> Result<()> {
        let h = x.norm(cx, &self.input_layernorm)?;
        let h = self.self_attn.forward(cx, &h, rope, caches.kv(self.index)?)?.whole(cx)?;
        x.add(cx, Branch::Value(self.post_attention_layernorm.forward(cx, &h)?))?;
        let h = x.norm(cx, &self.pre_feedforward_layernorm)?;
        let h = self.mlp.forward(cx, &h)?.whole(cx)?;
        x.add(cx, Branch::Value(self.post_feedforward_layernorm.forward(cx, &h)?))?;
        x.end_layer(cx, &self.name)
    }
}

struct Gemma3 {
    base: ModelBase,
    embed_tokens: Embedding,
    layers: Vec<DecoderLayer>,
    head: Head,
    global_rope: RopeSpec,
    local_rope: RopeSpec,
}

/// Puts the model together.
pub(crate) fn load(keys: &Keys, weights: &Weights) -> Result<Box<dyn Model>> {
    let config = Config::new(keys)?;
    let decoder = &config.decoder;
    let embed_tokens = Embedding::load(weights, decoder, (decoder.hidden_size as f32).sqrt())?;
    let layers = (0..decoder.num_hidden_layers)
        .map(|i| DecoderLayer::load(weights.module(format!("model.layers.{i}")), &config, keys, i))
        .collect::<Result<Vec<_>>>()?;
    let head = Head::load(weights, decoder, &embed_tokens, config.final_logit_softcapping)?;
    let (global_rope, local_rope) = config.ropes(keys, weights)?;
    let caches = layers.iter().map(DecoderLayer::cache).collect();
    let base = decoder.base(keys, weights, NAMES, caches)?;
    Ok(Box::new(Gemma3 { base, embed_tokens, layers, head, global_rope, local_rope }))
}

impl Model for Gemma3 {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn draws(&self) -> bool {
        true
    }

    fn takes_late_ids(&self) -> bool {
        self.is_as_loaded() && self.base.takes_late_ids()
    }

    fn forward(&self, step: &Step, caches: &mut Caches) -> Result<Tensor> {
        Ok(self.forward_with(step, caches, &ForwardOptions::default())?.logits)
    }

    fn forward_with(
        &self,
        step: &Step,
        caches: &mut Caches,
        options: &ForwardOptions,
    ) -> Result<ModelOutput> {
        let cx = Forward::new(&self.base, step, options)?;
        let caches = &*caches;
        let logits = cx.logits(&self.base, caches, |cx| self.pass(cx, caches))?;
        Ok(cx.finish(logits))
    }
}

impl Gemma3 {
    fn pass(&self, cx: &Forward, caches: &Caches) -> Result<Tensor> {
        let ropes = || -> Result<_> { Ok((cx.rope(&self.global_rope)?, cx.rope(&self.local_rope)?)) };
        let mut x = self.embed_tokens.forward(cx)?;
        let (mut global, mut local) = ropes()?;
        for layer in &self.layers {
            if x.enter(cx, cx.placement.layer(layer.index))? {
                (global, local) = ropes()?;
            }
            if cx.is_idle() {
                continue;
            }
            let rope = if layer.is_sliding { &local } else { &global };
            if !x.replaced(cx, &layer.name)? {
                layer.forward(cx, &mut x, rope, caches)?;
            }
            if layer.index + 1 < self.layers.len() {
                x.keep(cx)?;
            }
        }
        self.head.forward(cx, x)
    }
}
