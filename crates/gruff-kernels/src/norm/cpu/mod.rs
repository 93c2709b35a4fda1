//! The family on the CPU.

use super::NormOps;
use crate::cpu::CpuDevice;
use crate::{Result, Tensor};

impl NormOps for CpuDevice {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        self.plain.rms_norm(x, weight, eps, out)
    }

    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.add_rms_norm(residual, delta, weight, eps, out)
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.gated_rms_norm(x, weight, gate, eps, out)
    }

    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
        self.plain.l2_norm(x, eps, scale, out)
    }
}
