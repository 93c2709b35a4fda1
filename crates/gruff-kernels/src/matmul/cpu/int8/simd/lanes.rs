//! Many columns with AVX-512 VNNI: a tile of 32 rows meets four columns at a time, lane by lane of the sums' tree.
//!
//! Taken so, the f32 sums of 32 rows and four columns stay in eight registers over all groups, and a lane of a tile stays in
//! the first-level cache while all columns of a cohort pass. A block's products are summed in two halves that are added at
//! its end: sixteen sums are on their way at once, where eight would leave the multipliers waiting for each other. What
//! remains is bound by the two pipes that multiply: of 32 rows, four columns and a block 64 products of bytes, 8 (16) of
//! scales, 8 (16) sums scaled and added, and as many minima.

use std::arch::x86_64::*;

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, GROUP, LANE_BLOCKS};
use super::ahead::Ahead;
use super::cohort::all_made;
use super::dot::Vnni;
use super::fours::{COHORT, Cohort, EXCESS, FOUR, FourBlocks};
use super::layout::{Bits, Layout, Tile, unpack};
use super::transpose::{OCTET, TileBlock, Weights, octet};
use super::vector::{TwoRows, Vector};
use super::{Form, Quants, Unpack, each, tile};
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

/// Rows of a tile, and of a vector.
const ROWS: usize = 32;
const LANES: usize = 16;

/// Blocks of a lane that stay in the first-level cache, 1280 bytes each, beside the columns' sums.
const PART: usize = 20;

/// Lanes in the order in which their sums are added up: `((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))`.
const ORDER: [usize; BLOCKS] = [0, 4, 2, 6, 1, 5, 3, 7];

type Block = TileBlock<ROWS>;

/// The layout of tiles.
pub(super) struct Lanes;

impl Layout for Lanes {
    type Vector = TwoRows;
    const ROWS: usize = ROWS;
    const BY_LANE: bool = true;
    type Block = Block;

    #[inline(always)]
    unsafe fn stored<U: Unpack>(quants: [Bits<Self>; 8]) -> [Bits<Self>; 8] {
        if !is_shifted::<U::Form>() {
            return quants;
        }
        let offset = if U::Form::QUANTS == Quants::Signed { 0 } else { 1 << U::OFFSET };
        // SAFETY: promised by the caller.
        unsafe {
            let less = TwoRows::splat8((offset - (1 << EXCESS)) as i8);
            each!(|g: 8| TwoRows::sub8(quants[g], less))
        }
    }

    #[inline(always)]
    unsafe fn octet(rows: &[Weights; OCTET], parts: [bool; 2], blocks: [*mut Block; BLOCKS], first: usize) {
        // SAFETY: promised by the caller.
        unsafe { octet(rows, parts, blocks, first) }
    }

    /// Columns that are not whole cohorts, such as those of an expert, are multiplied as other instruction sets do.
    #[inline(always)]
    unsafe fn product<U: Unpack>(
        panel: &Panel,
        columns: &[*const u8],
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        // SAFETY: promised by the caller.
        unsafe {
            match all_made(columns, panel.cols.div_ceil(GROUP), COHORT) {
                Some(cohorts) => product::<U>(panel, &cohorts, columns.len(), out, scratch),
                None => tile::product::<Vnni, U>(panel, columns, out, scratch),
            }
        }
    }
}

/// Whether weights are stored too large, by [`EXCESS`].
const fn is_shifted<F: Form>() -> bool {
    matches!(F::QUANTS, Quants::Signed) || F::SHIFTED
}

/// See [`Layout::product`], of the first `columns` of cohorts.
#[inline(always)]
unsafe fn product<U: Unpack>(
    panel: &Panel,
    cohorts: &[*const u8],
    columns: usize,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let groups = panel.cols.div_ceil(GROUP);
    let (sums, memory) = scratch.split::<Memory, Block>(groups * BLOCKS);
    let mut row = 0;
    while row < panel.rows {
        // The last tile of several overlaps the one before it: the same results again.
        let first = row.min(panel.rows.saturating_sub(ROWS));
        let rows = ROWS.min(panel.rows - first);
        let ahead = Ahead::of(panel, first + rows, ROWS);
        // SAFETY: promised by the caller; the memory holds the row's groups.
        unsafe {
            unpack::<Lanes, U>(panel, first, memory);
            let blocks = panel.cols.div_ceil(Q8_BLOCK);
            let tile = Tile { first: memory.cast(), blocks, shift: EXCESS, rows, ahead };
            for (i, cohort) in cohorts.iter().enumerate() {
                let out = out.as_mut_ptr().add(i * COHORT * panel.rows + first);
                let count = COHORT.min(columns - i * COHORT);
                let part = Part { count, asked: [i * BLOCKS, cohorts.len() * BLOCKS] };
                multiply::<U::Form>(&tile, &*cohort.cast(), part, sums, out, panel.rows);
            }
        }
        row = first + rows;
    }
}

/// What is wanted of a cohort: its first columns; and which parts of the next tile to ask for meanwhile, of how many.
struct Part {
    count: usize,
    asked: [usize; 2],
}

