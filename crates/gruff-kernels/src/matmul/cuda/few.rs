//! Products with few columns, at the speed of memory: how warps are cut.

use gruff_blocks::BlockType;

use super::books::book_words;
use super::input::{FLAT_ROWS, GROUP, GROUP_BYTES, TILE_ROWS, groups};
use super::launch::{SLOTS, Slots, advance, pair, slot_words};
use super::operand::{Finish, MATRICES_WORDS, Matrices, Operand, row_tiles, strip_bytes};
use super::{BATCH, MATVEC};
use crate::cuda::CudaDevice;
use crate::cuda::strips::{cell_bytes, is_heavy};
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
/// About as many bytes of sums as a warp takes.
const SUMS: usize = 4 << 10;
/// Groups of a row from which on blocks share fewer rows than that by groups.
const SHARED_FROM: usize = 4;
/// The most bytes of sums of groups that they leave for each other.
const SHARED_SUMS: usize = 40 << 20;
/// Stages of a warp's ring there.
const BATCH_STAGES: usize = 3;
/// The most columns that are not rounded in one launch.
const EXACT_COLUMNS: usize = 8;

/// Stages of a warp's ring: more where groups are small and soon multiplied.
fn stages(block_type: BlockType) -> usize {
    if brings_x(block_type) { 3 } else { 2 }
}

/// Whether a single column comes to shared memory with the weights. Where these are many bytes a group that costs bandwidth, and where
/// unpacking takes longer it costs warps.
fn brings_x(block_type: BlockType) -> bool {
    cell_bytes(block_type) <= 8 * 192 && !is_heavy(block_type)
}

/// How a launch's columns reach a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Columns {
    /// In pieces (`FLAT` = 0 in `matvec.cu`), so many tiles of 8.
    Pieces(usize),
    /// Flat, in its ring with the weights (1).
    Brought,
    /// Flat, from memory (2).
    Flat,
    /// In f32, up to so many.
    Exact(usize),
}

impl Columns {
    /// Of pieces: of a whole activation of `rows` rows.
    fn of(block_type: BlockType, rows: usize, columns: usize) -> Self {
        match columns {
            _ if rows > FLAT_ROWS => Columns::Pieces(Product::column_tiles(columns)),
            1 if brings_x(block_type) => Columns::Brought,
            _ => Columns::Flat,
        }
    }

    /// TILES, FLAT and EXACT.
    fn defines(self) -> [i64; 3] {
        match self {
            Columns::Pieces(tiles) => [tiles as i64, 0, 0],
            Columns::Brought => [1, 1, 0],
            Columns::Flat => [1, 2, 0],
            Columns::Exact(columns) => [1, 0, columns as i64],
        }
    }
}

