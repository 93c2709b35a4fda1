//! The family on the CPU.

use super::ElementwiseOps;
use crate::cpu::CpuDevice;
use crate::matmul::Glu;
use crate::{Result, Tensor};

impl ElementwiseOps for CpuDevice {
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        self.plain.add(x, y)
    }

    fn glu(&self, gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()> {
        self.plain.glu(gate, up, glu, out)
    }

    fn sigmoid_mul(&self, x: &Tensor, gate: &Tensor) -> Result<()> {
        self.plain.sigmoid_mul(x, gate)
    }

    fn scale(&self, x: &Tensor, factor: f32) -> Result<()> {
        self.plain.scale(x, factor)
    }

    fn softcap(&self, x: &Tensor, cap: f32) -> Result<()> {
        self.plain.softcap(x, cap)
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()> {
        self.plain.gather_rows(x, rows, out)
    }

    fn copy(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.plain.copy(x, out)
    }
}
