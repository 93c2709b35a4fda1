//! The family on the CPU.

use super::{MoeOps, Routing};
use crate::cpu::CpuDevice;
use crate::matmul::Glu;
use crate::{Activation, PackedTensor, Result, Tensor};

impl MoeOps for CpuDevice {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
        self.plain.route(logits, routing, ids, weights)
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
        self.plain.experts_glu(x, ids, gate, up, glu, out)
    }

    fn experts_combine(
        &self,
        hidden: &Activation,
        ids: &Tensor,
        weights: &Tensor,
        down: &PackedTensor,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.experts_combine(hidden, ids, weights, down, out)
    }
}
