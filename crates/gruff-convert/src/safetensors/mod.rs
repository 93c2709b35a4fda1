//! Hugging Face's tensor files: a JSON header, then the values of each tensor.
//!
//! The format: <https://huggingface.co/docs/safetensors>.

mod dtype;
mod header;
mod reader;
mod writer;

pub use dtype::Dtype;
pub use header::TensorEntry;
pub use reader::{SafetensorsFile, Shards};
pub(crate) use writer::{ShardTensor, ShardWriter};
