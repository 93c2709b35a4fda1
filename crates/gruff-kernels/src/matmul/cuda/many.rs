//! Products with many columns, on tensor cores.

use gruff_blocks::BlockType;

use super::MATMUL;
use super::books::book_words;
use super::input::{GROUP_BYTES, groups};
use super::launch::{Slots, pair};
use super::operand::{Finish, Matrices, Operand, row_tiles, strip_bytes};
use crate::cuda::CudaDevice;
use crate::cuda::strips::{STRIP, cell_bytes};
use crate::{Activation, Result};

/// Rows of the matrix and of x that a block of threads computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

const TILES: [Tile; 5] = [
    Tile { rows: 64, columns: 16 },
    Tile { rows: 64, columns: 32 },
    Tile { rows: 64, columns: 64 },
    Tile { rows: 128, columns: 64 },
    Tile { rows: 128, columns: 128 },
];

impl Tile {
    /// Whether the card multiplies such tiles with `wgmma` (`BEHIND` in `matmul.cu`).
    fn runs_behind(self, capability: (i32, i32)) -> bool {
        capability == (9, 0) && self.rows == 128 && self.columns >= 64
    }

    /// Threads of a block.
    fn threads(self, capability: (i32, i32)) -> usize {
        if self.runs_behind(capability) && self.columns == 128 { 512 } else { 256 }
    }
}

/// Bytes of shared memory that `matmul.cu` lays out.
fn shared_bytes(block_type: BlockType, tile: Tile, stages: usize) -> usize {
    // Halves of groups in pieces.
    let pieces = |rows: usize, halves: usize| halves * rows * GROUP_BYTES / 2;
    (4 * book_words(block_type)).next_multiple_of(128)
        + pieces(tile.rows, 2)
        + pieces(tile.columns, stages)
        + 2 * tile.rows / STRIP * cell_bytes(block_type)
        + 2 * 4 * tile.columns
}

impl CudaDevice {
    /// The tile for so many rows of x (of one expert, on the average) and of all matrices.
    fn tile(&self, block_type: BlockType, columns: usize, rows: usize) -> Tile {
        let card = self.card();
        let fits = |tile: &&Tile| shared_bytes(block_type, **tile, 2) <= card.shared_bytes;
        let busy = |tile: &Tile| {
            columns.div_ceil(tile.columns) * rows.div_ceil(tile.rows) >= card.multiprocessors * 3 / 4
        };
        let wide = TILES.iter().rev().filter(fits);
        let mut best = TILES[0];
        for tile in wide {
            let narrow = tile.columns / 2 >= columns && tile.columns > TILES[0].columns;
            if !narrow && (tile.rows == 64 || busy(tile)) {
                best = *tile;
                break;
            }
        }
        best
    }

    pub(super) fn matrices(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let weight = operands[0].weight;
        let block_type = weight.block_type();
        let input = self.pieces(x)?;
        let matrices = Matrices::of(self, operands, finish)?;
        let all_rows: usize = operands.iter().map(|operand| operand.weight.rows()).sum();
        let tile = match slots {
            None => self.tile(block_type, x.rows(), all_rows),
            Some(slots) => {
                self.tile(block_type, slots.rows().div_ceil(slots.experts), all_rows * slots.experts)
            }
        };
        let room = |stages: &usize| shared_bytes(block_type, tile, *stages) <= self.card().shared_bytes;
        let stages = if room(&3) { 3 } else { 2 };
        let tiles = self.column_tiles(x, slots.as_ref(), tile.columns)?;
        let x_words = [input.first, pair(x.rows(), tiles.share)];
        let defines = [
            ("WEIGHT", i64::from(block_type.id())),
            ("ROWS", tile.rows as i64),
            ("COLUMNS", tile.columns as i64),
            ("STAGES", stages as i64),
            ("SLOTS", i64::from(slots.is_some())),
        ];
        self.launch(&MATMUL, &defines, "matmul")?
            .grid([tiles.count, row_tiles(operands, finish, tile.rows), 1])
            .block(tile.threads(self.card().capability))
            .shared(shared_bytes(block_type, tile, stages))
            .arg(matrices.words)
            .arg(operands.len() as i32)
            .arg(finish.number())
            .arg(x.cols() as i32)
            .arg(groups(x.cols()) as i32)
            .arg(strip_bytes(weight))
            .arg(x_words)
            .arg(self.book(block_type)?)
            .arg(tiles.batches)
            .arg(tiles.order)
            .run()
    }
}
