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

/// The most rows that are flat instead of in tiles (see `pieces.cuh`).
pub(super) const FLAT_ROWS: usize = TILE_ROWS;

/// The address of pieces of so many rows as kernels take it: the lowest bit says that they are flat.
pub(crate) fn pieces_address(buffer: &Buffer, rows: usize) -> CUdeviceptr {
    buffer.cuda().pointer() | CUdeviceptr::from(rows <= FLAT_ROWS)
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
                .arg(pieces_address(&buffer, x.rows()))
                .run()?;
            Ok(buffer)
        })?;
        Ok(Input { first: pieces_address(&buffer, x.rows()), _keep: buffer })
    }
}