/// Constants of `matvec.cu`.
fn vector_defines(
    block_type: BlockType,
    columns: Columns,
    tail: bool,
    slots: bool,
) -> [(&'static str, i64); 7] {
    let [tiles, flat, exact] = columns.defines();
    [
        ("WEIGHT", i64::from(block_type.id())),
        ("TILES", tiles),
        ("STAGES", stages(block_type) as i64),
        ("TAIL", i64::from(tail)),
        ("FLAT", flat),
        ("EXACT", exact),
        ("SLOTS", i64::from(slots)),
    ]
}

/// Those of each packed type with one column. Rows may end within a group where blocks are shorter than that.
pub(crate) fn vector_of_each_type() -> impl Iterator<Item = [(&'static str, i64); 7]> {
    BlockType::ALL.iter().filter(|block_type| !block_type.is_scalar()).map(|block_type| {
        vector_defines(*block_type, Columns::of(*block_type, 1, 1), block_type.values() < GROUP, false)
    })
}

/// Bytes of a warp's ring.
fn ring_bytes(block_type: BlockType, columns: Columns) -> usize {
    let x = if columns == Columns::Brought { GROUP_BYTES } else { 0 };
    stages(block_type) * (2 * cell_bytes(block_type) + x)
}

/// Bytes of the sums that a warp adds to those of its tile, of so many groups in two rounds.
fn sum_bytes(columns: usize, run: usize) -> usize {
    const SUM_PITCH: usize = 20;
    2 * run * columns * SUM_PITCH * size_of::<f32>()
}

/// Bytes of the sums of groups that blocks leave for each other.
fn shared_sum_bytes(groups: usize, tiles: usize, column_tiles: usize) -> usize {
    const SUMS_OF_TILES: usize = ROWS * TILE_ROWS;
    groups * tiles * column_tiles * SUMS_OF_TILES * size_of::<f32>()
}

/// How the tiles of rows are shared by warps: those of a block that have tiles side by side, and those that share a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    abreast: usize,
    shares: usize,
}

impl Cut {
    /// With many more tiles than warps that the card holds, every warp has its own. Else several share one: as many as make the longest
    /// run of a warp short, where its turns cost something besides their groups. At most `room` warps fit into a block.
    fn new(tiles: usize, groups: usize, processors: usize, room: usize, heavy: Option<Self>) -> Self {
        /// More that share a tile wait longer for each other than they gain.
        const SHARES: usize = 8;
        /// What a turn costs, in tenths of a group.
        const TURN: usize = 25;
        let slots = processors * WARPS;
        if tiles >= 4 * slots || groups == 1 || room < 2 {
            return Cut { abreast: room.clamp(1, 4), shares: 1 };
        }
        let most = SHARES.min(groups).min(room);
        if let Some(cut) =
            heavy.filter(|cut| cut.warps() <= room && cut.shares <= most && tiles > 2 * processors)
        {
            return cut;
        }
        let cost = |shares: &usize| {
            tiles.div_ceil(processors * (WARPS / shares)) * (10 * groups.div_ceil(*shares) + TURN)
        };
        Cut { abreast: 1, shares: (2..=most).min_by_key(cost).unwrap_or(2) }
    }

    /// As measured for types whose codes take long to unpack: large books want large blocks.
    fn of_heavy(block_type: BlockType) -> Option<Self> {
        let (abreast, shares) = match book_words(block_type) {
            0..=4 => (1, 4),
            5..=2048 => (2, 2),
            _ => (2, 4),
        };
        is_heavy(block_type).then_some(Cut { abreast, shares })
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
    /// Values from a row of it to the next, if it is not rounded.
    x_stride: u64,
    cols: usize,
    /// Tiles of rows of all matrices.
    tiles: usize,
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

    /// Whether rows do not end with a whole group.
    fn has_tail(&self) -> bool {
        !self.cols.is_multiple_of(GROUP)
    }

    /// `struct Cut` of `rows.cuh`.
    fn words(
        &self,
        columns: usize,
        abreast: usize,
        run: usize,
        first: usize,
        slots: Option<&Slots>,
    ) -> [u64; 9] {
        let (share, experts, used, _, id_stride) = slot_words(slots);
        [
            pair(self.cols, groups(self.cols)),
            strip_bytes(self.operands[0].weight) as u64,
            pair(self.tiles, columns),
            pair(abreast, run),
            pair(self.operands.len(), self.finish.number() as usize),
            pair(share, experts),
            pair(used, first),
            id_stride,
            self.x_stride,
        ]
    }

    /// The matrices with outputs from a row on, a multiple of 8, and x from there on.
    fn starting_at(&self, first: usize) -> ([u64; MATRICES_WORDS], u64) {
        let mut words = self.matrices.words;
        advance(&mut words, self.operands, first);
        let row_bytes = match self.x_stride {
            0 => (groups(self.cols) * GROUP_BYTES) as u64,
            stride => stride * size_of::<f32>() as u64,
        };
        (words, self.x + first as u64 * row_bytes)
    }

    /// Tiles of columns of a kernel for at least so many: a power of two.
    fn column_tiles(columns: usize) -> usize {
        columns.div_ceil(TILE_ROWS).next_power_of_two()
    }

    /// So many columns from `first` on with warps that share tiles or have their own.
    fn vectors(&self, first: usize, count: usize, columns: Columns) -> Result<()> {
        let (matrices, x) = self.starting_at(first);
        self.launch_vectors(matrices, x, first, count, columns, 1, None)
    }

    #[expect(clippy::too_many_arguments, reason = "what a launch is made of")]
    fn launch_vectors(
        &self,
        matrices: [u64; MATRICES_WORDS],
        x: u64,
        first: usize,
        count: usize,
        columns: Columns,
        repeats: usize,
        slots: Option<&Slots>,
    ) -> Result<()> {
        let processors = self.device.card().multiprocessors.max(1);
        let groups = groups(self.cols);
        let own = ring_bytes(self.block_type(), columns);
        // Sums of all groups of a tile at once, if that leaves room for warps.
        let run = |shares: usize| groups.div_ceil(shares).min((SUMS / sum_bytes(count, 1)).max(1));
        let room = (self.shared() / (own + sum_bytes(count, run(1)))).min(WARPS);
        let cut = Cut::new(self.tiles * repeats, groups, processors, room, Cut::of_heavy(self.block_type()));
        let run = run(cut.shares);
        let sums = if cut.shares == 1 { 0 } else { sum_bytes(count, run) };
        let bytes = self.book_bytes() + cut.warps() * (own + sums);
        let light_on_registers = is_heavy(self.block_type()) && book_words(self.block_type()) <= 4;
        let most = if light_on_registers { WARPS * 3 / 2 } else { WARPS };
        let resident = (self.device.card().shared_bytes / bytes).min(most / cut.warps()).max(1);
        let steps = self.tiles.div_ceil(cut.abreast);
        let blocks = steps.min((processors * resident).div_ceil(repeats)).max(1);
        let bytes = self.device.spread(blocks * repeats, bytes);
        let defines = vector_defines(self.block_type(), columns, self.has_tail(), slots.is_some());
        self.device
            .launch(&MATVEC, &defines, "matvec")?
            .grid([blocks, repeats, 1])
            .block(32 * cut.warps())
            .shared(bytes)
            .arg(matrices)
            .arg(self.words(count, cut.abreast, run, first, slots))
            .arg(x)
            .arg(self.device.book(self.block_type())?)
            .arg(slots.map_or(0, |slots| crate::cuda::pointer(slots.ids)))
            .run()
    }

    fn batch_ring(&self) -> usize {
        BATCH_STAGES * 2 * cell_bytes(self.block_type())
    }

    /// Warps that fit into a block that goes through so many tiles of columns together.
    fn batch_room(&self, column_tiles: usize) -> usize {
        self.shared().saturating_sub(2 * column_tiles * TILE_ROWS * GROUP_BYTES) / self.batch_ring()
    }

    /// Warps of a block that goes through so many tiles of columns together; none if they do not fit.
    fn batch_warps(&self, column_tiles: usize) -> usize {
        let processors = self.device.card().multiprocessors.max(1);
        let room = self.batch_room(column_tiles);
        // A block for each multiprocessor where that can be, else some that take turns.
        let one_each = self.tiles.div_ceil(processors);
        room.min(if one_each <= 10 { one_each.max(4) } else { 8 })
    }

    /// All columns with warps that go through them together.
    fn batch(&self, columns: usize) -> Result<()> {
        let column_tiles = Self::column_tiles(columns).max(2);
        let warps = self.batch_warps(column_tiles);
        let bytes =
            self.book_bytes() + 2 * column_tiles * TILE_ROWS * GROUP_BYTES + warps * self.batch_ring();
        let card = self.device.card();
        let resident = (card.shared_bytes / bytes).min(WARPS / warps).max(1);
        let blocks = self.tiles.div_ceil(warps).min(card.multiprocessors.max(1) * resident);
        self.launch_batch(columns, [blocks, 1, 1], warps, bytes, groups(self.cols), 0)
    }

    /// The same where rows are so few that blocks share them by groups.
    fn shared_batch(&self, columns: usize) -> Result<()> {
        const THREADS: usize = 128;
        let groups = groups(self.cols);
        let column_tiles = Self::column_tiles(columns).max(2);
        let warps = self.batch_room(column_tiles).min(WARPS).min(self.tiles);
        let bytes =
            self.book_bytes() + 2 * column_tiles * TILE_ROWS * GROUP_BYTES + warps * self.batch_ring();
        let rows = self.tiles.div_ceil(warps);
        let parts = (self.device.card().multiprocessors / rows).clamp(1, groups);
        let sum_bytes = shared_sum_bytes(groups, self.tiles, column_tiles);
        // Sums beyond what caches hold cost more than they gain.
        if parts == 1 || sum_bytes > SHARED_SUMS {
            return self.batch(columns);
        }
        let run = groups.div_ceil(parts);
        let sums = self.device.temporary(sum_bytes)?;
        self.launch_batch(columns, [rows, groups.div_ceil(run), 1], warps, bytes, run, sums.pointer())?;
        self.device
            .launch(&BATCH, &self.batch_defines(column_tiles, true), "batch_sums")?
            .grid([(32 * self.tiles * column_tiles).div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .arg(self.matrices.words)
            .arg(self.words(columns, warps, run, 0, None))
            .arg(sums.pointer())
            .run()
    }

    fn batch_defines(&self, column_tiles: usize, shared: bool) -> [(&'static str, i64); 5] {
        [
            ("WEIGHT", i64::from(self.block_type().id())),
            ("TILES", column_tiles as i64),
            ("STAGES", BATCH_STAGES as i64),
            ("TAIL", i64::from(self.has_tail())),
            ("SHARED", i64::from(shared)),
        ]
    }

    /// `sums` is 0 where blocks share no rows.
    fn launch_batch(
        &self,
        columns: usize,
        grid: [usize; 3],
        warps: usize,
        bytes: usize,
        run: usize,
        sums: u64,
    ) -> Result<()> {
        let column_tiles = Self::column_tiles(columns).max(2);
        self.device
            .launch(&BATCH, &self.batch_defines(column_tiles, sums != 0), "batch")?
            .grid(grid)
            .block(32 * warps)
            .shared(bytes)
            .arg(self.matrices.words)
            .arg(self.words(columns, warps, run, 0, None))
            .arg(self.x)
            .arg(self.device.book(self.block_type())?)
            .arg(sums)
            .run()
    }
}

impl CudaDevice {
    /// The most bytes of sums that blocks leave for each other, with any number of columns up to `columns`.
    pub(super) fn shared_sums(&self, [rows, cols]: [usize; 2], columns: usize) -> usize {
        let (tiles, groups) = (rows.div_ceil(ROWS), groups(cols));
        let processors = self.card().multiprocessors.max(1);
        // As `shared_batch` has it with as many warps to a block as may be.
        let parts = processors / tiles.div_ceil(WARPS).max(1);
        if parts < 2 || tiles >= BATCH_FROM * processors || groups < SHARED_FROM {
            return 0;
        }
        let widths = [2, 4, BATCH_TILES].into_iter().filter(|width| width / 2 * TILE_ROWS < columns);
        let sums = widths.map(|column_tiles| shared_sum_bytes(groups, tiles, column_tiles));
        sums.filter(|bytes| *bytes <= SHARED_SUMS).max().unwrap_or(0)
    }

    fn product<'a>(
        &'a self,
        (x, x_stride): (u64, u64),
        cols: usize,
        operands: &'a [Operand<'a>],
        finish: Finish,
    ) -> Result<Product<'a>> {
        let tiles = row_tiles(operands, finish, ROWS);
        let matrices = Matrices::of(self, operands, finish)?;
        Ok(Product { device: self, operands, finish, matrices, x, x_stride, cols, tiles })
    }

    /// Computes products with few columns; says whether they were few enough.
    pub(super) fn vectors(&self, x: &Activation, operands: &[Operand], finish: Finish) -> Result<bool> {
        let columns = x.rows();
        let column_tiles = Product::column_tiles(columns);
        if column_tiles > BATCH_TILES {
            return Ok(false);
        }
        let input = self.pieces(x)?;
        let product = self.product((input.first, 0), x.cols(), operands, finish)?;
        let processors = self.card().multiprocessors.max(1);
        let many = product.tiles >= BATCH_FROM * processors;
        if column_tiles > 1 && many && product.batch_warps(column_tiles) >= 4 {
            product.batch(columns)?;
        } else if column_tiles > 1 && groups(x.cols()) >= SHARED_FROM && product.batch_room(column_tiles) >= 4
        {
            product.shared_batch(columns)?;
        } else if column_tiles <= SHARED_TILES {
            // As many columns a launch as leave room for two warps.
            let room = |tiles: usize| {
                let ring = ring_bytes(product.block_type(), Columns::Pieces(tiles));
                product.shared() / (ring + sum_bytes(tiles * TILE_ROWS, 1))
            };
            let mut tiles = column_tiles;
            while tiles > 1 && room(tiles) < 2 {
                tiles /= 2;
            }
            for first in (0..columns).step_by(tiles * TILE_ROWS) {
                let count = (columns - first).min(tiles * TILE_ROWS);
                product.vectors(first, count, Columns::of(product.block_type(), columns, count))?;
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Products with activations as they are, in f32.
    pub(super) fn unrounded(
        &self,
        x: &Activation,
        operands: &[Operand],
        finish: Finish,
        slots: Option<Slots>,
    ) -> Result<()> {
        let stride = x.tensor().strides()[0] as u64;
        let product = self.product((crate::cuda::pointer(x.tensor()), stride), x.cols(), operands, finish)?;
        if let Some(slots) = slots {
            return product.slot_vectors(Columns::Exact(1), &slots);
        }
        for first in (0..x.rows()).step_by(EXACT_COLUMNS) {
            let count = (x.rows() - first).min(EXACT_COLUMNS);
            let widest = [1, 4].into_iter().find(|widest| count <= *widest).unwrap_or(EXACT_COLUMNS);
            product.vectors(first, count, Columns::Exact(widest))?;
        }
        Ok(())
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
        let product = self.product((input.first, 0), x.cols(), operands, finish)?;
        product.slot_vectors(Columns::of(product.block_type(), x.rows(), 1), &slots)
    }
}

impl Product<'_> {
    /// All rows of the output that each have an expert's matrix.
    fn slot_vectors(&self, columns: Columns, slots: &Slots) -> Result<()> {
        let total = slots.rows();
        for first in (0..total).step_by(SLOTS) {
            let repeats = SLOTS.min(total - first);
            let matrices = self.matrices.words;
            self.launch_vectors(matrices, self.x, first, 1, columns, repeats, Some(slots))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_share_what_there_is() {
        // As measured on 132 multiprocessors: one tile each of a large head, groups of a row, turns of a long one.
        assert_eq!(Cut::new(15_520, 10, 132, 16, None), Cut { abreast: 4, shares: 1 });
        assert_eq!(Cut::new(896, 16, 132, 16, None), Cut { abreast: 1, shares: 2 });
        assert_eq!(Cut::new(1_152, 10, 132, 16, None), Cut { abreast: 1, shares: 3 });
        assert_eq!(Cut::new(768, 10, 132, 16, None), Cut { abreast: 1, shares: 2 });
        assert_eq!(Cut::new(160, 36, 132, 16, None), Cut { abreast: 1, shares: 8 });
        assert_eq!(
            Cut::new(896, 16, 132, 16, Cut::of_heavy(BlockType::MXFP4)),
            Cut { abreast: 1, shares: 4 }
        );
        for (tiles, groups, room) in [(1, 1, 1), (1, 100, 7), (9, 3, 2), (3_000, 1, 5)] {
            let cut =
                Cut::new(tiles, groups, 132, room, Cut::of_heavy(BlockType::IQ1_S).filter(|_| tiles == 9));
            assert!(cut.warps() <= room && cut.shares <= groups, "{cut:?}");
        }
    }

    #[test]
    fn every_type_has_room_on_small_cards() {
        for block_type in BlockType::ALL.iter().filter(|block_type| !block_type.is_scalar()) {
            for columns in [Columns::Brought, Columns::Flat, Columns::Pieces(1), Columns::Exact(8)] {
                let warp = ring_bytes(*block_type, columns) + sum_bytes(TILE_ROWS, 1);
                let bytes = 4 * book_words(*block_type) + 2 * warp;
                assert!(bytes <= 99 << 10, "{block_type}: {bytes}");
            }
        }
    }
}
