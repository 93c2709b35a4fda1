//! Routing on NVIDIA cards.

use super::super::Routing;
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::{Result, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "route.cu", code: include_str!("route.cu"), options: &[], variants: &[&[]] };

/// Tokens of a block, a warp each.
const TOKENS: usize = 4;

impl CudaDevice {
    /// See [`crate::moe::route`].
    pub(super) fn choose_experts(
        &self,
        logits: &Tensor,
        routing: &Routing,
        ids: &Tensor,
        weights: &Tensor,
    ) -> Result<()> {
        let (tokens, experts) = (logits.shape()[0], logits.shape()[1]);
        self.launch(&SOURCE, &[], "route")?
            .grid([tokens.div_ceil(TOKENS), 1, 1])
            .block(32 * TOKENS)
            .rows_of(logits)
            .rows_of(ids)
            .rows_of(weights)
            .arg(tokens as i32)
            .arg(experts as i32)
            .arg(routing.used as i32)
            .arg(i32::from(routing.renormalize))
            .arg(routing.scale)
            .run()
    }
}
