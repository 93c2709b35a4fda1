//! The family on NVIDIA cards.

use super::{MoeOps, Routing};
use crate::cuda::fall_back;
use crate::matmul::Glu;
use crate::{Activation, PackedTensor, Tensor};

fall_back!(MoeOps {
    route(logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor);
    experts_glu(x: &Activation, ids: &Tensor, gate: &PackedTensor, up: &PackedTensor, glu: Glu, out: &Tensor);
    experts_combine(hidden: &Activation, ids: &Tensor, weights: &Tensor, down: &PackedTensor, out: &Tensor);
});
