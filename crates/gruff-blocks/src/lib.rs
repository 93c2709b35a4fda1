//! The ggml block formats: sizes, unpack, pack.
//!
//! Plain readable Rust that everything faster is checked against.

mod error;
mod types;

pub use error::Error;
pub use types::BlockType;
