//! Model architectures on packed weights, one file a family.
//!
//! [`load`] reads `general.architecture` and gives a [`Model`]: its sizes, its caches and its forward pass
//! over ragged [`Step`](gruff_kernels::Step)s. Weights stay packed, in the file's order, borrowed from its map.

mod caches;
mod error;
mod hooks;
mod model;
mod names;

pub use caches::{CacheLayer, CacheOptions, CachePlan, Caches, LayerCache};
pub use error::{Error, Result};
pub use hooks::{HookContext, HookGuard, Hooks};
pub use model::{Model, ModelConfig};
pub use names::Names;
