//! The family on NVIDIA cards.

use super::{AttentionOps, AttentionSpec};
use crate::cuda::fall_back;
use crate::{KvLayer, Step, Tensor};

fall_back!(AttentionOps {
    write_kv(step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer);
    attention(step: &Step, queries: &Tensor, layer: &KvLayer, spec: &AttentionSpec, out: &Tensor);
});
