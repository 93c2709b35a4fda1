//! Products with activations as they are, in f32.

use super::EXACT;
use super::books::book_words;
use super::input::{groups, turned_bytes};
use super::launch::{SLOTS, Slots, advance, alignment, group_bytes, pair, slot_words};
use super::operand::{Finish, Matrices, Operand};
use crate::cuda::CudaDevice;
use crate::{Activation, Result};

/// The most columns of a launch.
const COLUMNS: usize = 4;
/// Stages of a warp's ring (`STAGES` in `exact.cu`) and groups of a stage.
const STAGES: usize = 2;
const LANES: usize = 32;
/// The most warps of a block; its registers are for no more.
const WARPS: usize = 16;
/// The most groups that a bundle of rows has, unless one row has more.
const BUNDLE_GROUPS: usize = 128;
/// Bundles whose sums are kept until their rows are added up.
const HOLD: usize = 4;

/// How the kernel cuts rows of so many groups: rows of a bundle, and stages that a bundle takes.
fn bundle(groups: usize) -> (usize, usize) {
    let most = (BUNDLE_GROUPS / groups).max(1);
    // Share of the lanes of all stages that have a group, in thousandths.
    let used = |rows: usize| 1000 * rows * groups / ((rows * groups).next_multiple_of(LANES));
    let best = (1..=most).map(used).max().unwrap_or(0);
    let rows = (1..=most).find(|rows| used(*rows) >= best.min(930)).unwrap_or(1);
    (rows, (rows * groups).div_ceil(LANES))
}

impl CudaDevice {
    pub(super) fn unrounded(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let block_type = weight.block_type();
        let input = self.turned(x)?;
        let matrices = Matrices::of(self, operands, finish)?;
        let aligned = alignment(operands);
        let groups = groups(x.cols());
        let (bundle_rows, stages) = bundle(groups);
        let parts = if matches!(finish, Finish::Glu(..)) { 2 } else { 1 };
        let counted = if parts == 2 { &operands[..1] } else { operands };
        let bundles: usize = counted.iter().map(|operand| operand.weight.rows().div_ceil(bundle_rows)).sum();

        // What a group's loads touch beside it is within 16 bytes on either side.
        let stage_bytes = (LANES * group_bytes(block_type) + 15).next_multiple_of(16) + 16;
        let sums = bundle_rows * groups;
        let total = slots.map_or(x.rows(), |slots| slots.rows());
        let widest = if slots.is_some() { 1 } else { COLUMNS };
        let launches = if slots.is_some() { SLOTS } else { COLUMNS };
        let x_bytes = turned_bytes(groups);
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
            let x_at = input.first + (row * x_bytes) as u64;
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
                ("ALIGNED", aligned),
                ("SLOTS", i64::from(slots.is_some())),
            ];
            self.launch(&EXACT, &defines, "exact")?
                .grid([blocks, repeats, 1])
                .block(32 * warps)
                .shared(fixed + warps * warp_bytes)
                .arg(words)
                .arg(cut)
                .arg(x_at)
                .arg(self.book(block_type)?)
                .arg(ids)
                .run()?;
        }
        Ok(())
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
