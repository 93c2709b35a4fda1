//! The family on NVIDIA cards.

use super::EmbeddingOps;
use crate::cuda::fall_back;
use crate::{PackedTensor, Tensor};

fall_back!(EmbeddingOps {
    embed(ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor);
});
