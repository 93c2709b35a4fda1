//! Products: every row of weights is unpacked to f32 and multiplied with every token.

use crate::cpu::CpuDevice;
use crate::cpu::scratch::with_scratch;
use crate::cpu::view::{Input, Output};
use crate::{PackedTensor, Result, Tensor};

/// Sums that do not wait for each other, so that a compiler may compute them together.
const SUMS: usize = 8;

pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0; SUMS];
    let (x, x_rest) = x.as_chunks::<SUMS>();
    let (y, y_rest) = y.as_chunks::<SUMS>();
    for (x, y) in x.iter().zip(y) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.into_iter().sum::<f32>() + rest
}

/// A row of a matrix of a stack, widened and scaled.
pub(super) fn unpack(weight: &PackedTensor, matrix: usize, row: usize, out: &mut [f32]) {
    let unpacked = weight.unpack_row_unlocked(matrix, row, out);
    debug_assert!(unpacked.is_ok(), "{unpacked:?}");
}

/// As [`crate::matmul::linear`], inputs not rounded.
pub(super) fn linear(
    cpu: &CpuDevice,
    x: &Tensor,
    weight: &PackedTensor,
    bias: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    // SAFETY: x and the bias were checked to be disjoint from the output.
    let (x, bias) = unsafe { (Input::<f32>::of(x), bias.map(|bias| Input::<f32>::of(bias).row(0))) };
    let out = Output::<f32>::of(out);
    cpu.share(weight.rows(), weight.cols() * (x.rows() + 1), |rows| {
        with_scratch(weight.cols(), |values| {
            for row in rows {
                unpack(weight, 0, row, values);
                for token in 0..x.rows() {
                    let product = dot(x.row(token), values) + bias.map_or(0.0, |bias| bias[row]);
                    // SAFETY: within the operation, only this piece touches this column of the output; no slice of
                    // it exists.
                    unsafe { out.set(token, row, product) };
                }
            }
        });
    });
    Ok(())
}
