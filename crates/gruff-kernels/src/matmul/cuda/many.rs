//! Products with many columns, on tensor cores.

use gruff_blocks::BlockType;

use super::MATMUL;
use super::books::book_words;
use super::input::groups;
use super::launch::{Slots, group_bytes, pair, slot_words};
use super::operand::{Finish, Matrices, Operand};
use crate::activation::Form;
use crate::cuda::CudaDevice;
use crate::{Activation, Result};

/// Rows of the matrix and of x that a block of threads computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

const TILES: [Tile; 4] = [
    Tile { rows: 64, columns: 16 },
    Tile { rows: 64, columns: 32 },
    Tile { rows: 64, columns: 64 },
    Tile { rows: 128, columns: 128 },
];

const THREADS: usize = 256;

/// Bytes of shared memory that `matmul.cu` lays out.
pub(crate) fn shared_bytes(block_type: BlockType, tile: Tile) -> usize {
    const PITCH: usize = 256 + 16;
    const BLOCK_PITCH: usize = 8 * 16 + 16;
    let packed_words = (group_bytes(block_type) + 30) / 16;
    let packed_pitch = 16 * (packed_words | 1);
    // Room for types with halves and minima.
    let scales = 17 * 4;
    4 * book_words(block_type)
        + tile.rows * (PITCH + 2 * packed_pitch + scales_and_minima(block_type, scales))
        + 2 * tile.columns * (PITCH + BLOCK_PITCH)
        + 8 * tile.columns
}

fn scales_and_minima(block_type: BlockType, halves: usize) -> usize {
    use BlockType::{IQ1_M, IQ2_S, IQ2_XS, NVFP4, Q2_K, Q3_K, Q4_1, Q4_K, Q5_1, Q5_K, Q6_K};
    match block_type {
        Q2_K => 2 * halves,
        Q3_K | Q6_K | IQ2_XS | IQ2_S | IQ1_M | NVFP4 => halves,
        Q4_1 | Q5_1 | Q4_K | Q5_K => 2 * 9 * 4,
        _ => 9 * 4,
    }
}

impl CudaDevice {
    /// The tile for so many rows of x (of one expert, on the average) and of all matrices.
    fn tile(&self, block_type: BlockType, columns: usize, rows: usize) -> Tile {
        let card = self.card();
        let fits = |tile: &&Tile| shared_bytes(block_type, **tile) <= card.shared_bytes;
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
        let input = self.input(x, Form::Lined)?;
        let matrices = Matrices::of(self, operands)?;
        let glu = matches!(finish, Finish::Glu(_));
        let all_rows: usize = operands.iter().map(|operand| operand.weight.rows()).sum();
        let tile = match slots {
            None => self.tile(block_type, x.rows(), all_rows),
            Some(slots) => {
                self.tile(block_type, slots.rows().div_ceil(slots.experts), all_rows * slots.experts)
            }
        };
        let row_tiles = if glu {
            weight.rows().div_ceil(tile.rows / 2)
        } else {
            operands.iter().map(|operand| operand.weight.rows().div_ceil(tile.rows)).sum()
        };
        let gathered = slots.map(|slots| self.gather(&slots, tile.columns)).transpose()?;
        let column_tiles =
            gathered.as_ref().map_or(x.rows().div_ceil(tile.columns), |gathered| gathered.batches);
        let (batches, order) =
            gathered.as_ref().map_or((0, 0), |gathered| (gathered.list(), gathered.order()));
        let share = slot_words(slots.as_ref()).0;
        let x_words = [input.first, input.second, input.blocks, pair(x.rows(), share)];
        let defines = [
            ("WEIGHT", i64::from(block_type.id())),
            ("ROWS", tile.rows as i64),
            ("COLUMNS", tile.columns as i64),
            ("SLOTS", i64::from(slots.is_some())),
        ];
        self.launch(&MATMUL, &defines, "matmul")?
            .grid([column_tiles, row_tiles, 1])
            .block(THREADS)
            .shared(shared_bytes(block_type, tile))
            .arg(matrices.words)
            .arg(operands.len() as i32)
            .arg(finish.number())
            .arg(x.cols() as i32)
            .arg(groups(x.cols()) as i32)
            .arg(weight.row_bytes())
            .arg(x_words)
            .arg(self.book(block_type)?)
            .arg(batches)
            .arg(order)
            .run()
    }
}
