use gruff_kernels::{PackedTensor, StepTokens, elementwise, embedding};

use super::{Forward, Residual};
use crate::config::DecoderConfig;
use crate::weights::Weights;
use crate::{ModuleKind, Result, Weight};

/// The table of token embeddings `[vocab, hidden]`.
#[derive(Debug)]
pub(crate) struct Embedding {
    name: String,
    weight: PackedTensor,
    scale: f32,
}

impl Embedding {
    /// A table whose rows are multiplied by `scale` when they are looked up.
    pub(crate) fn load(weights: &Weights, config: &DecoderConfig, scale: f32) -> Result<Self> {
        let w = weights.module("model.embed_tokens");
        let weight = w.matrix(config.vocab_size, config.hidden_size)?;
        w.declare(ModuleKind::Embedding);
        w.name_weight("weight", &Weight::Packed(weight.clone()));
        Ok(Self { weight: weight.tensor().clone(), name: w.name().to_owned(), scale })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn weight(&self) -> &PackedTensor {
        &self.weight
    }

    /// The residual stream that a step begins with. Embeddings that are given are taken as they are.
    pub(crate) fn forward(&self, cx: &Forward) -> Result<Residual> {
        cx.go_to(cx.placement.embedding());
        let x = cx.scratch(&[cx.tokens(), self.weight.cols()])?;
        if cx.is_idle() {
            return Ok(Residual::new(x));
        }
        match cx.step.tokens() {
            StepTokens::Ids(ids) => {
                let table = cx.packed(&self.name, &self.name, &self.weight);
                embedding::embed_step(cx.step, table, self.scale, &x)?;
                cx.adapt_embeddings(&self.name, ids, self.scale, &x)?;
            }
            StepTokens::Embeddings(rows) => elementwise::copy(&cx.carry(rows)?, &x)?,
        }
        cx.output(&self.name, &x)?;
        cx.keep_hidden_state(&x)?;
        Ok(Residual::new(x))
    }
}
