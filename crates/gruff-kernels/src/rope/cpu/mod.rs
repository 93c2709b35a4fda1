//! The family on the CPU.

use super::{RopeOps, RopeSpec, RopeStyle};
use crate::cpu::CpuDevice;
use crate::{Result, Step, Tensor};

impl RopeOps for CpuDevice {
    fn rope_table(&self, step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()> {
        self.plain.rope_table(step, spec, table)
    }

    fn rope(&self, x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()> {
        self.plain.rope(x, table, style)
    }
}
