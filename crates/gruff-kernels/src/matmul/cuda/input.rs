//! Activations in the forms that kernels read.

use cudarc::driver::sys::CUdeviceptr;

use super::PIECES;
use crate::activation::Form;
use crate::buffer::Buffer;
use crate::cuda::CudaDevice;
use crate::{Activation, Result, Tensor};

/// Values of a group.
pub(super) const GROUP: usize = 256;

/// Rows of a tile of pieces, and bytes of a group of one row.
pub(super) const TILE_ROWS: usize = 8;
pub(super) const GROUP_BYTES: usize = 2 * GROUP;

/// An activation on the card, in a form of it.
pub(crate) struct Input {
    pub(crate) first: CUdeviceptr,
    _keep: Buffer,
}

/// Groups of 256 values in a row.
pub(crate) fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

/// Bytes of a row in pieces of four floats: 32 groups lie side by side.
pub(super) fn turned_bytes(groups: usize) -> usize {
    groups.next_multiple_of(32) * GROUP * size_of::<f32>()
}

impl CudaDevice {
    /// Memory for the pieces of `[T, cols]`.
    pub(crate) fn pieces_buffer(&self, tensor: &Tensor) -> Result<Buffer> {
        let [rows, cols] = [0, 1].map(|axis| tensor.shape()[axis]);
        tensor.device().scratch_buffer(rows.next_multiple_of(TILE_ROWS) * groups(cols) * GROUP_BYTES)
    }

    /// The activation in bfloat16 pieces, made when it is first asked for.
    pub(super) fn pieces(&self, x: &Activation) -> Result<Input> {
        const THREADS: usize = 256;
        let steps = groups(x.cols()) * GROUP / 16;
        let buffer = x.form(Form::Pieces, |tensor| {
            let buffer = self.pieces_buffer(tensor)?;
            self.launch(&PIECES, &[], "to_pieces")?
                .grid([x.rows().div_ceil(TILE_ROWS), (TILE_ROWS * steps).div_ceil(THREADS), 1])
                .block(THREADS)
                .rows_of(tensor)
                .arg(x.rows() as i32)
                .arg(x.cols() as i32)
                .arg(groups(x.cols()) as i32)
                .arg(buffer.cuda().pointer())
                .run()?;
            Ok(buffer)
        })?;
        Ok(Input { first: buffer.cuda().pointer(), _keep: buffer })
    }

    /// The activation as it is, in pieces of four floats.
    pub(super) fn turned(&self, x: &Activation) -> Result<Input> {
        let groups = groups(x.cols());
        let buffer = x.form(Form::TurnedFloats, |tensor| {
            let buffer = tensor.device().scratch_buffer(x.rows() * turned_bytes(groups))?;
            self.launch(&PIECES, &[], "turn")?
                .grid([x.rows(), 1, 1])
                .block((groups * 64).min(1024))
                .rows_of(tensor)
                .arg(x.cols() as i32)
                .arg(groups as i32)
                .arg(buffer.cuda().pointer())
                .run()?;
            Ok(buffer)
        })?;
        Ok(Input { first: buffer.cuda().pointer(), _keep: buffer })
    }
}
