//! Products by launch: which kernel, how its work is cut.

use cudarc::driver::sys::CUdeviceptr;

use super::SCALAR;
use super::input::{FLAT_ROWS, GROUP_BYTES};
use super::operand::{Finish, Matrices, Operand, row_tiles, weights};
use crate::cuda::CudaDevice;
use crate::moe::cuda::Gathered;
use crate::{Activation, Result, Tensor};

/// The most that the kernel for plain numbers takes.
const SCALAR_COLUMNS: usize = 8;
/// The most rows of output, each with its expert, in one launch: what the second dimension of a grid has.
pub(super) const SLOTS: usize = 65_535;

/// Rows of the output that each belong to an expert of a stack.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    /// `[tokens, used]`.
    pub(crate) ids: &'a Tensor,
    /// Rows of the output that share a row of x: `used`, or 1.
    pub(crate) share: usize,
    /// Experts of the stack.
    pub(crate) experts: usize,
}

impl Slots<'_> {
    pub(crate) fn used(&self) -> usize {
        self.ids.shape()[1]
    }

    pub(crate) fn rows(&self) -> usize {
        self.ids.shape()[0] * self.used()
    }
}

/// Two 32-bit fields of a structure.
pub(crate) fn pair(low: usize, high: usize) -> u64 {
    low as u32 as u64 | (high as u32 as u64) << 32
}

impl CudaDevice {
    /// The products of matrices of one type with x, to what [`Finish`] says. With `slots`, each row of the output has an
    /// expert's matrix.
    pub(crate) fn multiply(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        if x.rows() == 0 || x.cols() == 0 || operands.iter().all(|operand| operand.weight.rows() == 0) {
            return self.multiply_nothing(x, operands, finish);
        }
        let block_type = weight.block_type();
        if block_type.is_scalar() {
            let lies =
                |operand: &Operand| (weights(operand.weight) as usize).is_multiple_of(block_type.bytes());
            if !operands.iter().all(lies) {
                return self.unaligned(operands);
            }
            return match self.in_terms(block_type) {
                true => self.floats(x, operands, finish, slots),
                false => self.scalar(x, operands, finish, slots),
            };
        }
        if self.exact(block_type) {
            return self.unrounded(x, operands, finish, slots);
        }
        match slots {
            None => {
                if self.vectors(x, operands, finish)? {
                    return Ok(());
                }
            }
            Some(slots) => {
                if slots.rows() <= self.few_slots(&slots) || x.rows() <= FLAT_ROWS {
                    return self.slot_vectors(x, operands, finish, slots);
                }
            }
        }
        self.matrices(x, operands, finish, slots)
    }

    /// Rows whose experts' matrices are read row by row of the output rather than gathered.
    pub(super) fn few_slots(&self, slots: &Slots) -> usize {
        (slots.experts / 4).max(4 * slots.used())
    }

    fn multiply_nothing(&self, x: &Activation, operands: &[Operand], finish: Finish) -> Result<()> {
        match finish {
            Finish::Store => {
                for Operand { weight, bias, out } in operands {
                    let bias = *bias;
                    self.fallback_linear(x, weight, bias, out)?;
                }
                Ok(())
            }
            Finish::Add => Ok(()),
            Finish::Glu(..) => self.fallback_linear(x, operands[0].weight, None, operands[0].out),
        }
    }

    fn scalar(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let block_type = weight.block_type();
        let matrices = Matrices::of(self, operands, finish)?;
        let pairs = row_tiles(operands, finish, 2);
        const WARPS: usize = 8;
        let total = slots.map_or(x.rows(), |slots| slots.rows());
        let columns = match (slots, total) {
            (Some(_), _) | (_, 1) => 1,
            (_, 2..=4) => 4,
            _ => SCALAR_COLUMNS,
        };
        let ids = slot_words(slots.as_ref()).3;
        for first in (0..total).step_by(SLOTS * columns) {
            let defines = [
                ("WEIGHT", i64::from(block_type.id())),
                ("COLUMNS", columns as i64),
                ("SLOTS", i64::from(slots.is_some())),
            ];
            self.launch(&SCALAR, &defines, "scalar")?
                .grid([pairs.div_ceil(WARPS), (total - first).div_ceil(columns).min(SLOTS), 1])
                .block(32 * WARPS)
                .arg(matrices.words)
                .arg(operands.len() as i32)
                .arg(finish.number())
                .arg(float_rows(x, 0, slots.as_ref(), first))
                .arg(ids)
                .run()?;
        }
        Ok(())
    }

