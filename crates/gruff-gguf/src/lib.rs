//! Read, check and write GGUF containers.
//!
//! A GGUF file is a header (typed key-value metadata and a table of tensors) followed by the tensors' packed
//! bytes. [`Gguf`] maps one into memory, all parts of it when it was split, checks the header against explicit
//! [`Limits`], and hands out tensor bytes without copying them. [`Writer`] makes such files.
//!
//! Every file is untrusted input: whatever its bytes, opening it gives a model or an [`Error`] that names the
//! file, the key or tensor, and the fault. Versions 1, 2 and 3 are read, in little and big-endian order.
//!
//! ```no_run
//! # fn main() -> Result<(), gruff_gguf::Error> {
//! let model = gruff_gguf::Gguf::open("model-00001-of-00003.gguf")?;
//! let architecture = model.metadata().require_str("general.architecture")?;
//! let layers = model.metadata().require_u32(&format!("{architecture}.block_count"))?;
//! let embeddings = model.require("token_embd.weight")?;
//! let packed = model.data(embeddings)?;
//! println!("{layers} layers, {} bytes of {}", packed.len(), embeddings.block_type()?);
//! # Ok(())
//! # }
//! ```
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod data;
mod edit;
mod encode;
mod error;
mod gguf;
mod header;
mod index;
mod journal;
mod limits;
mod metadata;
mod split;
mod swap;
mod tensor;
mod unfinished;
mod value;
mod writer;

pub use data::TensorData;
pub use edit::{Replaced, replace_metadata};
pub use error::{Error, Fault};
pub use gguf::Gguf;
pub use journal::finish_edit;
pub use limits::Limits;
pub use metadata::Metadata;
pub use tensor::TensorInfo;
pub use unfinished::{Unfinished, abandon_unfinished};
pub use value::{Array, Endian, Strings, Value, ValueType};
pub use writer::{FileWriter, Split, Writer};
