//! Products with few columns, at the speed of memory: how warps are cut.

use gruff_blocks::BlockType;

use super::books::book_words;
use super::input::{GROUP_BYTES, TILE_ROWS, groups};
use super::launch::{SLOTS, Slots, advance, alignment, group_bytes, pair, slot_words};
use super::operand::{Finish, MATRICES_WORDS, Matrices, Operand};
use super::{BATCH, MATVEC};
use crate::cuda::CudaDevice;
use crate::{Activation, Result};

/// Rows of a tile (`ROWS` in `rows.cuh`).
const ROWS: usize = 16;
/// The most warps of a block, and of a multiprocessor: registers are for no more.
const WARPS: usize = 16;
/// The most columns that warps sharing tiles take, in tiles of 8.
const SHARED_TILES: usize = 4;
/// The most tiles of columns that a block's warps go through together.
const BATCH_TILES: usize = 8;
/// Tiles of rows a multiprocessor from which on the latter pays.
const BATCH_FROM: usize = 5;

/// Bytes of shared memory of a warp.
fn warp_bytes(block_type: BlockType, aligned: i64) -> usize {
    let words = (2 * group_bytes(block_type) + if aligned == 2 { 15 } else { 30 }) / 16;
    let factors = if has_halves(block_type) { 16 } else { 8 };
    ROWS * 16 * (words | 1) + 2 * ROWS * (8 * factors + 16)
}

/// Bytes of the sums that a warp adds to those of its tile, of two rounds.
fn sum_bytes(columns: usize) -> usize {
    const SUM_PITCH: usize = 20;
    2 * 2 * columns * SUM_PITCH * size_of::<f32>()
}

/// Whether 16 values have a scale of their own (`HALVES` in `blocks.cuh`).
fn has_halves(block_type: BlockType) -> bool {
    use BlockType::{IQ1_M, IQ2_S, IQ2_XS, NVFP4, Q2_K, Q3_K, Q6_K};
    matches!(block_type, Q2_K | Q3_K | Q6_K | IQ2_XS | IQ2_S | IQ1_M | NVFP4)
}

/// How the tiles of rows are shared by warps: those of a block that have tiles side by side, and those that share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    abreast: usize,
    shares: usize,
}

impl Cut {
    /// With tiles for all, every warp has its own. Else as many share one as occupy the card, and all take the same number of
    /// turns where that can be. At most `room` warps fit into a block.
    fn new(tiles: usize, pairs: usize, processors: usize, room: usize) -> Self {
        /// More that share a tile wait longer for each other than they gain.
        const SHARES: usize = 8;
        let slots = processors * WARPS;
        if tiles >= slots || pairs == 1 || room < 2 {
            return Cut { abreast: room.clamp(1, 4), shares: 1 };
        }
        let turns = |shares: &usize| (tiles * shares).max(slots) * pairs.div_ceil(*shares);
        let shares = (2..=SHARES.min(pairs).min(room)).min_by_key(turns).unwrap_or(2);
        Cut { abreast: 1, shares }
    }

    fn warps(self) -> usize {
        self.abreast * self.shares
    }
}

/// What all launches of a product are made of.
struct Product<'a> {
    device: &'a CudaDevice,
    operands: &'a [Operand<'a>],
    finish: Finish,
    matrices: Matrices,
    x: u64,
    cols: usize,
    /// Tiles of rows of all matrices.
    tiles: usize,
    aligned: i64,
}

