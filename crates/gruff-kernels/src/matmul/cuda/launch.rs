//! Products by launch: which kernel, how its work is cut.

use cudarc::driver::sys::CUdeviceptr;
use gruff_blocks::BlockType;

use super::books::book_words;
use super::input::{groups, turned_bytes};
use super::operand::{Finish, Matrices, Operand, matrix_bytes, weights};
use super::{MATVEC, SCALAR};
use crate::activation::Form;
use crate::cuda::CudaDevice;
use crate::matmul::quantize::Q8_GROUP;
use crate::{Activation, Result, Tensor};

/// The most columns that a vector kernel takes.
pub(crate) const VECTOR_COLUMNS: usize = 4;
/// The most that the kernel for plain numbers takes.
const SCALAR_COLUMNS: usize = 8;
/// Stages of a warp's ring (`STAGES` in `matvec.cu`) and groups of a stage.
const STAGES: usize = 2;
const LANES: usize = 32;
/// The most warps of a block; its registers are for no more.
const WARPS: usize = 16;
/// The most groups that a bundle of rows has, unless one row has more.
const BUNDLE_GROUPS: usize = 128;
/// Bundles whose sums are kept until their rows are added up.
const HOLD: usize = 4;
/// The most rows of output, each with its expert, in one launch: what the second dimension of a grid has.
const SLOTS: usize = 65_535;

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

/// Bytes of a whole group of 256 values.
pub(crate) fn group_bytes(block_type: BlockType) -> usize {
    Q8_GROUP / block_type.values() * block_type.bytes()
}

