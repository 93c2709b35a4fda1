//! The family on NVIDIA cards.
//!
//! Norms of heads, rotation and writing to pages are one kernel (`prepare.cu`).
//!
//! Pages of halves and of q8_0 go to tensor cores (`flash.cu`), those of f32, and heads of odd widths, to `attention.cu`. There a
//! tile is up to so many rows (tokens of a sequence times heads of a group); a block takes a tile through all its
//! keys, or, where there are too few tiles to occupy the card, through one span of them, and a second kernel merges the
//! spans in order. A row's bits are the same either way.

mod flash;
mod prepare;

use cudarc::driver::sys::CUdeviceptr;

use super::gated::by_head;
use super::{AttentionOps, AttentionSpec, Prepare};
use crate::activation::Form;
use crate::buffer::Buffer;
use crate::cuda::phase::{self, Phase};
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, CudaError};
use crate::device::Backend;
use crate::norm::cuda::WARP_WIDTH;
use crate::{Activation, Error, KvDtype, KvLayer, Result, Step, StepSequence, Tensor, Without};

pub(crate) use flash::FLASH;
pub(crate) use prepare::PREPARE;

pub(crate) static ATTENTION: Source = Source {
    name: "attention.cu",
    code: include_str!("attention.cu"),
    options: &[],
    variants: &[
        &[("ROWS", 4), ("DK", 256), ("DV", 256), ("KV", 1)],
        &[("ROWS", 32), ("DK", 128), ("DV", 128), ("KV", 1)],
        &[("ROWS", 16), ("DK", 512), ("DV", 512), ("KV", 2)],
        &[("ROWS", 8), ("DK", 30), ("DV", 44), ("KV", 0)],
    ],
};

pub(crate) static WRITE: Source = Source {
    name: "write.cu",
    code: include_str!("write.cu"),
    options: &[],
    variants: &[&[("KV", 0)], &[("KV", 1)], &[("KV", 2)]],
};

/// As in `attention.cu`.
const THREADS: usize = 128;
pub(crate) const SPAN: usize = 128;
const PAGE: usize = crate::PAGE_LEN;

/// Blocks of a multiprocessor that share the spans of short and long sequences alike.
const BLOCKS_EACH: usize = 4;

/// The most blocks that share the spans of one head.
const PARTS: usize = 256;

/// Spans of all sequences that a recording has room for, whatever pages there are: so many, and so many for each.
const SPANS: [usize; 2] = [4096, 64];

/// The most values of a row that a block accumulates, times its rows: what registers hold.
const ACCUMULATED: usize = 64 * THREADS;

fn kv_number(dtype: KvDtype) -> i64 {
    match dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Q8_0 => 2,
    }
}

/// The sizes that one kind of layer has.
struct Heads {
    group: usize,
    kv: usize,
    key_dim: usize,
    value_dim: usize,
    window: usize,
    /// Whether pages are of q8_0.
    packed: bool,
}

impl Heads {
    fn of(queries: &Tensor, layer: &KvLayer, spec: &AttentionSpec) -> Self {
        Self {
            group: queries.shape()[1] / layer.kv_heads(),
            kv: layer.kv_heads(),
            key_dim: layer.key_dim(),
            value_dim: layer.value_dim(),
            window: spec.window.unwrap_or(0),
            packed: layer.dtype() == KvDtype::Q8_0,
        }
    }

    fn shared_bytes(&self, rows: usize) -> usize {
        let padded = self.key_dim.next_multiple_of(4);
        4 * (PAGE * (padded + 4) + rows * (padded + PAGE + 4 + 7))
    }

    /// Rows of a tile for prompts: as many as registers and shared memory hold.
    fn large_tile(&self, device: &CudaDevice) -> usize {
        let dims = self.value_dim.next_multiple_of(THREADS);
        let fits = |rows: &usize| {
            rows * dims <= ACCUMULATED && self.shared_bytes(*rows) <= device.card().shared_bytes
        };
        [32, 16, 8].into_iter().find(fits).unwrap_or(4)
    }

    /// The spans that a tile's rows see.
    fn spans(&self, past: usize, first_row: usize, rows: usize) -> std::ops::Range<usize> {
        let first = past + first_row / self.group;
        let last = past + (first_row + rows - 1) / self.group;
        let first_key = if self.window > 0 { (first + 1).saturating_sub(self.window) } else { 0 };
        first_key / SPAN..last / SPAN + 1
    }
}

/// One tile of a step.
struct Tile {
    sequence: usize,
    first_row: usize,
    rows: usize,
    spans: std::ops::Range<usize>,
}

