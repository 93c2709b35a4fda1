//! Activations in the forms that kernels read.

use cudarc::driver::sys::CUdeviceptr;

use super::QUANTIZE;
use crate::activation::Form;
use crate::buffer::Buffer;
use crate::cuda::CudaDevice;
use crate::matmul::quantize::Q8_GROUP;
use crate::{Activation, Result, Tensor};

/// Bytes of a sub-block's scales and sums (`struct XBlock`).
const BLOCK_BYTES: usize = 16;

/// A rounded activation on the card: codes, second terms, blocks; or, unrounded, floats.
pub(crate) struct Input {
    pub(crate) first: CUdeviceptr,
    pub(crate) second: CUdeviceptr,
    /// For [`Form::Lined`]; those of turned ones stand among the codes.
    pub(crate) blocks: CUdeviceptr,
    _keep: Buffer,
}

/// Groups of 256 values in a row.
pub(crate) fn groups(cols: usize) -> usize {
    cols.div_ceil(Q8_GROUP)
}

/// Bytes of a turned row, of its second terms: 32 groups lie side by side, in pieces of 16 bytes.
pub(crate) fn turned_bytes(groups: usize, exact: bool) -> (usize, usize) {
    let side_by_side = groups.next_multiple_of(32);
    let (pieces, second) = if exact { (64, 0) } else { (16 + 8, 16) };
    (side_by_side * pieces * 16, side_by_side * second * 16)
}

/// Threads that round a row: short rows, as of experts, take few.
pub(crate) fn quantize_threads(groups: usize) -> usize {
    (groups * 64).next_multiple_of(32).min(1024)
}

impl CudaDevice {
    /// Memory for the turned form of rows of so many groups, and the bytes in front of its second terms.
    pub(crate) fn turned_buffer(&self, tensor: &Tensor, groups: usize) -> Result<(Buffer, usize)> {
        let (codes, seconds) = turned_bytes(groups, false);
        let rows = tensor.shape()[0];
        Ok((tensor.device().scratch_buffer(rows * (codes + seconds))?, rows * codes))
    }

    /// The activation in a form, made when it is first asked for.
    pub(crate) fn input(&self, x: &Activation, form: Form) -> Result<Input> {
        let (rows, groups) = (x.rows(), groups(x.cols()));
        let (codes, seconds, blocks) = match form {
            Form::Lined => (groups * Q8_GROUP, groups * Q8_GROUP, groups * 8 * BLOCK_BYTES),
            _ => {
                let (codes, seconds) = turned_bytes(groups, form == Form::TurnedFloats);
                (codes, seconds, 0)
            }
        };
        let (second_at, blocks_at) = (rows * codes, rows * (codes + seconds));
        let buffer = x.form(form, |tensor| {
            let bytes = blocks_at + rows * blocks;
            let buffer = tensor.device().scratch_buffer(bytes)?;
            let to = buffer.cuda().pointer();
            let threads = quantize_threads(groups);
            // Long rows are shared by blocks where rows are too few to occupy the card.
            let most = (self.card().multiprocessors / rows.max(1)).max(1);
            let parts =
                if form == Form::TurnedFloats { 1 } else { (groups * 64).div_ceil(threads).min(most) };
            let turned = i64::from(form != Form::Lined);
            let entry = if form == Form::TurnedFloats { "turn" } else { "quantize" };
            let launch = self
                .launch(&QUANTIZE, &[("TURNED", turned)], entry)?
                .grid([rows, parts, 1])
                .block(threads)
                .rows_of(tensor)
                .arg(x.cols() as i32)
                .arg(groups as i32)
                .arg(to);
            match form {
                Form::TurnedFloats => launch.run()?,
                _ => launch.arg(to + second_at as u64).arg(to + blocks_at as u64).run()?,
            }
            Ok(buffer)
        })?;
        let first = buffer.cuda().pointer();
        let (second, blocks) = (first + second_at as u64, first + blocks_at as u64);
        Ok(Input { first, second, blocks, _keep: buffer })
    }
}
