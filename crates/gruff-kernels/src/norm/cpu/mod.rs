//! The family on the CPU.

mod rows;

use super::NormOps;
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output, Shared};
use crate::{Result, Tensor};

use rows::{add_rms_norm_row, gated_rms_norm_row, l2_norm_row, rms_norm_row};

impl NormOps for CpuDevice {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        // SAFETY: the weight was checked to be disjoint from the output.
        let weight = unsafe { Input::<f32>::of(weight) }.row(0);
        let (x, out) = (Shared::<f32>::of(x), Output::<f32>::of(out));
        self.share(out.rows(), out.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches these rows, through cells.
                let (x, out) = unsafe { (x.cells(row), out.cells(row)) };
                rms_norm_row(self.isa(), x, weight, eps, out);
            }
        });
        Ok(())
    }

    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        // SAFETY: the weight was checked to be disjoint from both outputs.
        let weight = unsafe { Input::<f32>::of(weight) }.row(0);
        let (residual, delta) = (Output::<f32>::of(residual), Shared::<f32>::of(delta));
        let out = Output::<f32>::of(out);
        self.share(out.rows(), 2 * out.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches these rows, through cells.
                let (residual, delta, out) =
                    unsafe { (residual.cells(row), delta.cells(row), out.cells(row)) };
                add_rms_norm_row(self.isa(), residual, delta, weight, eps, out);
            }
        });
        Ok(())
    }

    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()> {
        // SAFETY: weight and gate were checked to be disjoint from the output.
        let (weight, gate) = unsafe { (Input::<f32>::of(weight).row(0), Input::<f32>::of(gate)) };
        let (x, out) = (Shared::<f32>::of(x), Output::<f32>::of(out));
        self.share(out.rows(), 4 * out.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches these rows, through cells.
                let (x, out) = unsafe { (x.cells(row), out.cells(row)) };
                gated_rms_norm_row(self.isa(), x, weight, gate.row(row), eps, out);
            }
        });
        Ok(())
    }

    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
        let (x, out) = (Shared::<f32>::of(x), Output::<f32>::of(out));
        self.share(out.rows(), out.width(), |range| {
            for row in range {
                // SAFETY: within the operation, only this piece touches these rows, through cells.
                let (x, out) = unsafe { (x.cells(row), out.cells(row)) };
                l2_norm_row(self.isa(), x, eps, scale, out);
            }
        });
        Ok(())
    }
}
