//! The family on NVIDIA cards.

use super::{SampleSpec, SamplingOps};
use crate::Tensor;
use crate::cuda::fall_back;

fall_back!(SamplingOps {
    argmax(logits: &Tensor, ids: &Tensor);
    sample(logits: &Tensor, specs: &[SampleSpec], ids: &Tensor);
});