impl Product<'_> {
    fn block_type(&self) -> BlockType {
        self.operands[0].weight.block_type()
    }

    /// Shared memory besides a type's book.
    fn shared(&self) -> usize {
        self.device.card().shared_bytes.saturating_sub(self.book_bytes())
    }

    fn book_bytes(&self) -> usize {
        4 * book_words(self.block_type())
    }

    /// `struct Cut` of `rows.cuh`.
    fn words(&self, columns: usize, abreast: usize, first: usize, slots: Option<&Slots>) -> [u64; 8] {
        let (share, experts, used, _, id_stride) = slot_words(slots);
        [
            pair(self.cols, groups(self.cols)),
            self.operands[0].weight.row_bytes() as u64,
            pair(self.tiles, columns),
            pair(abreast, 0),
            pair(self.operands.len(), self.finish.number() as usize),
            pair(share, experts),
            pair(used, first),
            id_stride,
        ]
    }

    /// The matrices with outputs from a row on, and x from there on.
    fn starting_at(&self, first: usize) -> ([u64; MATRICES_WORDS], u64) {
        let mut words = self.matrices.words;
        advance(&mut words, self.operands, first);
        (words, self.x + (first * groups(self.cols) * GROUP_BYTES) as u64)
    }

    /// Tiles of columns of a kernel for at least so many: a power of two.
    fn column_tiles(columns: usize) -> usize {
        columns.div_ceil(TILE_ROWS).next_power_of_two()
    }

    /// Columns `first..` with warps that share tiles or have their own.
    fn vectors(&self, first: usize, columns: usize) -> Result<()> {
        let (matrices, x) = self.starting_at(first);
        self.launch_vectors(matrices, x, first, columns, 1, None)
    }

    fn launch_vectors(
        &self,
        matrices: [u64; MATRICES_WORDS],
        x: u64,
        first: usize,
        columns: usize,
        repeats: usize,
        slots: Option<&Slots>,
    ) -> Result<()> {
        let processors = self.device.card().multiprocessors.max(1);
        let pairs = groups(self.cols).div_ceil(2);
        let own = warp_bytes(self.block_type(), self.aligned);
        let each = own + sum_bytes(columns);
        let cut = Cut::new(self.tiles * repeats, pairs, processors, self.shared() / each);
        let bytes = self.book_bytes() + cut.warps() * if cut.shares == 1 { own } else { each };
        let resident = (self.device.card().shared_bytes / bytes).min(WARPS / cut.warps()).max(1);
        let steps = self.tiles.div_ceil(cut.abreast);
        let blocks = steps.min((processors * resident).div_ceil(repeats)).max(1);
        let defines = [
            ("WEIGHT", i64::from(self.block_type().id())),
            ("TILES", Self::column_tiles(columns) as i64),
            ("ALIGNED", self.aligned),
            ("SLOTS", i64::from(slots.is_some())),
        ];
        self.device
            .launch(&MATVEC, &defines, "matvec")?
            .grid([blocks, repeats, 1])
            .block(32 * cut.warps())
            .shared(bytes)
            .arg(matrices)
            .arg(self.words(columns, cut.abreast, first, slots))
            .arg(x)
            .arg(self.device.book(self.block_type())?)
            .arg(slots.map_or(0, |slots| crate::cuda::pointer(slots.ids)))
            .run()
    }

    /// Warps of a block that goes through so many tiles of columns together; none if they do not fit.
    fn batch_warps(&self, column_tiles: usize) -> usize {
        let processors = self.device.card().multiprocessors.max(1);
        let columns = 2 * column_tiles * TILE_ROWS * GROUP_BYTES;
        let room = self.shared().saturating_sub(columns) / warp_bytes(self.block_type(), self.aligned);
        // A block for each multiprocessor where that can be, else some that take turns.
        let one_each = self.tiles.div_ceil(processors);
        room.min(if one_each <= 10 { one_each.max(4) } else { 8 })
    }

    /// Columns `first..` with warps that go through them together.
    fn batch(&self, first: usize, columns: usize) -> Result<()> {
        let column_tiles = Self::column_tiles(columns).max(2);
        let warps = self.batch_warps(column_tiles);
        let (matrices, x) = self.starting_at(first);
        let bytes = self.book_bytes()
            + 2 * column_tiles * TILE_ROWS * GROUP_BYTES
            + warps * warp_bytes(self.block_type(), self.aligned);
        let card = self.device.card();
        let resident = (card.shared_bytes / bytes).min(WARPS / warps).max(1);
        let blocks = self.tiles.div_ceil(warps).min(card.multiprocessors.max(1) * resident);
        let defines = [
            ("WEIGHT", i64::from(self.block_type().id())),
            ("TILES", column_tiles as i64),
            ("ALIGNED", self.aligned),
        ];
        self.device
            .launch(&BATCH, &defines, "batch")?
            .grid([blocks, 1, 1])
            .block(32 * warps)
            .shared(bytes)
            .arg(matrices)
            .arg(self.words(columns, warps, first, None))
            .arg(x)
            .arg(self.device.book(self.block_type())?)
            .run()
    }
}

