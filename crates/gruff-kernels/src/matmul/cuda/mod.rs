//! The family on NVIDIA cards.

use gruff_blocks::BlockType;

use super::{Glu, MatmulKernel, MatmulOps, Projection};
use crate::cuda::CudaDevice;
use crate::{Activation, PackedTensor, Result, Tensor};

impl MatmulOps for CudaDevice {
    fn matmul_kernel(&self, _: BlockType) -> MatmulKernel {
        MatmulKernel { name: "plain rust on the host", fast: false }
    }

    fn linear_many(&self, x: &Activation, projections: &[Projection]) -> Result<()> {
        self.fallback().linear_many(x, projections)
    }

    fn linear_add(&self, x: &Activation, weight: &PackedTensor, residual: &Tensor) -> Result<()> {
        self.fallback().linear_add(x, weight, residual)
    }

    fn linear_glu(
        &self,
        x: &Activation,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        self.fallback().linear_glu(x, gate, up, glu, out)
    }
}
