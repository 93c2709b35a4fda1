//! The family on the CPU.

use super::EmbeddingOps;
use crate::cpu::CpuDevice;
use crate::{PackedTensor, Result, Tensor};

impl EmbeddingOps for CpuDevice {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
        self.plain.embed(ids, table, scale, out)
    }
}
