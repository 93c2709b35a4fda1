//! The family on NVIDIA cards.

pub(crate) mod route;

use super::{MoeOps, Routing};
use crate::cuda::CudaDevice;
use crate::matmul::Glu;
use crate::{Activation, PackedTensor, Result, Tensor};

impl MoeOps for CudaDevice {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
        self.choose_experts(logits, routing, ids, weights)
    }

    fn experts_glu(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        self.fallback().experts_glu(x, ids, gate, up, glu, out)
    }

    fn experts_combine(
        &self,
        hidden: &Activation,
        ids: &Tensor,
        weights: &Tensor,
        down: &PackedTensor,
        out: &Tensor,
    ) -> Result<()> {
        self.fallback().experts_combine(hidden, ids, weights, down, out)
    }
}
