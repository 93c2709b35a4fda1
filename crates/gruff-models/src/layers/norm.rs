use gruff_kernels::{Activation, Tensor, norm};

use super::Forward;
use crate::weights::Module;
use crate::{ModuleKind, Result};

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
        Self::of_kind(ModuleKind::Norm, w, width, eps)
    }

    /// One whose result is multiplied by a gate.
    pub(crate) fn load_gated(w: Module, width: usize, eps: f32) -> Result<Self> {
        Self::of_kind(ModuleKind::GatedNorm, w, width, eps)
    }

    fn of_kind(kind: ModuleKind, w: Module, width: usize, eps: f32) -> Result<Self> {
        w.declare(kind);
        Ok(Self { weight: w.weight(&[width])?, name: w.name().to_owned(), eps })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The factors to use in this pass.
    pub(crate) fn weight<'a>(&'a self, cx: &'a Forward) -> &'a Tensor {
        cx.dense(&self.name, "weight", &self.weight)
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }

    /// Rows of `x`, into a tensor of their own.
    pub(crate) fn forward(&self, cx: &Forward, x: &Tensor) -> Result<Tensor> {
        if let Some(out) = cx.replaced(&self.name, x)? {
            return Ok(out);
        }
        let out = cx.scratch(x.shape())?;
        norm::rms_norm(x, self.weight(cx), self.eps, &out)?;
        cx.output(&self.name, &out)?;
        Ok(out)
    }

    /// Rows of `x`, into a tensor of their own, on its way to products.
    pub(crate) fn activation(&self, cx: &Forward, x: &Tensor) -> Result<Activation> {
        if cx.intervenes(&self.name) {
            return Ok(Activation::new(&self.forward(cx, x)?)?);
        }
        let out = cx.scratch(x.shape())?;
        Ok(norm::rms_norm_activation(x, self.weight(cx), self.eps, &out)?)
    }

    /// The same, of `x` with `delta` added to it first.
    pub(crate) fn activation_of_sum(&self, cx: &Forward, x: &Tensor, delta: &Tensor) -> Result<Activation> {
        let out = cx.scratch(x.shape())?;
        if cx.intervenes(&self.name) {
            norm::add_rms_norm(x, delta, self.weight(cx), self.eps, &out)?;
            cx.output(&self.name, &out)?;
            return Ok(Activation::new(&out)?);
        }
        Ok(norm::add_rms_norm_activation(x, delta, self.weight(cx), self.eps, &out)?)
    }

    /// Rows of `x`, in place.
    pub(crate) fn forward_in_place(&self, cx: &Forward, x: &Tensor) -> Result<()> {
        match cx.replacement(&self.name) {
            Some(module) => cx.call(module, &self.name, x, x)?,
            None => norm::rms_norm(x, self.weight(cx), self.eps, x)?,
        }
        cx.output(&self.name, x)
    }
}
