//! Many columns with AMX: a tile register holds a block of sixteen rows of weights, another that of sixteen columns, and
//! one instruction makes all their 256 sums.
//!
//! A block of 32 has its own scale, so a tile of sums serves one block only; it is stored, converted, scaled and added to
//! f32 sums by AVX-512, while the next tiles are multiplied. That takes three or four operations for sixteen sums, which
//! is what bounds these kernels: so blocks are taken lane by lane of the sums' tree, one behind the other, and the f32
//! sums of sixteen rows and columns stay in sixteen registers.

#[cfg(test)]
pub(super) mod double;
mod tiles;

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, LANE_BLOCKS};
use super::cohort::{self, COHORT, Cohort, CohortBlock, Cohorted};
use super::layout::{Layout, Tile, exact};
use super::transpose::{OCTET, TileBlock, Weights, octet};
use super::vector::TwoRows;
use super::{Form, Unpack, each};
use tiles::{COLUMNS, SUMS, Shapes, Tiles, WEIGHTS};

use crate::cpu::scratch::Scratch;
pub(super) use tiles::Instructions;

/// Rows of a tile of weights in memory: those of two tile registers.
const ROWS: usize = 32;

/// Rows of a tile register, which are the lanes of a vector.
const LANES: usize = 16;

type Block = TileBlock<ROWS>;

/// Kernels that multiply with tiles.
pub(super) struct Amx<T>(PhantomData<T>);

impl<T: Tiles> Layout for Amx<T> {
    type Vector = TwoRows;
    const ROWS: usize = ROWS;
    type Block = Block;

    #[inline(always)]
    unsafe fn stored<U: Unpack>(quants: [__m512i; 8]) -> [__m512i; 8] {
        // SAFETY: promised by the caller.
        unsafe { exact::<TwoRows, U>(quants) }
    }

    #[inline(always)]
    unsafe fn octet(rows: &[Weights; OCTET], parts: [bool; 2], blocks: [*mut Block; BLOCKS], first: usize) {
        // SAFETY: promised by the caller.
        unsafe { octet(rows, parts, blocks, first) }
    }

    #[inline(always)]
    unsafe fn product<U: Unpack>(
        panel: &Panel,
        columns: &[*const u8],
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        // SAFETY: promised by the caller.
        unsafe { cohort::product::<Self, U>(panel, columns, out, scratch) }
    }
}

impl<T: Tiles> Cohorted for Amx<T> {
    #[inline(always)]
    unsafe fn begin<F: Form>() {
        const WHOLE: Shapes = Shapes::of(32);
        const HALF: Shapes = Shapes::of(16);
        // SAFETY: promised by the caller.
        unsafe { T::configure(if F::HALVES { &HALF } else { &WHOLE }) }
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: promised by the caller.
        unsafe { T::release() }
    }

    #[inline(always)]
    unsafe fn multiply<F: Form>(tile: &Tile, cohort: &Cohort, out: *mut f32, stride: usize) {
        // SAFETY: promised by the caller.
        unsafe { multiply::<T, F>(tile, cohort, out, stride) }
    }
}

/// For the two tile registers of rows, a vector of rows for each column.
type Floats = [[[f32; LANES]; COHORT]; 2];

/// For each half of a block (or the whole), what a tile of sums holds of the two tile registers of rows.
type Products = [[[[i32; LANES]; COHORT]; 2]; 2];

/// Blocks at most whose products are in memory before they are added.
const AHEAD: usize = 4;

#[repr(C, align(64))]
struct Memory {
    /// By lane of the sums' tree, of first and of second terms.
    sums: [Floats; BLOCKS],
    seconds: [Floats; BLOCKS],
    /// Of the blocks that are being added, and of those that are being multiplied.
    products: [[Products; AHEAD]; 2],
}

/// Consecutive blocks of a lane.
#[derive(Clone, Copy)]
struct Run {
    lane: usize,
    first: usize,
    /// None behind the last lane.
    count: usize,
}

/// Blocks of a lane in a row of `blocks`.
#[inline(always)]
const fn of_lane(blocks: usize, lane: usize) -> usize {
    (blocks + BLOCKS - 1 - LANE_BLOCKS[lane]) / BLOCKS
}

impl Run {
    /// The next `most` blocks at most.
    #[inline(always)]
    fn next(self, blocks: usize, most: usize) -> Self {
        let Run { mut lane, first, count } = self;
        let mut first = first + count;
        while lane < BLOCKS {
            let rest = of_lane(blocks, lane) - first;
            if rest > 0 {
                return Run { lane, first, count: if rest < most { rest } else { most } };
            }
            (lane, first) = (lane + 1, 0);
        }
        Run { lane, first, count: 0 }
    }
}

/// Where the blocks of a tile and a cohort lie.
struct Operands {
    weights: *const Block,
    columns: *const CohortBlock,
    groups: usize,
}

impl Operands {
    #[inline(always)]
    fn block(&self, lane: usize, index: usize) -> (*const Block, *const CohortBlock) {
        let weights = self.weights.wrapping_add(BLOCKS * index + LANE_BLOCKS[lane]);
        (weights, self.columns.wrapping_add(lane * self.groups + index))
    }
}