    /// Values of a file that do not lie on their own borders.
    fn unaligned(&self, operands: &[Operand]) -> Result<()> {
        let weight = operands[0].weight;
        Err(crate::Error::Shape {
            op: "linear",
            what: format!(
                "{weight:?} does not begin at a multiple of {} bytes; write the file again with an alignment of 32",
                weight.block_type().bytes()
            ),
        })
    }

    /// Outputs of products that nothing is added up for.
    fn fallback_linear(
        &self,
        x: &Activation,
        weight: &crate::PackedTensor,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        use crate::matmul::{MatmulOps, Projection};
        self.on_host(|host| host.linear_many(x, &[Projection { weight, bias, out }]))
    }
}

/// Share, experts, used, the address of the ids, values from a token's to the next's.
pub(crate) fn slot_words(slots: Option<&Slots>) -> (usize, usize, usize, CUdeviceptr, u64) {
    slots.map_or((1, 1, 1, 0, 0), |slots| {
        let stride = slots.ids.strides()[0] as u64;
        (slots.share, slots.experts, slots.used(), crate::cuda::pointer(slots.ids), stride)
    })
}

/// `struct FloatRows` of `product.cuh`: x from row `skipped` on, for rows of the output from `first` on.
pub(super) fn float_rows(x: &Activation, skipped: usize, slots: Option<&Slots>, first: usize) -> [u64; 6] {
    let stride = x.tensor().strides()[0];
    let (share, experts, used, _, id_stride) = slot_words(slots);
    [
        crate::cuda::pointer(x.tensor()) + (skipped * stride * size_of::<f32>()) as u64,
        stride as u64,
        pair(x.rows() - skipped, x.cols()),
        pair(share, experts),
        pair(used, first),
        id_stride,
    ]
}

/// The tiles of columns of a launch.
pub(super) struct ColumnTiles {
    pub(super) count: usize,
    /// Of rows that are gathered by expert: the tiles' batches and the order; else 0.
    pub(super) batches: CUdeviceptr,
    pub(super) order: CUdeviceptr,
    /// Rows of the output that share a row of x.
    pub(super) share: usize,
    _gathered: Option<Gathered>,
}

impl CudaDevice {
    /// Tiles of so many columns of the rows of x, or of each expert's.
    pub(super) fn column_tiles(
        &self,
        x: &Activation,
        slots: Option<&Slots>,
        columns: usize,
    ) -> Result<ColumnTiles> {
        let gathered = slots.map(|slots| self.gather(slots, columns)).transpose()?;
        let (batches, order) = gathered.as_ref().map_or((0, 0), |found| (found.list(), found.order()));
        Ok(ColumnTiles {
            count: gathered.as_ref().map_or(x.rows().div_ceil(columns), |found| found.batches),
            batches,
            order,
            share: slots.map_or(1, |slots| slots.share),
            _gathered: gathered,
        })
    }
}

/// Moves all outputs down by so many rows, a multiple of 8.
pub(super) fn advance(words: &mut [u64], operands: &[Operand], rows: usize) {
    for (matrix, operand) in words.chunks_exact_mut(7).zip(operands) {
        matrix[1] += (rows * operand.out.strides()[0] * 4) as u64;
    }
    let [.., pieces, groups] = words else { return };
    if *pieces != 0 {
        *pieces += rows as u64 * *groups * GROUP_BYTES as u64;
    }
}
