//! Attention over pages of halves and of q8_0 on tensor cores (`flash.cu`).
//!
//! Sequences of few rows go in tiles of 16, others in tiles as large as the card's shared memory holds. Where tiles are
//! too few to occupy the card, several blocks share a tile's keys, and the last of them, or where rows are many a second
//! kernel, adds their spans up. How many is decided by what is in the step, not by the length of the context, so that a
//! recorded step stays valid as that grows.

use super::Heads;
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::device::Backend;
use crate::matmul::cuda::{groups, pieces_address};
use crate::{KvDtype, KvLayer, Result, Step, StepSequence, Without};

use super::{Operands, kv_number};

pub(crate) static FLASH: Source = Source {
    name: "flash.cu",
    code: include_str!("flash.cu"),
    options: &[],
    variants: &[
        &[("KV", 1), ("DK", 256), ("DV", 256), ("DOWN", 1), ("ACROSS", 4)],
        &[("KV", 1), ("DK", 256), ("DV", 256), ("DOWN", 4), ("ACROSS", 2)],
        &[("KV", 1), ("DK", 128), ("DV", 128), ("DOWN", 4), ("ACROSS", 2)],
        &[("KV", 1), ("DK", 96), ("DV", 80), ("DOWN", 1), ("ACROSS", 4)],
        &[("KV", 1), ("DK", 64), ("DV", 64), ("DOWN", 8), ("ACROSS", 1)],
        &[("KV", 2), ("DK", 256), ("DV", 256), ("DOWN", 1), ("ACROSS", 4)],
        &[("KV", 2), ("DK", 256), ("DV", 256), ("DOWN", 4), ("ACROSS", 2)],
        &[("KV", 2), ("DK", 64), ("DV", 96), ("DOWN", 8), ("ACROSS", 1)],
    ],
};

/// As in `flash.cu`.
const BLOCK: usize = 64;
const SPAN: usize = 128;
const SPANS: usize = 64;

/// The lowest compute capability with the instructions of `flash.cu`.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// Rows of a sequence up to which small tiles pay.
const FEW_ROWS: usize = 32;

/// The most bytes of partial results: with more tiles, blocks take them whole.
const PARTIAL_BYTES: usize = 40 << 20;

/// Rows of a tile up to which its last block adds up spans: more are added up faster by several blocks.
const MERGED_ROWS: usize = 8;

/// Bytes of shared memory for that, behind the word that says which block is the last.
const MERGE_BYTES: usize = 16 + 4 * 4 * SPANS * MERGED_ROWS;

/// The tiles that a block computes: groups of 16 rows, warps a group.
#[derive(Clone, Copy)]
struct Form {
    down: usize,
    across: usize,
}

impl Form {
    const SMALL: Self = Self { down: 1, across: 4 };

    /// As many rows as eight warps compute, fewer where shared memory is short; a warp's registers hold two sums for each of
    /// at most 128 dimensions of a row.
    fn large(heads: &Heads, shared: usize) -> Self {
        let across = match heads.value_dim {
            ..=64 => 1,
            65..=256 => 2,
            _ => 4,
        };
        let mut form = Self { down: 8 / across, across };
        while form.down > 1 && form.shared_bytes(heads) > shared {
            form.down /= 2;
        }
        // One group of rows has more warps, with fewer registers each, in the small form.
        if form.down == 1 { Self::SMALL } else { form }
    }

    fn rows(self) -> usize {
        16 * self.down
    }

    fn shared_bytes(self, heads: &Heads) -> usize {
        let (key_pitch, value_pitch) = (2 * heads.key_dim + 16, 2 * heads.value_dim + 16);
        let weights = if self.across > 1 { 2 * self.rows() * (2 * BLOCK + 16) } else { 0 };
        let per_row = 4 * (self.across + 1);
        let kept = if heads.packed {
            // Unpacked keys or values; blocks of both with their scales.
            key_pitch.max(value_pitch) + (heads.key_dim + heads.value_dim) / 32 * (34 + 4)
        } else {
            key_pitch + value_pitch
        };
        let bytes = 2 * self.rows() * key_pitch + BLOCK * kept + weights + self.rows() * per_row;
        // Results on their way out.
        let results = |rows: usize| 4 * rows * (heads.value_dim + 8);
        bytes.max(MERGE_BYTES + results(MERGED_ROWS)).max(results(self.rows()))
    }
}

/// By how much a token's spans are longer than [`SPAN`], in powers of two.
fn span_shift(position: usize) -> u32 {
    usize::BITS - (position / (SPAN * SPANS)).leading_zeros()
}

/// Some rows of a sequence whose positions have one span shift.
struct Tile {
    sequence: usize,
    first_row: usize,
    rows: usize,
    spans: usize,
}

/// The tiles of the sequences that are `wanted`, those with the most keys first.
fn tiles(step: &Step, heads: &Heads, tile_rows: usize, wanted: impl Fn(&StepSequence) -> bool) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (index, sequence) in step.sequences().iter().enumerate().filter(|(_, sequence)| wanted(sequence)) {
        let all = sequence.len * heads.group;
        let mut first_row = 0;
        while first_row < all {
            let first = sequence.past + first_row / heads.group;
            let shift = span_shift(first);
            // Positions from here on have longer spans.
            let border = ((SPAN * SPANS) << shift) - sequence.past;
            let rows = tile_rows.min(all.min(border * heads.group) - first_row);
            let last = sequence.past + (first_row + rows - 1) / heads.group;
            let first_key = if heads.window > 0 { (first + 1).saturating_sub(heads.window) } else { 0 };
            let span = |key: usize| (key / SPAN) >> shift;
            let spans = span(last) + 1 - span(first_key);
            tiles.push((last, Tile { sequence: index, first_row, rows, spans }));
            first_row += rows;
        }
    }
    tiles.sort_by_key(|(last, _)| std::cmp::Reverse(*last));
    tiles.into_iter().map(|(_, tile)| tile).collect()
}

