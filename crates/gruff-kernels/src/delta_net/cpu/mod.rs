//! The family on the CPU.

use super::{DeltaInputs, DeltaNetOps};
use crate::cpu::CpuDevice;
use crate::{Result, StateLayer, Step, Tensor};

impl DeltaNetOps for CpuDevice {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        self.plain.causal_conv(step, x, weight, layer, out)
    }

    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        self.plain.delta_gates(a, b, dt_bias, a_neg, decay, beta)
    }

    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        self.plain.gated_delta(step, inputs, layer, out)
    }
}
