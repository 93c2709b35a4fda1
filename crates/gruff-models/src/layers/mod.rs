//! The parts that architectures are put together from.
//!
//! Blocks take the normalised residual stream and give a [`Branch`], which the [`Residual`] adds; the last
//! projection of a branch and the addition are then one operation.

mod attention;
mod decoder;
mod decoder_layer;
mod eager;
mod embedding;
mod experts;
mod feed_forward;
mod forward;
mod gated_delta_net;
mod head;
mod linear;
mod mlp;
mod moe;
mod norm;
mod recurrent;
mod residual;
mod rope;

pub(crate) use attention::{Attention, AttentionConfig};
pub(crate) use decoder::{Decoder, Layer};
pub(crate) use decoder_layer::DecoderLayer;
pub(crate) use embedding::Embedding;
pub(crate) use experts::ExpertStack;
pub(crate) use feed_forward::{FeedForward, FeedForwardConfig};
pub(crate) use forward::Forward;
pub(crate) use gated_delta_net::{GatedDeltaNet, GatedDeltaNetConfig};
pub(crate) use head::{Head, shared_rows};
pub(crate) use linear::Linear;
pub(crate) use mlp::Mlp;
pub(crate) use moe::{Moe, MoeConfig};
pub(crate) use norm::RmsNorm;
pub(crate) use residual::{Branch, Residual};
pub(crate) use rope::{RopeTable, rope_spec};
