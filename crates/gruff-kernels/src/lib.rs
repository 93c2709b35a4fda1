//! Devices, tensors and the fused operations that language models are made of, on packed weights.
//!
//! Usable on its own: nothing here knows GGUF or models. Each operation family is a folder with its contract
//! (shapes, layouts, tolerances), a reference in f64, and one implementation a device.

mod activation;
pub mod attention;
mod buffer;
mod check;
mod collective;
pub mod conformance;
mod cpu;
pub mod cuda;
pub mod delta_net;
mod device;
pub mod elementwise;
pub mod embedding;
mod error;
mod kv;
mod later;
pub mod matmul;
pub mod moe;
pub mod norm;
mod packed;
mod plain;
mod profile;
mod reference;
mod replay;
pub mod rope;
pub mod sampling;
mod state;
mod step;
mod tensor;

pub use activation::Activation;
pub use buffer::ForeignBytes;
pub use collective::{Collective, Rank};
pub use cpu::{CpuOptions, Isa, bandwidth, compute, topology};
pub use cuda::{CudaError, CudaOptions};
pub use device::{Activations, Ceilings, Device};
pub use error::{Error, Result};
pub use kv::{KvDtype, KvLayer, PAGE_LEN};
pub use later::Later;
pub use packed::{PackedTensor, ROWS_TOGETHER};
pub use plain::Without;
pub use profile::{Family, KernelProfile, OpProfile};
pub use replay::Recordings;
pub use state::{CHUNK, StateLayer, StateShape};
pub use step::{Draw, LateIds, Step, StepSequence, StepTokens};
pub use tensor::{DType, MAX_RANK, Tensor};