/// Two vectors of rows of every column, and of [`NOBODY`](super::fours::NOBODY).
type Floats = [[[f32; LANES]; 2]; COHORT + 1];

/// Sums of lanes as far as they are added up.
struct Sums {
    /// `(0 + 4) + (2 + 6)` or a part of it; 2, or 1 + 5 or a part of it; 3.
    added: [Floats; 3],
}

/// Two vectors of rows of four columns.
type Acc = [[__m512; 2]; FOUR];

#[repr(C, align(64))]
struct Memory {
    /// Of first terms, and of a lane that is not done.
    sums: Sums,
    lane: Floats,
    /// Of second terms, by lane, where there are any.
    seconds: [Floats; BLOCKS],
}

/// Multiplies a tile with a cohort; `out` holds `tile.rows` values a column, `stride` apart.
///
/// # Safety
/// The instruction set; a whole tile; a cohort of rows of its length; memory that nobody else touches.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply<F: Form>(
    tile: &Tile,
    cohort: &Cohort,
    part: Part,
    memory: *mut Memory,
    out: *mut f32,
    stride: usize,
) {
    let fours = part.count.div_ceil(FOUR);
    let groups = tile.blocks.div_ceil(BLOCKS);
    // SAFETY: promised by the caller; of the memory nothing is read that was not written.
    unsafe {
        for (turn, lane) in ORDER.into_iter().enumerate() {
            tile.ahead.ask(part.asked[0] + turn, part.asked[1]);
            let weights = tile.first.cast::<Block>().add(lane * groups);
            // Blocks of the lane, in parts.
            let blocks = (tile.blocks + BLOCKS - 1 - LANE_BLOCKS[lane]) / BLOCKS;
            let parts = blocks.div_ceil(PART).max(1);
            for i in 0..parts {
                let (begin, end) = (blocks * i / parts, blocks * (i + 1) / parts);
                for four in 0..fours {
                    let x = cohort.firsts(lane, four);
                    let columns = each!(|c: 4| FOUR * four + c);
                    let mut acc = [[_mm512_setzero_ps(); 2]; FOUR];
                    if i > 0 {
                        acc = load(&raw const (*memory).lane, columns);
                    }
                    for g in begin..end {
                        add_block::<F>(&mut acc, weights.add(g), x.add(g));
                    }
                    if i + 1 < parts {
                        store(&raw mut (*memory).lane, columns, acc);
                    } else {
                        add_up(&raw mut (*memory).sums, turn, columns, acc);
                    }
                }
            }
            add_seconds::<F>(cohort, lane, weights, &raw mut (*memory).seconds[lane]);
        }
        for c in 0..part.count {
            for r in 0..2 {
                let mut sum = _mm512_load_ps((*memory).sums.added[0][c][r].as_ptr());
                if cohort.loud >> c & 1 != 0 {
                    sum = _mm512_add_ps(sum, second(cohort, &raw const (*memory).seconds, c, r));
                }
                let rows = tile.rows.saturating_sub(r * LANES);
                let mask = if rows >= LANES { u16::MAX } else { (1 << rows) - 1 };
                _mm512_mask_storeu_ps(out.wrapping_add(c * stride + r * LANES), mask, sum);
            }
        }
    }
}

/// Sums the second terms of a lane, of the columns that have some there.
#[inline(always)]
unsafe fn add_seconds<F: Form>(cohort: &Cohort, lane: usize, weights: *const Block, sums: *mut Floats) {
    // SAFETY: promised by the caller; columns are below 65, groups are among those of the weights.
    unsafe {
        let (x, count) = cohort.seconds(lane);
        for i in 0..count {
            let x = x.add(i);
            let columns = each!(|c: 4| (*x).columns[c] as usize);
            let from = sums.cast::<[[f32; LANES]; 2]>();
            let mut acc: Acc = each!(|c: 4| each!(|r: 2| {
                let from = (&raw const (*from.add(columns[c]))[r]).cast();
                _mm512_maskz_loadu_ps((*x).begun[c], from)
            }));
            add_block::<F>(&mut acc, weights.add((*x).group as usize), x);
            store(sums, columns, acc);
        }
    }
}

/// The second terms of a column, zero in lanes where it has none, in the order that the family's contract states.
#[inline(always)]
unsafe fn second(cohort: &Cohort, sums: *const [Floats; BLOCKS], c: usize, r: usize) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let v = each!(|lane: 8| {
            let has = 0u16.wrapping_sub((cohort.loud_in[lane] >> c) as u16 & 1);
            _mm512_maskz_loadu_ps(has, (&raw const (*sums)[lane][c][r]).cast())
        });
        let halves = each!(|i: 4| _mm512_add_ps(v[i], v[i + 4]));
        _mm512_add_ps(_mm512_add_ps(halves[0], halves[2]), _mm512_add_ps(halves[1], halves[3]))
    }
}

