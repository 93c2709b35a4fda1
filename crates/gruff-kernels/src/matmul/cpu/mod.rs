//! The family on the CPU.

use gruff_blocks::BlockType;

use super::{Glu, MatmulKernel, MatmulOps, Projection};
use crate::cpu::CpuDevice;
use crate::{Activation, PackedTensor, Result, Tensor};

impl MatmulOps for CpuDevice {
    fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel {
        self.plain.matmul_kernel(block_type)
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        self.plain.linear_many(x, projections)
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        self.plain.linear_add(x, weight, residual)
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.linear_glu(x, gate, up, glu, out)
    }
}
