//! Checkpoints from one file to another: safetensors to GGUF and back, quantize, split, merge, edit.

mod architecture;
mod container;
mod convert;
mod dequantize;
mod error;
mod json;
mod layout;
mod progress;
pub mod quantize;
pub mod safetensors;
mod stream;

#[cfg(test)]
mod tests;

pub use container::{Assignment, Edit, Replaced, edit, finish_edit, merge, split};
pub use convert::{ConvertOptions, Converted, OutType, convert};
pub use dequantize::{Dense, DequantizeOptions, Dequantized, Dtype, dequantize};
pub use error::{Error, Result};
pub use progress::Progress;
