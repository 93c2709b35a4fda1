//! Products with plain floats on tensor cores, activations as they are: how the work is cut.

use gruff_blocks::BlockType;

use super::launch::{SLOTS, Slots, advance, float_rows, pair, slot_words};
use super::operand::{Finish, Matrices, Operand, matrix_bytes, row_tiles, weights};
use super::{FLOAT_FEW, FLOAT_MANY, TERMS};
use crate::activation::Form;
use crate::buffer::Buffer;
use crate::cuda::CudaDevice;
use crate::device::Backend;
use crate::{Activation, Activations, Result};

/// Rows of a tile of the kernel for few columns, and its columns.
const FEW_ROWS: usize = 16;
const FEW_COLUMNS: usize = 8;
/// The most warps that share such a tile (`WARPS` in `float_few.cu`), and those that a multiprocessor holds.
const FEW_WARPS: usize = 8;
const RESIDENT_WARPS: usize = 16;
/// Values of a run and of a group (`terms.cuh`).
const RUN: usize = 32;
const GROUP: usize = 256;
/// Bytes of a run of a row in both terms.
const RUN_BYTES: usize = 2 * 2 * RUN;
/// Stages of a ring: as many as hide the way to memory, fewer where they do not fit.
const STAGES: [usize; 4] = [6, 4, 3, 2];

/// Rows of the matrix and of x that a block of threads computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: usize,
    columns: usize,
    /// Time of a block, relative to its area, in tenths: small ones read more for what they multiply.
    cost: usize,
}

const TILES: [Tile; 4] = [
    Tile { rows: 128, columns: 128, cost: 10 },
    Tile { rows: 128, columns: 64, cost: 12 },
    Tile { rows: 64, columns: 64, cost: 15 },
    Tile { rows: 64, columns: 32, cost: 20 },
];

impl Tile {
    /// Bytes of shared memory with so many stages, for weights of so many bytes.
    fn shared_bytes(self, weight_bytes: usize, stages: usize) -> usize {
        stages * (self.rows * RUN * weight_bytes + self.columns * RUN_BYTES) + 2 * 4 * self.columns
    }

    /// The most stages that fit.
    fn stages(self, weight_bytes: usize, room: usize) -> Option<usize> {
        // A ring of large tiles hides as much with fewer.
        let most = if self.rows * self.columns > 64 * 64 { 4 } else { 6 };
        let fits = |stages: &usize| *stages <= most && self.shared_bytes(weight_bytes, *stages) <= room;
        STAGES.into_iter().find(fits)
    }

    /// Blocks for so many rows of matrices and of x.
    fn blocks(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }

    /// The tile that takes the least time: turns of all multiprocessors, each of a tile.
    fn best(rows: usize, columns: usize, weight_bytes: usize, processors: usize, room: usize) -> Self {
        let time = |tile: &Tile| {
            tile.blocks(rows, columns).div_ceil(processors.max(1)) * tile.rows * tile.columns * tile.cost
        };
        let fitting = TILES.into_iter().filter(|tile| tile.stages(weight_bytes, room).is_some());
        fitting.min_by_key(time).unwrap_or(TILES[3])
    }
}

/// Warps that share a tile of the kernel for few columns: those that occupy the card, but so that all take the same number of turns
/// where that can be.
fn few_warps(tiles: usize, groups: usize, processors: usize) -> usize {
    let slots = processors.max(1) * RESIDENT_WARPS;
    let time = |warps: &usize| (tiles * warps).max(slots) * groups.div_ceil(*warps);
    (1..=FEW_WARPS.min(groups.max(1))).min_by_key(time).unwrap_or(1)
}

/// An activation in terms on the card.
struct Terms {
    first: u64,
    inverses: u64,
    _keep: Buffer,
}

impl CudaDevice {
    /// Whether products with this type go to tensor cores in terms: floats of up to 32 bits, unless all is to be f32.
    pub(super) fn in_terms(&self, block_type: BlockType) -> bool {
        matches!(block_type, BlockType::F32 | BlockType::F16 | BlockType::BF16)
            && Backend::activations(self) != Activations::F32
    }

    /// Products that [`in_terms`](Self::in_terms) says can be computed here.
    pub(super) fn floats(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let glu = matches!(finish, Finish::Glu(..));
        let rows: usize = match glu {
            true => 2 * operands[0].weight.rows(),
            false => operands.iter().map(|operand| operand.weight.rows()).sum(),
        };
        let few = match slots {
            Some(slots) => slots.rows() <= self.few_slots(&slots),
            // Where tiles would leave most of the card idle, weights are read again for each eight columns instead.
            None => {
                x.rows() <= FEW_COLUMNS || 4 * TILES[3].blocks(rows, x.rows()) < self.card().multiprocessors
            }
        };
        match few {
            true => self.floats_few(x, operands, finish, slots),
            false => self.floats_many(x, operands, finish, slots, rows),
        }
    }

