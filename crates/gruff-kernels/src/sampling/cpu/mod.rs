//! The family on the CPU.

use super::{SampleSpec, SamplingOps};
use crate::cpu::CpuDevice;
use crate::{Result, Tensor};

impl SamplingOps for CpuDevice {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()> {
        self.plain.argmax(logits, ids)
    }

    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
        self.plain.sample(logits, specs, ids)
    }
}
