use gruff_kernels::{Tensor, norm};

use super::Forward;
use crate::Result;
use crate::weights::Module;

/// Root-mean-square normalisation (arXiv:1910.07467). GGUF stores the whole factor, `1 + w` for the
/// zero-centred kinds.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    name: String,
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    pub(crate) fn load(w: Module, width: usize, eps: f32) -> Result<Self> {
        Ok(Self { weight: w.weight(&[width])?, name: w.name().to_owned(), eps })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }

    /// Rows of `x`, into a tensor of their own.
    pub(crate) fn forward(&self, cx: &Forward, x: &Tensor) -> Result<Tensor> {
        let out = cx.scratch(x.shape())?;
        norm::rms_norm(x, &self.weight, self.eps, &out)?;
        cx.output(&self.name, &out)?;
        Ok(out)
    }

    /// Rows of `x`, in place.
    pub(crate) fn forward_in_place(&self, cx: &Forward, x: &Tensor) -> Result<()> {
        norm::rms_norm(x, &self.weight, self.eps, x)?;
        cx.output(&self.name, x)
    }
}