    fn floats_few(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let matrices = Matrices::of(self, operands, finish)?;
        let tiles = row_tiles(operands, finish, FEW_ROWS);
        let columns = slots.map_or(x.rows().div_ceil(FEW_COLUMNS), |slots| slots.rows());
        let warps = few_warps(tiles * columns, x.cols().div_ceil(GROUP), self.card().multiprocessors);
        let ids = slot_words(slots.as_ref()).3;
        let defines = [
            ("WEIGHT", i64::from(weight.block_type().id())),
            ("ALIGNED", i64::from(aligned(operands))),
            ("SLOTS", i64::from(slots.is_some())),
        ];
        for first in (0..columns).step_by(SLOTS) {
            // Tiles of columns are counted from the beginning of x: what is left of the last launch begins further down.
            let skipped = if slots.is_some() { 0 } else { first * FEW_COLUMNS };
            let mut words = matrices.words;
            if slots.is_none() {
                advance(&mut words, operands, skipped);
            }
            self.launch(&FLOAT_FEW, &defines, "float_few")?
                .grid([tiles, (columns - first).min(SLOTS), 1])
                .block(32 * warps)
                .arg(words)
                .arg(operands.len() as i32)
                .arg(finish.number())
                .arg(float_rows(x, skipped, slots.as_ref(), first))
                .arg(ids)
                .run()?;
        }
        Ok(())
    }

    fn floats_many(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
        rows: usize,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let block_type = weight.block_type();
        let terms = self.terms(x, block_type)?;
        let matrices = Matrices::of(self, operands, finish)?;
        let (card, bytes) = (self.card(), block_type.bytes());
        let tile = match slots {
            None => Tile::best(rows, x.rows(), bytes, card.multiprocessors, card.shared_bytes),
            // Each expert has its tiles: none wider than what one is asked for on the average.
            Some(slots) => {
                let each = slots.rows().div_ceil(slots.experts);
                let of_one = card.multiprocessors.div_ceil(slots.experts);
                Tile::best(rows, each, bytes, of_one, card.shared_bytes)
            }
        };
        let stages = tile.stages(bytes, card.shared_bytes).unwrap_or(STAGES[3]);
        let tiles = self.column_tiles(x, slots.as_ref(), tile.columns)?;
        let defines = [
            ("WEIGHT", i64::from(block_type.id())),
            ("ROWS", tile.rows as i64),
            ("COLUMNS", tile.columns as i64),
            ("STAGES", stages as i64),
            ("ALIGNED", i64::from(aligned(operands))),
            ("SLOTS", i64::from(slots.is_some())),
        ];
        self.launch(&FLOAT_MANY, &defines, "float_many")?
            .grid([tiles.count, row_tiles(operands, finish, tile.rows), 1])
            .block(256)
            .shared(tile.shared_bytes(bytes, stages))
            .arg(matrices.words)
            .arg(operands.len() as i32)
            .arg(finish.number())
            .arg(x.cols() as i32)
            .arg([terms.first, terms.inverses, pair(x.rows(), tiles.share)])
            .arg(tiles.batches)
            .arg(tiles.order)
            .run()
    }

    /// The activation in two terms for weights of a type, made when it is first asked for.
    fn terms(&self, x: &Activation, block_type: BlockType) -> Result<Terms> {
        const WARPS: usize = 8;
        let halves = block_type == BlockType::F16;
        let (runs, groups) = (x.cols().div_ceil(RUN), x.cols().div_ceil(GROUP));
        let bytes = x.rows().next_multiple_of(8) * runs * RUN_BYTES;
        let form = if halves { Form::HalfTerms } else { Form::Bf16Terms };
        let buffer = x.form(form, |tensor| {
            let inverses = if halves { 4 * x.rows() * groups } else { 0 };
            let buffer = tensor.device().scratch_buffer(bytes + inverses)?;
            let of = if halves { BlockType::F16 } else { BlockType::BF16 };
            self.launch(&TERMS, &[("WEIGHT", i64::from(of.id()))], "to_terms")?
                .grid([x.rows(), groups.div_ceil(WARPS), 1])
                .block(32 * WARPS)
                .rows_of(tensor)
                .arg(x.cols() as i32)
                .arg(buffer.cuda().pointer())
                .arg(buffer.cuda().pointer() + bytes as u64)
                .run()?;
            Ok(buffer)
        })?;
        let first = buffer.cuda().pointer();
        Ok(Terms { first, inverses: first + bytes as u64, _keep: buffer })
    }
}

/// Whether all rows begin at multiples of 16 bytes.
fn aligned(operands: &[Operand]) -> bool {
    operands.iter().all(|operand| {
        let all =
            weights(operand.weight) as usize | operand.weight.row_bytes() | matrix_bytes(operand.weight);
        all.is_multiple_of(16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: (usize, usize) = (132, 227 << 10);

    fn best(rows: usize, columns: usize, bytes: usize) -> (usize, usize) {
        let tile = Tile::best(rows, columns, bytes, H200.0, H200.1);
        (tile.rows, tile.columns)
    }

    #[test]
    fn tiles_fill_the_card() {
        // A router of 256 experts; a feed-forward's matrix.
        assert_eq!(best(256, 4096, 4), (128, 64));
        assert_eq!(best(256, 512, 4), (64, 32));
        assert_eq!(best(9216, 4096, 2), (128, 128));
        assert_eq!(best(9216, 32, 2), (64, 32));
    }

    #[test]
    fn every_tile_fits_small_cards() {
        for tile in TILES {
            for bytes in [2, 4] {
                let stages = tile.stages(bytes, 99 << 10).unwrap();
                assert!(stages >= 3 && tile.shared_bytes(bytes, stages) <= 99 << 10, "{tile:?} {bytes}");
            }
        }
    }

    #[test]
    fn warps_share_what_there_is() {
        // The router's eight groups side by side; rows of ten groups in five turns of two; a head has tiles for all.
        assert_eq!(few_warps(16, 8, 132), 8);
        assert_eq!(few_warps(576, 10, 132), 5);
        assert_eq!(few_warps(15_520, 10, 132), 1);
        assert_eq!(few_warps(1, 1, 132), 1);
    }
}
