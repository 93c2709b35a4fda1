//! The family on NVIDIA cards.

use super::{DeltaInputs, DeltaNetOps};
use crate::cuda::fall_back;
use crate::{StateLayer, Step, Tensor};

fall_back!(DeltaNetOps {
    causal_conv(step: &Step, x: &Tensor, weight: &Tensor, layer: &StateLayer, out: &Tensor);
    delta_gates(a: &Tensor, b: &Tensor, dt_bias: &Tensor, a_neg: &Tensor, decay: &Tensor, beta: &Tensor);
    gated_delta(step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor);
});
