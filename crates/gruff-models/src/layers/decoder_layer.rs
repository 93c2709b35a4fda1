use super::{
    Attention, AttentionConfig, FeedForward, FeedForwardConfig, Forward, Layer, Residual, RmsNorm, RopeTable,
};
use crate::config::DecoderConfig;
use crate::weights::Module;
use crate::{Caches, LayerCache, Result};

/// The layer of Llama and its many relatives: pre-norm attention, pre-norm feed-forward.
#[derive(Debug)]
pub(crate) struct DecoderLayer {
    name: String,
    index: usize,
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl DecoderLayer {
    pub(crate) fn load(
        w: Module,
        index: usize,
        config: &DecoderConfig,
        attention: AttentionConfig,
        feed_forward: &FeedForwardConfig,
    ) -> Result<Self> {
        let DecoderConfig { hidden_size, rms_norm_eps, .. } = *config;
        let norm = |name| RmsNorm::load(w.module(name), hidden_size, rms_norm_eps);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(w.module("self_attn"), attention)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: FeedForward::load(w.module("mlp"), hidden_size, feed_forward, index)?,
            name: w.name().to_owned(),
            index,
        })
    }
}

impl Layer for DecoderLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn cache(&self) -> LayerCache {
        self.self_attn.cache()
    }

    fn forward(&self, cx: &Forward, x: &mut Residual, rope: &RopeTable, caches: &Caches) -> Result<()> {
        let h = x.norm(cx, &self.input_layernorm)?;
        x.add(cx, self.self_attn.forward(cx, &h, rope, caches.kv(self.index)?)?)?;
        let h = x.norm(cx, &self.post_attention_layernorm)?;
        x.add(cx, self.mlp.forward(cx, &h)?)?;
        x.end_layer(cx, &self.name)
    }
}
