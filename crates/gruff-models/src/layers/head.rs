use gruff_kernels::{Activation, DType, Tensor, elementwise};

use super::{Embedding, Forward, Linear, Residual, RmsNorm};
use crate::Result;
use crate::config::DecoderConfig;
use crate::parameters::PackedWeight;
use crate::weights::Weights;

/// The end of a decoder: final norm and projection to logits.
#[derive(Debug)]
pub(crate) struct Head {
    norm: RmsNorm,
    lm_head: Linear,
    softcap: Option<f32>,
}

impl Head {
    /// `lm_head` is the embedding table where the file has no tensor for it.
    pub(crate) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        embed_tokens: &Embedding,
        softcap: Option<f32>,
    ) -> Result<Self> {
        let norm = RmsNorm::load(weights.module("model.norm"), config.hidden_size, config.rms_norm_eps)?;
        let w = weights.module("lm_head");
        let lm_head = if w.exists() {
            Linear::load(w, config.vocab_size, config.hidden_size)?
        } else {
            let place = weights.placement();
            let (table, far) = (weights.module(embed_tokens.name()), !place.head().same(place.embedding()));
            let copy = far.then(|| table.packed_on(place.head(), [1, config.vocab_size, config.hidden_size]));
            let copy = copy.transpose()?;
            let weight = copy.as_ref().map_or(embed_tokens.weight(), PackedWeight::tensor);
            Linear::shared(&w, embed_tokens.name(), weight)
        };
        Ok(Self { norm, lm_head, softcap })
    }

    /// Logits `[R, vocab]` of the rows that the step asks for.
    pub(crate) fn forward(&self, cx: &Forward, mut x: Residual) -> Result<Tensor> {
        x.enter(cx, cx.placement.head())?;
        if cx.is_idle() {
            return Ok(cx.device().zeros(DType::F32, &[0, self.lm_head.outputs()])?);
        }
        let wanted = !cx.step.output_rows().is_empty();
        if wanted || cx.keeps_last_hidden_state() {
            let h = x.output_rows(cx, &self.norm)?;
            if wanted {
                return self.logits(cx, &h);
            }
        }
        Ok(cx.device().zeros(DType::F32, &[0, self.lm_head.outputs()])?)
    }

    fn logits(&self, cx: &Forward, h: &Activation) -> Result<Tensor> {
        cx.enter_head();
        let logits = self.lm_head.forward(cx, h)?;
        if let Some(cap) = self.softcap {
            elementwise::softcap(&logits, cap)?;
        }
        Ok(logits)
    }
}
