use gruff_kernels::{Activation, DType, Tensor, elementwise};

use super::{Embedding, Forward, Linear, Residual, RmsNorm};
use crate::Result;
use crate::config::DecoderConfig;
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
            Linear::shared(&w, embed_tokens.name(), embed_tokens.weight())
        };
        Ok(Self { norm, lm_head, softcap })
    }

    /// Logits `[R, vocab]` of the rows that the step asks for.
    pub(crate) fn forward(&self, cx: &Forward, x: Residual) -> Result<Tensor> {
        let wanted = !cx.step.output_rows().is_empty();
        if wanted || cx.keeps_last_hidden_state() {
            let h = x.output_rows(cx, &self.norm)?;
            if wanted {
                return self.logits(cx, &h);
            }
        }
        Ok(cx.device.zeros(DType::F32, &[0, self.lm_head.outputs()])?)
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