/// Adds a lane's sums of four columns to those of the lanes before it, in the order that the family's contract states.
#[inline(always)]
unsafe fn add_up(sums: *mut Sums, turn: usize, columns: [usize; FOUR], acc: Acc) {
    // SAFETY: promised by the caller.
    unsafe {
        let [a, b, c] = each!(|i: 3| &raw mut (*sums).added[i]);
        match turn {
            0 => store(a, columns, acc),
            1 => store(a, columns, sum(load(a, columns), acc)),
            2 | 4 => store(b, columns, acc),
            3 => store(a, columns, sum(load(a, columns), sum(load(b, columns), acc))),
            5 => store(b, columns, sum(load(b, columns), acc)),
            6 => store(c, columns, acc),
            _ => {
                let last = sum(load(b, columns), sum(load(c, columns), acc));
                store(a, columns, sum(load(a, columns), last));
            }
        }
    }
}

#[inline(always)]
unsafe fn sum(a: Acc, b: Acc) -> Acc {
    // SAFETY: promised by the caller.
    unsafe { each!(|c: 4| [_mm512_add_ps(a[c][0], b[c][0]), _mm512_add_ps(a[c][1], b[c][1])]) }
}

#[inline(always)]
unsafe fn load(from: *const Floats, columns: [usize; FOUR]) -> Acc {
    // SAFETY: promised by the caller: columns are below 65.
    unsafe {
        let from = from.cast::<[[f32; LANES]; 2]>();
        each!(|c: 4| each!(|r: 2| _mm512_load_ps((*from.add(columns[c]))[r].as_ptr())))
    }
}

#[inline(always)]
unsafe fn store(to: *mut Floats, columns: [usize; FOUR], acc: Acc) {
    // SAFETY: as above.
    unsafe {
        let to = to.cast::<[[f32; LANES]; 2]>();
        for c in 0..FOUR {
            for r in 0..2 {
                _mm512_store_ps((*to.add(columns[c]))[r].as_mut_ptr(), acc[c][r]);
            }
        }
    }
}

/// Integer sums of two vectors of rows and four columns.
type Products = [[__m512i; 2]; FOUR];

/// Adds a block's products.
#[inline(always)]
unsafe fn add_block<F: Form>(acc: &mut Acc, w: *const Block, x: *const FourBlocks) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut first;
        let mut last;
        if F::HALVES {
            first = start::<F>(&raw const (*x).starts[0]);
            last = start::<F>(&raw const (*x).starts[1]);
        } else {
            first = start::<F>(&raw const (*x).whole_starts);
            last = [[_mm512_setzero_si512(); 2]; FOUR];
        }
        for g in 0..4 {
            multiply_fours(&mut first, w, x, g);
            multiply_fours(&mut last, w, x, 4 + g);
        }
        if F::HALVES {
            add_scaled(acc, &raw const (*w).scales[0], x, &first);
            add_scaled(acc, &raw const (*w).scales[1], x, &last);
        } else {
            for c in 0..FOUR {
                for r in 0..2 {
                    first[c][r] = _mm512_add_epi32(first[c][r], last[c][r]);
                }
            }
            add_scaled(acc, &raw const (*w).scales[0], x, &first);
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                let sums = if F::HALVES { &(*x).sums[half] } else { &(*x).whole_sums };
                for r in 0..2 {
                    let mins = _mm512_load_ps((&raw const (*w).mins[half][r * LANES]).cast());
                    for c in 0..FOUR {
                        acc[c][r] = _mm512_fmadd_ps(mins, _mm512_set1_ps(sums[c]), acc[c][r]);
                    }
                }
            }
        }
    }
}

/// What sums begin with, so that weights that are stored too large come out right.
#[inline(always)]
unsafe fn start<F: Form>(starts: *const [i32; FOUR]) -> Products {
    // SAFETY: promised by the caller.
    unsafe {
        if is_shifted::<F>() {
            each!(|c: 4| [_mm512_set1_epi32((*starts)[c]); 2])
        } else {
            [[_mm512_setzero_si512(); 2]; FOUR]
        }
    }
}

/// Adds the products of the four values at `g`.
#[inline(always)]
unsafe fn multiply_fours(sums: &mut Products, w: *const Block, x: *const FourBlocks, g: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        let w = each!(|r: 2| _mm512_load_si512((&raw const (*w).quants[g][r * LANES]).cast()));
        for c in 0..FOUR {
            let x = _mm512_set1_epi32((&raw const (*x).quants[c]).cast::<i32>().add(g).read());
            for r in 0..2 {
                sums[c][r] = _mm512_dpbusd_epi32(sums[c][r], w[r], x);
            }
        }
    }
}

/// Adds sums times the scales of the rows and of the columns.
#[inline(always)]
unsafe fn add_scaled(acc: &mut Acc, scales: *const [f32; ROWS], x: *const FourBlocks, sums: &Products) {
    // SAFETY: promised by the caller.
    unsafe {
        for r in 0..2 {
            let scale = _mm512_load_ps((&raw const (*scales)[r * LANES]).cast());
            for c in 0..FOUR {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*x).scales[c]));
                acc[c][r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[c][r]), acc[c][r]);
            }
        }
    }
}