/// The tiles of the sequences that are `wanted`, those with the most keys first.
fn tiles(step: &Step, heads: &Heads, tile_rows: usize, wanted: impl Fn(&StepSequence) -> bool) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (index, sequence) in step.sequences().iter().enumerate().filter(|(_, sequence)| wanted(sequence)) {
        let all = sequence.len * heads.group;
        for first_row in (0..all).step_by(tile_rows) {
            let rows = tile_rows.min(all - first_row);
            let spans = heads.spans(sequence.past, first_row, rows);
            tiles.push(Tile { sequence: index, first_row, rows, spans });
        }
    }
    tiles.sort_by_key(|tile| std::cmp::Reverse(tile.spans.len()));
    tiles
}

/// What attention reads and writes.
#[derive(Clone, Copy)]
struct Operands<'a> {
    step: &'a Step,
    queries: &'a Tensor,
    layer: &'a KvLayer,
    spec: &'a AttentionSpec,
    gate: Option<&'a Tensor>,
    out: &'a Tensor,
    /// Where the result goes in the form that products read besides, where tensor cores compute it.
    pieces: Option<&'a Buffer>,
}

/// The tiles of a launch: how many blocks of one head, and lists that say what they do. Without lists every sequence has
/// one token, and blocks find out by themselves.
struct Cut {
    tile_rows: usize,
    blocks: usize,
    /// Address of the list of blocks.
    plan: CUdeviceptr,
    /// Blocks of a tile, where there is no list.
    parts: usize,
    /// Partial results, a span each; 0 where tiles are taken whole.
    spans: usize,
}

impl CudaDevice {
    /// Attention of the sequences that are `wanted`, by lists that are made of the step.
    fn attend_by_lists(
        &self,
        operands: Operands,
        heads: &Heads,
        tile_rows: usize,
        class: usize,
        wanted: impl Fn(&StepSequence) -> bool,
    ) -> Result<()> {
        let step = operands.step;
        let tables = self.step(step)?;
        let key = |what| (what, [tile_rows * 2 + class, heads.group, heads.kv, heads.window]);
        // The extent is the number of entries with spans of their own, or 0 where tiles are taken whole.
        let plan = tables.plan(self, key("attention"), 4, || {
            let tiles = tiles(step, heads, tile_rows, &wanted);
            let few = tiles.len() * heads.kv < 2 * self.card().multiprocessors;
            let split = few && tiles.iter().any(|tile| tile.spans.len() > 1);
            let mut words = Vec::new();
            for tile in &tiles {
                let spans = if split { tile.spans.clone() } else { usize::MAX - 1..usize::MAX };
                for span in spans {
                    let span = if split { span as i32 } else { -1 };
                    words.extend([tile.sequence as i32, tile.first_row as i32, tile.rows as i32, span]);
                }
            }
            let entries = words.len() / 4;
            (words, if split { entries } else { 0 })
        })?;
        let cut = Cut { tile_rows, blocks: plan.count, plan: plan.pointer(), parts: 0, spans: plan.extent };
        self.attend(operands, heads, &cut, || {
            let merges = tables.plan(self, key("attention spans"), 4, || {
                let mut first = 0;
                let mut words = Vec::new();
                for tile in &tiles(step, heads, tile_rows, &wanted) {
                    let spans = tile.spans.len();
                    words.extend([tile.sequence, tile.first_row, first, spans].map(|number| number as i32));
                    first += spans;
                }
                (words, 0)
            })?;
            Ok((merges.count, merges.pointer()))
        })
    }

    /// Attention of one token of every sequence by a grid that does not depend on lengths, so that it can be recorded.
    fn attend_any_length(&self, operands: Operands, heads: &Heads, tile_rows: usize) -> Result<()> {
        let sequences = operands.step.sequences().len();
        let tiles = sequences * heads.kv;
        let processors = self.card().multiprocessors;
        let few = tiles < 2 * processors;
        let parts = if few { (BLOCKS_EACH * processors).div_ceil(tiles).min(PARTS) } else { 1 };
        let spans = operands.layer.pages().div_ceil(SPAN / PAGE) + sequences;
        let spans = if parts > 1 { spans.min(SPANS[0] + SPANS[1] * sequences) } else { 0 };
        if spans > 0 {
            phase::limit_spans(spans);
        }
        let cut = Cut { tile_rows, blocks: sequences * parts, plan: 0, parts, spans };
        self.attend(operands, heads, &cut, || Ok((sequences, 0)))
    }

