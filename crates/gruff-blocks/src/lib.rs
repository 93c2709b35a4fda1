//! The ggml block formats: sizes, layouts, unpack, pack.
//!
//! Plain readable Rust that everything faster is checked against. [`BlockType`] is the table of types;
//! [`BlockType::unpack`] turns packed bytes of any of them into `f32`. The layout of each block is a struct of
//! byte-aligned fields ([`legacy::Q4_0`], [`k_quants::Q4_K`], ..) that implements [`Block`], and the constants that a
//! fast kernel needs (code books, sign and scale decoding) stand beside them.

mod arrange;
pub mod binary;
mod block;
pub mod codebooks;
mod error;
pub mod iq;
pub mod k_quants;
pub mod legacy;
pub mod microscaling;
pub mod mix;
mod pack;
mod quantize;
mod scalar;
pub mod synthetic;
pub mod ternary;
mod types;
mod unpack;

pub use block::{Block, F16, U16};
pub use error::Error;
pub use quantize::check_finite;
pub use types::BlockType;