/// See [`Cohorted::multiply`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn multiply<T: Tiles, F: Form>(tile: &Tile, cohort: &Cohort, out: *mut f32, stride: usize) {
    let operands = Operands { weights: tile.first.cast(), columns: cohort.first, groups: cohort.groups };
    let mut memory = MaybeUninit::<Memory>::uninit();
    let memory = memory.as_mut_ptr();
    // SAFETY: promised by the caller; of the memory nothing is read that was not written.
    unsafe {
        sum_first_terms::<T, F>(&operands, tile.blocks, memory);
        let seconds = sum_second_terms::<T, F>(&operands, tile.blocks, cohort.count, memory);
        for r in 0..2 {
            let rows = tile.rows.saturating_sub(r * LANES);
            let mask = if rows >= LANES { u16::MAX } else { (1 << rows) - 1 };
            for c in 0..cohort.count {
                let mut sum = tree(&raw const (*memory).sums, r, c);
                if seconds >> c & 1 != 0 {
                    sum = _mm512_add_ps(sum, tree(&raw const (*memory).seconds, r, c));
                }
                _mm512_mask_storeu_ps(out.add(c * stride + r * LANES), mask, sum);
            }
        }
    }
}

/// The sums of the lanes, in the order that the family's contract states.
#[inline(always)]
unsafe fn tree(lanes: *const [Floats; BLOCKS], r: usize, c: usize) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let v = each!(|lane: 8| _mm512_load_ps((*lanes)[lane][r][c].as_ptr()));
        let halves = each!(|i: 4| _mm512_add_ps(v[i], v[i + 4]));
        _mm512_add_ps(_mm512_add_ps(halves[0], halves[2]), _mm512_add_ps(halves[1], halves[3]))
    }
}

/// Sums the products of all blocks lane by lane. The blocks of a run are multiplied while those of the run before are
/// added.
#[inline(always)]
unsafe fn sum_first_terms<T: Tiles, F: Form>(operands: &Operands, blocks: usize, memory: *mut Memory) {
    let most = if F::HALVES { AHEAD / 2 } else { AHEAD };
    // SAFETY: promised by the caller.
    unsafe {
        for lane in 0..BLOCKS {
            if of_lane(blocks, lane) == 0 {
                (&raw mut (*memory).sums[lane]).write_bytes(0, 1);
            }
        }
        let mut run = Run { lane: 0, first: 0, count: 0 }.next(blocks, most);
        let mut turn = 0;
        for i in 0..run.count {
            products_of::<T, F>(operands, run, i, &raw mut (*memory).products[turn][i]);
        }
        while run.count > 0 {
            let next = run.next(blocks, most);
            let mut multiplied = 0;
            for r in 0..2 {
                let sums = &raw mut (*memory).sums[run.lane][r];
                let mut acc = [_mm512_setzero_ps(); COHORT];
                if run.first > 0 {
                    acc = each!(|c: 16| _mm512_load_ps((*sums)[c].as_ptr()));
                }
                for i in 0..run.count {
                    if i % 2 == 0 && multiplied < next.count {
                        let to = &raw mut (*memory).products[1 - turn][multiplied];
                        products_of::<T, F>(operands, next, multiplied, to);
                        multiplied += 1;
                    }
                    let (weights, columns) = operands.block(run.lane, run.first + i);
                    let products = &raw const (*memory).products[turn][i];
                    add_block::<F>(&mut acc, products, r, weights, columns);
                }
                for c in 0..COHORT {
                    _mm512_store_ps((*sums)[c].as_mut_ptr(), acc[c]);
                }
            }
            for i in multiplied..next.count {
                products_of::<T, F>(operands, next, i, &raw mut (*memory).products[1 - turn][i]);
            }
            (run, turn) = (next, 1 - turn);
        }
    }
}

/// Multiplies the block at `i` of a run. Neighbours use different tiles.
#[inline(always)]
unsafe fn products_of<T: Tiles, F: Form>(operands: &Operands, run: Run, i: usize, to: *mut Products) {
    let (weights, columns) = operands.block(run.lane, run.first + i);
    // SAFETY: promised by the caller.
    unsafe { block_products::<T, F>(weights, columns, i % 2 == 1, to) }
}

#[inline(always)]
unsafe fn block_products<T: Tiles, F: Form>(
    weights: *const Block,
    columns: *const CohortBlock,
    odd: bool,
    to: *mut Products,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let (first, last) = (&raw const (*weights).quants[0], &raw const (*weights).quants[4]);
        let x = (&raw const (*columns).quants).cast::<u8>();
        let to = to.cast::<[[[i32; LANES]; COHORT]; 2]>();
        if F::HALVES {
            tile_products::<T, { SUMS[0] }, { SUMS[1] }, { COLUMNS[0] }>(first.cast(), x, to);
            tile_products::<T, { SUMS[2] }, { SUMS[3] }, { COLUMNS[1] }>(last.cast(), x.add(16), to.add(1));
        } else if odd {
            tile_products::<T, { SUMS[2] }, { SUMS[3] }, { COLUMNS[1] }>(first.cast(), x, to);
        } else {
            tile_products::<T, { SUMS[0] }, { SUMS[1] }, { COLUMNS[0] }>(first.cast(), x, to);
        }
    }
}