    /// Launches what `cut` says; `merges` are the tiles whose spans are put together, and the address of their list.
    fn attend(
        &self,
        operands: Operands,
        heads: &Heads,
        cut: &Cut,
        merges: impl FnOnce() -> Result<(usize, CUdeviceptr)>,
    ) -> Result<()> {
        if cut.blocks == 0 {
            return Ok(());
        }
        let Operands { step, queries, layer, spec, out, .. } = operands;
        let tables = self.step(step)?;
        let tile_rows = cut.tile_rows;
        let defines = [
            ("ROWS", tile_rows as i64),
            ("DK", heads.key_dim as i64),
            ("DV", heads.value_dim as i64),
            ("KV", kv_number(layer.dtype())),
        ];
        let partials = self.temporary(4 * cut.spans * heads.kv * tile_rows * (heads.value_dim + 2))?;
        self.launch(&ATTENTION, &defines, "attention")?
            .grid([cut.blocks, heads.kv, 1])
            .block(THREADS)
            .shared(heads.shared_bytes(tile_rows))
            .heads_of(queries)
            .arg(layer.keys())
            .arg(layer.values())
            .heads_of(out)
            .arg(tables.sequences())
            .arg(tables.pages())
            .arg(cut.plan)
            .arg(partials.pointer())
            .arg(heads.kv as i32)
            .arg(heads.group as i32)
            .arg(spec.scale)
            .arg(heads.window as i32)
            .arg(spec.softcap.unwrap_or(0.0))
            .arg(cut.parts as i32)
            .run()?;
        if cut.spans == 0 {
            return Ok(());
        }
        let (tiles, list) = merges()?;
        self.launch(&ATTENTION, &defines, "combine")?
            .grid([tiles, heads.kv, tile_rows])
            .block(THREADS)
            .arg(partials.pointer())
            .arg(list)
            .heads_of(out)
            .arg(tables.sequences())
            .arg(heads.kv as i32)
            .arg(heads.group as i32)
            .arg(heads.window as i32)
            .run()
    }
}

impl AttentionOps for CudaDevice {
    fn write_kv(&self, step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()> {
        let tables = self.step(step)?;
        let pieces = layer.key_dim().max(layer.value_dim()).div_ceil(32);
        let warps = step.len() * layer.kv_heads() * pieces;
        self.launch(&WRITE, &[("KV", kv_number(layer.dtype()))], "write_kv")?
            .grid([(32 * warps).div_ceil(THREADS), 2, 1])
            .block(THREADS)
            .heads_of(keys)
            .arg(layer.keys())
            .arg(layer.key_dim() as i32)
            .heads_of(values)
            .arg(layer.values())
            .arg(layer.value_dim() as i32)
            .arg(tables.sequences())
            .arg(tables.owners())
            .arg(tables.pages())
            .arg(step.len() as i32)
            .arg(layer.kv_heads() as i32)
            .run()
    }

    fn attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        let operands = Operands { step, queries, layer, spec, gate: None, out, pieces: None };
        let heads = Heads::of(queries, layer, spec);
        if self.has_flash(layer, &heads) {
            return self.flash(operands, &heads);
        }
        let large = heads.large_tile(self);
        let small = heads.group.next_power_of_two().clamp(4, large);
        let is_small = |sequence: &StepSequence| sequence.len * heads.group <= small;
        if self.context().phase() == Phase::Recording {
            if heads.group > small || step.sequences().iter().any(|sequence| sequence.len != 1) {
                let what = "attention of more than a tile's rows of a sequence".to_owned();
                return Err(Error::Cuda(CudaError::Recording { what }));
            }
            return self.attend_any_length(operands, &heads, small);
        }
        self.attend_by_lists(operands, &heads, small, 0, is_small)?;
        if step.sequences().iter().all(is_small) {
            return Ok(());
        }
        self.attend_by_lists(operands, &heads, large, 1, |sequence| !is_small(sequence))
    }

    fn fuses_prepare(&self, layer: &KvLayer) -> bool {
        self.fuses_norms() && layer.key_dim() <= WARP_WIDTH
    }

    fn prepare_qkv(&self, step: &Step, qkv: [&Tensor; 3], prepare: &Prepare, layer: &KvLayer) -> Result<()> {
        self.prepare_heads(step, qkv, prepare, layer)
    }

    fn fuses_gate(&self, queries: &Tensor, layer: &KvLayer, spec: &AttentionSpec) -> bool {
        !self.lacks(Without::Fusion) && self.has_flash(layer, &Heads::of(queries, layer, spec))
    }

    fn gated_attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        gate: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<Option<Activation>> {
        let by_head = by_head(out, queries.shape()[1])?;
        let pieces = if self.leaves_pieces(out) { Some(self.pieces_buffer(out)?) } else { None };
        let operands = Operands { step, queries, layer, spec, gate, out: &by_head, pieces: pieces.as_ref() };
        self.flash(operands, &Heads::of(queries, layer, spec))?;
        pieces.map(|pieces| Activation::with_form(out, Form::Pieces, pieces)).transpose()
    }
}
