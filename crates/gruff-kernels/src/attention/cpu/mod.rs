//! The family on the CPU.

use super::{AttentionOps, AttentionSpec};
use crate::cpu::CpuDevice;
use crate::{KvLayer, Result, Step, Tensor};

impl AttentionOps for CpuDevice {
    fn write_kv(&self, step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()> {
        self.plain.write_kv(step, keys, values, layer)
    }

    fn attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.attention(step, queries, layer, spec, out)
    }
}
