//! The real binary, driven as a user does, on a tiny random model.

mod bench;
#[cfg(feature = "bundled-model")]
mod bundled;
mod chat;
mod convert;
mod embed;
mod errors;
mod evaluate;
mod files;
mod gruff;
mod quantize;
mod run;
#[cfg(feature = "bundled-model")]
mod sampling;
mod serve;
#[cfg(unix)]
mod signals;
mod text;
#[path = "../../../gruff/examples/tiny_random/model.rs"]
mod tiny;
