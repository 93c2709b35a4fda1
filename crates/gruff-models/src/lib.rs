//! Model architectures on packed weights, one file a family.
//!
//! [`load`] reads `general.architecture` and gives a [`Model`]: its sizes, its caches and its forward pass
//! over ragged [`Step`](gruff_kernels::Step)s. Weights stay packed, in the file's order, borrowed from its map.

#[cfg(test)]
extern crate self as gruff_models;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

mod adapters;
mod caches;
mod config;
mod error;
mod fingerprint;
mod hooks;
mod keys;
mod layers;
mod load;
mod lora;
mod model;
mod modules;
mod names;
mod outputs;
mod parameters;
mod part_bytes;
mod pattern;
mod placement;
mod prepare;
mod shard;
mod snapshot;
mod tensor_parallel;
mod weights;

mod gemma3;
mod llama;
mod qwen2;
mod qwen3;
mod qwen35;
mod versioned;

pub use adapters::{Adapters, LoraScales};
pub use caches::{CacheLayer, CacheOptions, CachePlan, Caches, LayerCache};
pub use error::{Error, Result};
pub use fingerprint::{Origin, fingerprint};
pub use hooks::{HookContext, HookError, HookGuard, Hooks, InputContext, RoutedRows};
pub use load::{load, load_placed, names, supported_architectures};
pub use lora::Lora;
pub use model::{Model, ModelBase, ModelConfig};
pub use modules::{Module, ModuleGuard, ModuleInfo, ModuleKind, Modules};
pub use names::Names;
pub use outputs::{AttnChoice, AttnImplementation, ForwardOptions, LayerAttentions, ModelOutput};
pub use parameters::{PackedWeight, Parameters, Weight};
pub use part_bytes::PartBytes;
pub use placement::Placement;
pub use prepare::{Steps, prepare};
pub use snapshot::Snapshot;
