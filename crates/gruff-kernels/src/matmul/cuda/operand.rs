//! Matrices as kernels take them.

use cudarc::driver::sys::CUdeviceptr;

use super::MATRICES;
use crate::cuda::{CudaDevice, pointer};
use crate::elementwise::cuda::glu_number;
use crate::matmul::Glu;
use crate::{PackedTensor, Result, Tensor};

/// A matrix (or a stack) and where its products go.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) weight: &'a PackedTensor,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) out: &'a Tensor,
}

/// What becomes of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Stored, the bias added.
    Store,
    /// Added to what is there.
    Add,
    /// Of two matrices, gate and up, combined, and left in pieces besides, at an address that is not 0.
    Glu(Glu, CUdeviceptr),
}

impl Finish {
    /// The number that kernels know it by.
    pub(crate) fn number(self) -> i32 {
        match self {
            Finish::Store => 0,
            Finish::Add => 1,
            Finish::Glu(glu, _) => 2 + glu_number(glu),
        }
    }
}

/// `struct Matrices` of `product.cuh`.
pub(crate) struct Matrices {
    pub(crate) words: [u64; MATRICES_WORDS],
}

/// 64-bit words of `struct Matrix`, and of `struct Matrices`.
const WORDS: usize = 7;
pub(super) const MATRICES_WORDS: usize = WORDS * MATRICES + 2;

/// The address of a tensor's packed bytes, or values.
pub(crate) fn weights(weight: &PackedTensor) -> CUdeviceptr {
    weight.buffer().cuda().pointer() + weight.row_offset(0, 0) as CUdeviceptr
}

/// Bytes of eight rows of a packed matrix.
pub(crate) fn strip_bytes(weight: &PackedTensor) -> usize {
    weight.strips().map_or(0, |strips| strips.strip_bytes())
}

/// Bytes from one matrix of a stack to the next.
pub(crate) fn matrix_bytes(weight: &PackedTensor) -> usize {
    weight.row_offset(1, 0) - weight.row_offset(0, 0)
}

/// How many tiles of so many rows all matrices have; of gated units half a tile's rows are the gate's, half up's.
pub(super) fn row_tiles(operands: &[Operand], finish: Finish, rows: usize) -> usize {
    match finish {
        Finish::Glu(..) => operands[0].weight.rows().div_ceil(rows / 2),
        _ => operands.iter().map(|operand| operand.weight.rows().div_ceil(rows)).sum(),
    }
}

impl Matrices {
    pub(crate) fn of(device: &CudaDevice, operands: &[Operand], finish: Finish) -> Result<Self> {
        let mut words = [0; MATRICES_WORDS];
        if let Finish::Glu(_, pieces) = finish {
            let groups = super::groups(operands[0].out.shape()[1]);
            words[WORDS * MATRICES..].copy_from_slice(&[pieces, groups as u64]);
        }
        for (operand, words) in operands.iter().zip(words.chunks_exact_mut(WORDS)) {
            let Operand { weight, bias, out } = operand;
            let scales = || (0..weight.matrices()).map(|matrix| weight.scale(matrix));
            let first = scales().next().unwrap_or(1.0);
            let mut scales_at = 0;
            if scales().any(|scale| scale != first) {
                scales_at = device.constant(&scales().collect::<Vec<f32>>())?;
            }
            let rows_and_scale = weight.rows() as u64 | u64::from(first.to_bits()) << 32;
            let stride = out.strides()[0] as u64;
            words.copy_from_slice(&[
                weights(weight),
                pointer(out),
                bias.map_or(0, pointer),
                scales_at,
                stride,
                matrix_bytes(weight) as u64,
                rows_and_scale,
            ]);
        }
        Ok(Self { words })
    }
}