/// How the vector kernel cuts rows of so many groups: rows of a bundle, and stages that a bundle takes.
fn bundle(groups: usize) -> (usize, usize) {
    let most = (BUNDLE_GROUPS / groups).max(1);
    // Share of the lanes of all stages that have a group, in thousandths.
    let used = |rows: usize| 1000 * rows * groups / ((rows * groups).next_multiple_of(LANES));
    let best = (1..=most).map(used).max().unwrap_or(0);
    let rows = (1..=most).find(|rows| used(*rows) >= best.min(930)).unwrap_or(1);
    (rows, (rows * groups).div_ceil(LANES))
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
            return self.scalar(x, operands, finish, slots);
        }
        let few = match slots {
            None => x.rows() <= VECTOR_COLUMNS,
            Some(slots) => slots.rows() <= self.few_slots(&slots),
        };
        if self.exact(block_type) || few {
            self.vectors(x, operands, finish, slots)
        } else {
            self.matrices(x, operands, finish, slots)
        }
    }

    /// Rows whose experts' matrices are read row by row of the output rather than gathered.
    fn few_slots(&self, slots: &Slots) -> usize {
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
            Finish::Glu(_) => self.fallback_linear(x, operands[0].weight, None, operands[0].out),
        }
    }

    fn vectors(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let block_type = weight.block_type();
        let exact = self.exact(block_type);
        let input = self.input(x, if exact { Form::TurnedFloats } else { Form::Turned })?;
        let matrices = Matrices::of(self, operands)?;
        let aligned = operands.iter().all(|operand| {
            let all = weights(operand.weight) as usize
                | operand.weight.row_bytes()
                | matrix_bytes(operand.weight)
                | group_bytes(block_type);
            all.is_multiple_of(16)
        });
        let groups = groups(x.cols());
        let (bundle_rows, stages) = bundle(groups);
        let parts = if matches!(finish, Finish::Glu(_)) { 2 } else { 1 };
        let counted = if parts == 2 { &operands[..1] } else { operands };
        let bundles: usize = counted.iter().map(|operand| operand.weight.rows().div_ceil(bundle_rows)).sum();

        // What a group's loads touch beside it is within 16 bytes on either side.
        let stage_bytes = (LANES * group_bytes(block_type) + 15).next_multiple_of(16) + 16;
        let sums = bundle_rows * groups;
        let total = slots.map_or(x.rows(), |slots| slots.rows());
        let widest = if slots.is_some() { 1 } else { VECTOR_COLUMNS };
        let launches = if slots.is_some() { SLOTS } else { VECTOR_COLUMNS };
        let (x_bytes, second_bytes) = turned_bytes(groups, exact);
        for first in (0..total).step_by(launches) {
            let rows = launches.min(total - first);
            let columns = rows.min(widest);
            let fixed = 4 * book_words(block_type) + group_bytes(block_type) + 32;
            let hold = (LANES / (bundle_rows * columns)).clamp(1, HOLD);
            let warp_bytes = STAGES * stage_bytes + 4 * sums * columns * parts * hold;
            let room = self.card().shared_bytes.saturating_sub(fixed) / warp_bytes;
            let processors = self.card().multiprocessors.max(1);
            let repeats = if slots.is_some() { rows } else { 1 };
            let warps = (bundles * repeats).div_ceil(processors).min(room).clamp(1, WARPS);
            let blocks = bundles.div_ceil(warps).min(processors.div_ceil(repeats)).max(1);
            let row = if slots.is_some() { 0 } else { first };
            let x_words = [input.first + (row * x_bytes) as u64, input.second + (row * second_bytes) as u64];
            let (share, experts, used, ids, id_stride) = slot_words(slots.as_ref());
            let cut = [
                pair(x.cols(), groups),
                pair(weight.row_bytes(), (1_usize << 32).div_ceil(groups)),
                pair(bundle_rows, stages),
                pair(bundles, hold),
                pair(stage_bytes, sums),
                pair(operands.len(), finish.number() as usize),
                pair(share, experts),
                pair(used, first),
                id_stride,
            ];
            let mut words = matrices.words;
            if slots.is_none() {
                advance(&mut words, operands, first);
            }
            let defines = [
                ("WEIGHT", i64::from(block_type.id())),
                ("COLUMNS", columns as i64),
                ("EXACT", i64::from(exact)),
                ("ALIGNED", i64::from(aligned)),
                ("SLOTS", i64::from(slots.is_some())),
            ];
            self.launch(&MATVEC, &defines, "matvec")?
                .grid([blocks, repeats, 1])
                .block(32 * warps)
                .shared(fixed + warps * warp_bytes)
                .arg(words)
                .arg(cut)
                .arg(x_words)
                .arg(self.book(block_type)?)
                .arg(ids)
                .run()?;
        }
        Ok(())
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
        if operands
            .iter()
            .any(|operand| !(weights(operand.weight) as usize).is_multiple_of(block_type.bytes()))
        {
            return self.unaligned(operands);
        }
        let matrices = Matrices::of(self, operands)?;
        let pairs: usize = match finish {
            Finish::Glu(_) => weight.rows(),
            _ => operands.iter().map(|operand| operand.weight.rows().div_ceil(2)).sum(),
        };
        const WARPS: usize = 8;
        let total = slots.map_or(x.rows(), |slots| slots.rows());
        let columns = match (slots, total) {
            (Some(_), _) | (_, 1) => 1,
            (_, 2..=4) => 4,
            _ => SCALAR_COLUMNS,
        };
        let (share, experts, used, ids, id_stride) = slot_words(slots.as_ref());
        for first in (0..total).step_by(SLOTS * columns) {
            let input = [
                crate::cuda::pointer(x.tensor()),
                x.tensor().strides()[0] as u64,
                pair(x.rows(), x.cols()),
                pair(share, experts),
                pair(used, first),
                id_stride,
            ];
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
                .arg(input)
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

/// Moves all outputs down by so many rows.
fn advance(words: &mut [u64], operands: &[Operand], rows: usize) {
    for (matrix, operand) in words.chunks_exact_mut(7).zip(operands) {
        matrix[1] += (rows * operand.out.strides()[0] * 4) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_fill_the_lanes() {
        assert_eq!(bundle(16), (2, 1));
        assert_eq!(bundle(8), (4, 1));
        assert_eq!(bundle(200), (1, 7));
        for groups in 1..300 {
            let (rows, stages) = bundle(groups);
            assert!(
                rows >= 1 && stages * LANES >= rows * groups && (rows == 1 || rows * groups <= BUNDLE_GROUPS)
            );
        }
    }
}