impl CudaDevice {
    /// Whether tensor cores take layers of this kind: for prompts and for single tokens alike, since their bits agree.
    pub(super) fn has_flash(&self, layer: &KvLayer, heads: &Heads) -> bool {
        self.card().capability >= LEAST_CAPABILITY
            && layer.dtype() != KvDtype::F32
            && heads.key_dim.is_multiple_of(16)
            && heads.value_dim.is_multiple_of(16)
            && heads.value_dim <= 512
            && Form::SMALL.shared_bytes(heads) <= self.card().shared_bytes
            && Form::large(heads, self.card().shared_bytes).shared_bytes(heads) <= self.card().shared_bytes
            && !self.lacks(Without::Attention)
    }

    pub(super) fn flash(&self, operands: Operands, heads: &Heads) -> Result<()> {
        let step = operands.step;
        let is_small = |sequence: &StepSequence| sequence.len == 1 || sequence.len * heads.group <= FEW_ROWS;
        self.flash_tiles(operands, heads, Form::SMALL, true, is_small)?;
        if step.sequences().iter().all(is_small) {
            return Ok(());
        }
        let large = Form::large(heads, self.card().shared_bytes);
        self.flash_tiles(operands, heads, large, false, |sequence| !is_small(sequence))
    }

    fn flash_tiles(
        &self,
        operands: Operands,
        heads: &Heads,
        form: Form,
        small: bool,
        wanted: impl Fn(&StepSequence) -> bool,
    ) -> Result<()> {
        let Operands { step, queries, layer, spec, gate, out, pieces } = operands;
        let tables = self.step(step)?;
        let key = ("flash", [usize::from(small), heads.group, form.rows(), heads.window]);
        // The extent has the most rows of a tile, and the most spans.
        let plan = || {
            tables.plan(self, key, 4, || {
                let tiles = tiles(step, heads, form.rows(), &wanted);
                let words = tiles.iter().flat_map(|tile| [tile.sequence, tile.first_row, tile.rows, 0]);
                let rows = tiles.iter().map(|tile| tile.rows).max().unwrap_or(0);
                let spans = tiles.iter().map(|tile| tile.spans).max().unwrap_or(0);
                (words.map(|word| word as i32).collect(), rows << 16 | spans)
            })
        };
        // One token of every sequence takes no plan, and launches that do not depend on lengths.
        let single = small && step.sequences().iter().all(|sequence| sequence.len == 1);
        let plan = if single { None } else { Some(plan()?) };
        let (tiles, rows, spans) = match &plan {
            Some(plan) => (plan.count, plan.extent >> 16, plan.extent & 0xffff),
            None => (step.len() * heads.group.div_ceil(form.rows()), heads.group.min(form.rows()), SPANS),
        };
        if tiles == 0 {
            return Ok(());
        }
        let list = plan.as_ref().map_or(0, |plan| plan.pointer());
        let pieces = pieces.map_or(0, |buffer| pieces_address(buffer, out.shape()[0]));
        let groups = groups(queries.shape()[1] * heads.value_dim) as i32;
        let (blocks, processors) = (tiles * heads.kv, self.card().multiprocessors);
        let slots = if small { SPANS } else { spans };
        let partial_bytes = 4 * blocks * slots * rows * (heads.value_dim + 2);
        let splits = if partial_bytes > PARTIAL_BYTES {
            1
        } else if small {
            (4 * processors / blocks).clamp(1, SPANS)
        } else if 4 * blocks <= processors && spans > 1 {
            (2 * processors / blocks).clamp(1, SPANS)
        } else {
            1
        };
        let partials = self.temporary(if splits > 1 { partial_bytes } else { 0 })?;
        let merges = splits > 1 && small && rows <= MERGED_ROWS;
        let arrivals = if merges { self.arrivals(blocks)? } else { 0 };
        let defines = [
            ("KV", kv_number(layer.dtype())),
            ("DK", heads.key_dim as i64),
            ("DV", heads.value_dim as i64),
            ("DOWN", form.down as i64),
            ("ACROSS", form.across as i64),
        ];
        self.launch(&FLASH, &defines, "flash")?
            .grid([blocks * splits, 1, 1])
            .block(32 * form.down * form.across)
            .shared(form.shared_bytes(heads))
            .heads_of(queries)
            .arg(layer.keys())
            .arg(layer.values())
            .heads_of(out)
            .heads_of_any(gate)
            .arg(tables.sequences())
            .arg(tables.pages())
            .arg(list)
            .arg(partials.pointer())
            .arg(arrivals)
            .arg(heads.kv as i32)
            .arg(heads.group as i32)
            .arg(spec.scale)
            .arg(heads.window as i32)
            .arg(spec.softcap.unwrap_or(0.0))
            .arg(splits as i32)
            .arg(slots as i32)
            .arg(rows as i32)
            .arg(pieces)
            .arg(groups)
            .run()?;
        if splits == 1 || merges {
            return Ok(());
        }
        self.launch(&FLASH, &defines, "combine")?
            .grid([tiles * rows, heads.kv, 1])
            .block((heads.value_dim / 4).next_multiple_of(32))
            .arg(partials.pointer())
            .arg(list)
            .heads_of(out)
            .heads_of_any(gate)
            .arg(tables.sequences())
            .arg(heads.kv as i32)
            .arg(heads.group as i32)
            .arg(heads.window as i32)
            .arg(slots as i32)
            .arg(rows as i32)
            .arg(pieces)
            .arg(groups)
            .run()
    }
}
