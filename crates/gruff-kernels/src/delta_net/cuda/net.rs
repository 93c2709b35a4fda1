//! A gated delta net between its projections in one launch (`net.cu`), for one token of every sequence.

use super::tensor::pairs_floats;
use crate::activation::Form;
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::delta_net::NetInputs;
use crate::delta_net::net::query_length;
use crate::matmul::cuda::{groups, pieces_address};
use crate::{Activation, CHUNK, DType, Result, StateLayer, StateShape, Step};

pub(crate) static NET: Source = Source {
    name: "net.cu",
    code: include_str!("net.cu"),
    options: &[],
    variants: &[
        &[("DK", 128), ("DV", 128), ("TAPS", 4)],
        &[("DK", 16), ("DV", 48), ("TAPS", 4)],
        &[("DK", 128), ("DV", 64), ("TAPS", 2)],
    ],
};

/// The widest value head: eight columns a warp, half of a block's threads.
const WIDEST: usize = 128;

/// The most taps: a thread has a channel's in registers.
const TAPS: usize = 8;

/// As in the source.
const BLOCK: usize = 16;

fn net_bytes(shape: &StateShape) -> usize {
    let StateShape { key_dim, value_dim, .. } = *shape;
    let row = CHUNK * (key_dim + 4) + BLOCK * value_dim;
    let floats = row + 2 * key_dim + 3 * value_dim + 2 * CHUNK + pairs_floats(key_dim) + pairs_floats(CHUNK);
    2 * CHUNK * (2 * value_dim + 16) + 4 * floats
}

impl CudaDevice {
    pub(super) fn has_net(&self, step: &Step, shape: &StateShape) -> bool {
        let channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
        self.fuses_norms()
            && self.has_tensor_delta(shape)
            && shape.conv_channels == channels
            && shape.value_dim <= WIDEST
            && shape.conv_kernel <= TAPS
            && net_bytes(shape) <= self.card().shared_bytes
            && step.sequences().iter().all(|sequence| sequence.len == 1)
    }

    pub(super) fn net(&self, step: &Step, inputs: &NetInputs, layer: &StateLayer) -> Result<Activation> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let NetInputs { qkv, z, a, b, conv, dt_bias, a_neg, norm, l2_eps, norm_eps } = *inputs;
        let out = qkv.device().scratch(DType::F32, &[step.len(), shape.value_heads * shape.value_dim])?;
        let pieces = if self.leaves_pieces(&out) { Some(self.pieces_buffer(&out)?) } else { None };
        let [key_dim, value_dim] = super::defines(layer);
        self.launch(&NET, &[key_dim, value_dim, ("TAPS", shape.conv_kernel as i64)], "gated_delta_net")?
            .grid([step.len(), shape.value_heads, 1])
            .block(4 * shape.value_dim)
            .shared(self.spread(step.len() * shape.value_heads, net_bytes(&shape)))
            .rows_of(qkv)
            .heads_of(z)
            .rows_of(a)
            .rows_of(b)
            .arg(conv)
            .arg(dt_bias)
            .arg(a_neg)
            .arg(norm)
            .rows_of(&out)
            .arg(layer.conv())
            .arg(layer.matrix())
            .arg(layer.keys())
            .arg(layer.updates())
            .arg(layer.decays())
            .arg(tables.sequences())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(shape.conv_rows() as i32)
            .arg(shape.rows() as i32)
            .arg(shape.matrices() as i32)
            .arg(l2_eps)
            .arg(query_length(shape.key_dim))
            .arg(norm_eps)
            .arg(pieces.as_ref().map_or(0, |buffer| pieces_address(buffer, out.shape()[0])))
            .arg(groups(out.shape()[1]) as i32)
            .run()?;
        match pieces {
            Some(pieces) => Activation::with_form(&out, Form::Pieces, pieces),
            None => Activation::new(&out),
        }
    }
}
