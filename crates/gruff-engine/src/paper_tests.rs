//! What several tests of this crate are about: a model that is only planned for, and the plan of recurrent layers.

use gruff_kernels::{StateShape, Step, Tensor};
use gruff_models::{CachePlan, Caches, LayerCache, Model, ModelBase};

/// A model that computes nothing.
pub(crate) struct Paper(pub(crate) ModelBase);

impl Model for Paper {
    fn base(&self) -> &ModelBase {
        &self.0
    }

    fn forward(&self, _: &Step, _: &mut Caches) -> gruff_models::Result<Tensor> {
        unreachable!("nothing is computed here")
    }
}

/// Recurrent layers as small as may be.
pub(crate) fn recurrent(layers: usize) -> CachePlan {
    let shape = StateShape {
        key_heads: 1,
        value_heads: 1,
        key_dim: 2,
        value_dim: 2,
        conv_kernel: 2,
        conv_channels: 6,
        rollback: 0,
    };
    CachePlan::new(vec![LayerCache::State(shape); layers])
}