impl CudaDevice {
    fn product<'a>(
        &'a self,
        x: u64,
        cols: usize,
        operands: &'a [Operand<'a>],
        finish: Finish,
    ) -> Result<Product<'a>> {
        let tiles = match finish {
            Finish::Glu(..) => operands[0].weight.rows().div_ceil(ROWS / 2),
            _ => operands.iter().map(|operand| operand.weight.rows().div_ceil(ROWS)).sum(),
        };
        let matrices = Matrices::of(self, operands, finish)?;
        Ok(Product { device: self, operands, finish, matrices, x, cols, tiles, aligned: alignment(operands) })
    }

    /// Computes products with few columns; says whether they were few enough.
    pub(super) fn vectors(&self, x: &Activation, operands: &[Operand], finish: Finish) -> Result<bool> {
        let columns = x.rows();
        let column_tiles = Product::column_tiles(columns);
        if column_tiles > BATCH_TILES {
            return Ok(false);
        }
        let input = self.pieces(x)?;
        let product = self.product(input.first, x.cols(), operands, finish)?;
        let many = product.tiles >= BATCH_FROM * self.card().multiprocessors;
        if column_tiles > 1 && many && product.batch_warps(column_tiles) >= 4 {
            product.batch(0, columns)?;
        } else if column_tiles <= SHARED_TILES {
            // As many columns a launch as leave room for two warps.
            let room = |tiles: usize| {
                let each = warp_bytes(product.block_type(), product.aligned) + sum_bytes(tiles * TILE_ROWS);
                product.shared() / each
            };
            let mut tiles = column_tiles;
            while tiles > 1 && room(tiles) < 2 {
                tiles /= 2;
            }
            for first in (0..columns).step_by(tiles * TILE_ROWS) {
                product.vectors(first, (columns - first).min(tiles * TILE_ROWS))?;
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Products of few rows of the output, each with an expert's matrix.
    pub(super) fn slot_vectors(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Slots,
    ) -> Result<()> {
        let input = self.pieces(x)?;
        let product = self.product(input.first, x.cols(), operands, finish)?;
        let total = slots.rows();
        for first in (0..total).step_by(SLOTS) {
            let repeats = SLOTS.min(total - first);
            let matrices = product.matrices.words;
            product.launch_vectors(matrices, product.x, first, 1, repeats, Some(&slots))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_share_what_there_is() {
        // As measured on 132 multiprocessors: one tile each of a large head, all pairs of a short row, turns of a long one.
        assert_eq!(Cut::new(15_520, 5, 132, 16), Cut { abreast: 4, shares: 1 });
        assert_eq!(Cut::new(1_152, 5, 132, 16), Cut { abreast: 1, shares: 5 });
        assert_eq!(Cut::new(160, 8, 132, 16), Cut { abreast: 1, shares: 8 });
        for (tiles, pairs, room) in [(1, 1, 1), (1, 100, 7), (9, 3, 2), (3_000, 1, 5)] {
            let cut = Cut::new(tiles, pairs, 132, room);
            assert!(cut.warps() <= room && cut.shares <= pairs, "{cut:?}");
        }
    }

    #[test]
    fn every_type_has_room_on_small_cards() {
        for block_type in BlockType::ALL.iter().filter(|block_type| !block_type.is_scalar()) {
            let bytes = 4 * book_words(*block_type) + 2 * (warp_bytes(*block_type, 0) + sum_bytes(TILE_ROWS));
            assert!(bytes <= 99 << 10, "{block_type}: {bytes}");
        }
    }
}