/// Multiplies sixteen columns with both tile registers of rows.
#[inline(always)]
unsafe fn tile_products<T: Tiles, const FIRST: usize, const LAST: usize, const X: usize>(
    weights: *const u8,
    columns: *const u8,
    to: *mut [[[i32; LANES]; COHORT]; 2],
) {
    // SAFETY: promised by the caller.
    unsafe {
        T::load::<X>(columns, 32);
        T::load::<{ WEIGHTS[0] }>(weights, 4 * ROWS);
        T::load::<{ WEIGHTS[1] }>(weights.add(4 * LANES), 4 * ROWS);
        T::zero::<FIRST>();
        T::zero::<LAST>();
        T::multiply::<FIRST, X, { WEIGHTS[0] }>();
        T::multiply::<LAST, X, { WEIGHTS[1] }>();
        T::store::<FIRST>((&raw mut (*to)[0]).cast());
        T::store::<LAST>((&raw mut (*to)[1]).cast());
    }
}

/// Adds a block's products, scaled, and its minima, for sixteen rows and all columns of a cohort.
#[inline(always)]
unsafe fn add_block<F: Form>(
    acc: &mut [__m512; COHORT],
    products: *const Products,
    r: usize,
    weights: *const Block,
    columns: *const CohortBlock,
) {
    // SAFETY: promised by the caller.
    unsafe {
        for half in 0..=usize::from(F::HALVES) {
            let scale = _mm512_loadu_ps((&raw const (*weights).scales[half]).cast::<f32>().add(r * LANES));
            for c in 0..COHORT {
                let sum = _mm512_cvtepi32_ps(_mm512_load_si512((*products)[half][r][c].as_ptr().cast()));
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*columns).scales[c]));
                acc[c] = _mm512_fmadd_ps(scale, sum, acc[c]);
            }
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                let min = _mm512_loadu_ps((&raw const (*weights).mins[half]).cast::<f32>().add(r * LANES));
                for c in 0..COHORT {
                    let sum = _mm512_set1_ps(sum_of::<F>(columns, half, c));
                    acc[c] = _mm512_fmadd_ps(min, sum, acc[c]);
                }
            }
        }
    }
}

/// What a minimum is multiplied by.
#[inline(always)]
unsafe fn sum_of<F: Form>(columns: *const CohortBlock, half: usize, c: usize) -> f32 {
    // SAFETY: promised by the caller.
    unsafe { if F::HALVES { (*columns).sums[half][c] } else { (*columns).whole_sums[c] } }
}

/// Sums the products of the blocks that have second terms, of the columns that have them; says which ones do anywhere.
#[inline(always)]
unsafe fn sum_second_terms<T: Tiles, F: Form>(
    operands: &Operands,
    blocks: usize,
    count: usize,
    memory: *mut Memory,
) -> u32 {
    let wanted = (1 << count) - 1;
    let mut seconds = 0;
    // SAFETY: promised by the caller.
    unsafe {
        for lane in 0..BLOCKS {
            for index in 0..of_lane(blocks, lane) {
                let (weights, columns) = operands.block(lane, index);
                let mut loud = (*columns).loud & wanted;
                if loud == 0 {
                    continue;
                }
                if seconds == 0 {
                    (&raw mut (*memory).seconds).write_bytes(0, 1);
                }
                seconds |= loud;
                let columns = columns.add(cohort::blocks(operands.groups) / 2);
                let products = &raw mut (*memory).products[0][index % AHEAD];
                block_products::<T, F>(weights, columns, index % 2 == 1, products);
                while loud != 0 {
                    let c = loud.trailing_zeros() as usize % COHORT;
                    loud &= loud - 1;
                    for r in 0..2 {
                        let sum = (&raw mut (*memory).seconds[lane][r][c]).cast::<f32>();
                        let added = add_column::<F>(_mm512_load_ps(sum), products, [r, c], weights, columns);
                        _mm512_store_ps(sum, added);
                    }
                }
            }
        }
    }
    seconds
}

/// As [`add_block`], for one column.
#[inline(always)]
unsafe fn add_column<F: Form>(
    mut acc: __m512,
    products: *const Products,
    [r, c]: [usize; 2],
    weights: *const Block,
    columns: *const CohortBlock,
) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        for half in 0..=usize::from(F::HALVES) {
            let scale = _mm512_loadu_ps((&raw const (*weights).scales[half]).cast::<f32>().add(r * LANES));
            let sum = _mm512_cvtepi32_ps(_mm512_load_si512((*products)[half][r][c].as_ptr().cast()));
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*columns).scales[c]));
            acc = _mm512_fmadd_ps(scale, sum, acc);
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                let min = _mm512_loadu_ps((&raw const (*weights).mins[half]).cast::<f32>().add(r * LANES));
                acc = _mm512_fmadd_ps(min, _mm512_set1_ps(sum_of::<F>(columns, half, c)), acc);
            }
        }
    }
    acc
}
