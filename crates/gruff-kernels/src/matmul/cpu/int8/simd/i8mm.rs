//! Many columns with `smmla`, which multiplies eight bytes of two rows with those of two columns.
//!
//! Rows stand in pairs in a tile, columns in pairs in registers, and sums stay 2 x 2 from the first product to the last
//! addition: the scales of two rows, each twice, times those of two columns, one after the other, are in the same order.
//! So each sum costs half the products of `sdot` and no more scaling.

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, LANE_BLOCKS};
use super::cohort::{self, COHORT, Cohort, CohortBlock, Cohorted};
use super::layout::{Layout, Tile, exact};
use super::transpose::{OCTET, Weights, numbers};
use super::vector::{Pair, PairOfRegisters};
use super::{Form, Unpack, each};
use crate::cpu::scratch::Scratch;

/// Rows of a tile; pairs of rows and of columns that are multiplied together.
const ROWS: usize = 16;
const ROW_PAIRS: usize = 4;
const COLUMN_PAIRS: usize = 2;

/// Columns that are multiplied together.
const COLUMNS: usize = 2 * COLUMN_PAIRS;

/// A block of 32 columns of a tile: eight values of every row, four times; scales and minima as in a
/// [`TileBlock`](super::transpose::TileBlock).
#[repr(C, align(64))]
pub(super) struct Block {
    quants: [[[u8; 8]; ROWS]; 4],
    scales: [[f32; ROWS]; 2],
    mins: [[f32; ROWS]; 2],
}

pub(super) struct I8mm;

impl Layout for I8mm {
    type Vector = PairOfRegisters;
    const ROWS: usize = ROWS;
    type Block = Block;

    #[inline(always)]
    unsafe fn stored<U: Unpack>(quants: [Pair; 8]) -> [Pair; 8] {
        // SAFETY: promised by the caller.
        unsafe { exact::<PairOfRegisters, U>(quants) }
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

impl Cohorted for I8mm {
    #[inline(always)]
    unsafe fn begin<F: Form>() {}

    #[inline(always)]
    unsafe fn end() {}

    #[inline(always)]
    unsafe fn multiply<F: Form>(tile: &Tile, cohort: &Cohort, out: *mut f32, stride: usize) {
        // SAFETY: promised by the caller.
        unsafe { multiply::<F>(tile, cohort, out, stride) }
    }
}

/// Writes a group of eight rows, the `first` ones of a tile, into the blocks of its eight lanes.
///
/// # Safety
/// `blocks` point to blocks that nobody else uses.
unsafe fn octet(
    rows: &[Weights; OCTET],
    [halves, mins]: [bool; 2],
    blocks: [*mut Block; BLOCKS],
    first: usize,
) {
    assert!(first + OCTET <= ROWS);
    // SAFETY: inside the blocks, as asserted.
    unsafe {
        for k in 0..4 {
            for r in (0..OCTET).step_by(2) {
                // Eight values of each lane, of both rows.
                let lanes = [eights(&rows[r], k), eights(&rows[r + 1], k)];
                for i in 0..BLOCKS / 2 {
                    let (a, b) = (lanes[0][i], lanes[1][i]);
                    let even = &raw mut (*blocks[2 * i]).quants[k][first + r];
                    let odd = &raw mut (*blocks[2 * i + 1]).quants[k][first + r];
                    vst1q_u64(even.cast(), vtrn1q_u64(a, b));
                    vst1q_u64(odd.cast(), vtrn2q_u64(a, b));
                }
            }
        }
        for half in 0..=usize::from(halves) {
            let from = each!(|r: 8| rows[r].scales[half].as_ptr());
            numbers(from, each!(|p: 8| &raw mut (*blocks[p]).scales[half][first]));
            if mins {
                let from = each!(|r: 8| rows[r].mins[half].as_ptr());
                numbers(from, each!(|p: 8| &raw mut (*blocks[p]).mins[half][first]));
            }
        }
    }
}

/// Values `8 k .. 8 k + 8` of the lanes of a row, two lanes a vector.
#[inline(always)]
unsafe fn eights(row: &Weights, k: usize) -> [uint64x2_t; 4] {
    // SAFETY: inside the arrays.
    unsafe {
        let (low, high) = (row.quants[2 * k].as_ptr().cast::<u32>(), row.quants[2 * k + 1].as_ptr().cast());
        let low = [vld1q_u32(low), vld1q_u32(low.add(4))];
        let high: [uint32x4_t; 2] = [vld1q_u32(high), vld1q_u32(high.add(4))];
        each!(|i: 4| {
            let (low, high) = (low[i / 2], high[i / 2]);
            vreinterpretq_u64_u32(if i % 2 == 0 { vzip1q_u32(low, high) } else { vzip2q_u32(low, high) })
        })
    }
}

/// Sums of pairs of rows and pairs of columns, 2 x 2 a vector.
type Sums = [[float32x4_t; COLUMN_PAIRS]; ROW_PAIRS];

/// By lane, of each column, a pair of rows twice.
type Seconds = [[[float32x4_t; ROWS / 2]; COHORT]; BLOCKS];

/// Blocks of a lane in a row of `blocks`.
#[inline(always)]
const fn of_lane(blocks: usize, lane: usize) -> usize {
    (blocks + BLOCKS - 1 - LANE_BLOCKS[lane]) / BLOCKS
}

/// See [`Cohorted::multiply`].
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn multiply<F: Form>(tile: &Tile, cohort: &Cohort, out: *mut f32, stride: usize) {
    let mut seconds = MaybeUninit::<Seconds>::uninit();
    let seconds = seconds.as_mut_ptr();
    // SAFETY: promised by the caller; of second terms nothing is read that was not written.
    unsafe {
        let has_second = sum_second_terms::<F>(tile, cohort, seconds);
        for first in (0..cohort.count).step_by(COLUMNS) {
            for half in 0..tile.rows.div_ceil(2 * ROW_PAIRS) {
                let mut lanes = MaybeUninit::<[Sums; BLOCKS]>::uninit();
                let lanes = lanes.as_mut_ptr();
                for lane in 0..BLOCKS {
                    sum_lane::<F>(tile, cohort, lane, [half * ROW_PAIRS, first], &raw mut (*lanes)[lane]);
                }
                for pair in 0..COLUMN_PAIRS {
                    // Rows of the first column of the pair, of the second.
                    let mut sums = [[0f32; 2 * ROW_PAIRS]; 2];
                    for r in 0..ROW_PAIRS / 2 {
                        let a = tree(each!(|lane: 8| (*lanes)[lane][2 * r][pair]));
                        let b = tree(each!(|lane: 8| (*lanes)[lane][2 * r + 1][pair]));
                        vst1q_f32(sums[0].as_mut_ptr().add(4 * r), vuzp1q_f32(a, b));
                        vst1q_f32(sums[1].as_mut_ptr().add(4 * r), vuzp2q_f32(a, b));
                    }
                    for i in 0..2 {
                        let c = first + 2 * pair + i;
                        if c >= cohort.count {
                            break;
                        }
                        if has_second >> c & 1 != 0 {
                            for r in 0..ROW_PAIRS / 2 {
                                let pair = half * ROW_PAIRS + 2 * r;
                                let a = tree(each!(|lane: 8| (*seconds)[lane][c][pair]));
                                let b = tree(each!(|lane: 8| (*seconds)[lane][c][pair + 1]));
                                let to = sums[i].as_mut_ptr().add(4 * r);
                                vst1q_f32(to, vaddq_f32(vld1q_f32(to), vuzp1q_f32(a, b)));
                            }
                        }
                        let row = half * 2 * ROW_PAIRS;
                        let rows = (tile.rows - row).min(2 * ROW_PAIRS);
                        std::ptr::copy_nonoverlapping(sums[i].as_ptr(), out.add(c * stride + row), rows);
                    }
                }
            }
        }
    }
}

/// The sums of the lanes, in the order that the family's contract states.
#[inline(always)]
unsafe fn tree(v: [float32x4_t; BLOCKS]) -> float32x4_t {
    // SAFETY: always there.
    unsafe {
        let halves = each!(|i: 4| vaddq_f32(v[i], v[i + 4]));
        vaddq_f32(vaddq_f32(halves[0], halves[2]), vaddq_f32(halves[1], halves[3]))
    }
}

/// Sums the products of the blocks of a lane, of four pairs of rows from the given one on and four columns.
#[inline(always)]
unsafe fn sum_lane<F: Form>(
    tile: &Tile,
    cohort: &Cohort,
    lane: usize,
    [pair, column]: [usize; 2],
    out: *mut Sums,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut acc: Sums = [[vdupq_n_f32(0.0); COLUMN_PAIRS]; ROW_PAIRS];
        for index in 0..of_lane(tile.blocks, lane) {
            let block = tile.first.cast::<Block>().add(BLOCKS * index + LANE_BLOCKS[lane]);
            let x = cohort.first.add(lane * cohort.groups + index);
            let mut sums = [[vdupq_n_s32(0); COLUMN_PAIRS]; ROW_PAIRS];
            for half in 0..2 {
                // Sixteen values of four columns; then eight of the first column and of the second of a pair.
                let x16 = each!(|c: 4| vreinterpretq_s64_s8(vld1q_s8(
                    (&raw const (*x).quants[column + c]).cast::<i8>().add(16 * half)
                )));
                for k in 0..2 {
                    let x = each!(|p: 2| vreinterpretq_s8_s64(if k == 0 {
                        vtrn1q_s64(x16[2 * p], x16[2 * p + 1])
                    } else {
                        vtrn2q_s64(x16[2 * p], x16[2 * p + 1])
                    }));
                    for r in 0..ROW_PAIRS {
                        let w = vld1q_s8((&raw const (*block).quants[2 * half + k][2 * (pair + r)]).cast());
                        for p in 0..COLUMN_PAIRS {
                            sums[r][p] = multiply_pairs(sums[r][p], w, x[p]);
                        }
                    }
                }
                if F::HALVES || half == 1 {
                    let half = if F::HALVES { half } else { 0 };
                    let x_scales = each!(|p: 2| two((&raw const (*x).scales[column + 2 * p]).cast()));
                    let scales = each_twice((&raw const (*block).scales[half][2 * pair]).cast());
                    for r in 0..ROW_PAIRS {
                        for p in 0..COLUMN_PAIRS {
                            let scale = vmulq_f32(scales[r], x_scales[p]);
                            acc[r][p] = vfmaq_f32(acc[r][p], scale, vcvtq_f32_s32(sums[r][p]));
                            sums[r][p] = vdupq_n_s32(0);
                        }
                    }
                }
            }
            if F::MINS {
                for half in 0..=usize::from(F::HALVES) {
                    let of_columns = sums_of::<F>(x, half).add(column);
                    let x_sums = each!(|p: 2| two(of_columns.add(2 * p)));
                    let mins = each_twice((&raw const (*block).mins[half][2 * pair]).cast());
                    for r in 0..ROW_PAIRS {
                        for p in 0..COLUMN_PAIRS {
                            acc[r][p] = vfmaq_f32(acc[r][p], mins[r], x_sums[p]);
                        }
                    }
                }
            }
        }
        *out = acc;
    }
}

/// What minima are multiplied by, column by column.
#[inline(always)]
unsafe fn sums_of<F: Form>(x: *const CohortBlock, half: usize) -> *const f32 {
    // SAFETY: promised by the caller.
    unsafe {
        if F::HALVES { (&raw const (*x).sums[half]).cast() } else { (&raw const (*x).whole_sums).cast() }
    }
}

/// Two numbers, one after the other, twice.
#[inline(always)]
unsafe fn two(from: *const f32) -> float32x4_t {
    // SAFETY: promised by the caller.
    unsafe { vreinterpretq_f32_u64(vld1q_dup_u64(from.cast())) }
}

/// Eight numbers, each twice, two a vector.
#[inline(always)]
unsafe fn each_twice(from: *const f32) -> [float32x4_t; ROW_PAIRS] {
    // SAFETY: promised by the caller.
    unsafe {
        let (a, b) = (vld1q_f32(from), vld1q_f32(from.add(4)));
        [vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)]
    }
}

/// `sums[2 i + j] += w[8 i ..] x[8 j ..]`, eight bytes each.
#[inline(always)]
unsafe fn multiply_pairs(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: `i8mm` is enabled where this is inlined; the instruction reads and writes registers only. Its intrinsic
    // is not stable yet.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {w:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Sums the products of the blocks that have second terms, of the columns that have them, a column at a time; says which
/// ones do anywhere.
#[inline(always)]
unsafe fn sum_second_terms<F: Form>(tile: &Tile, cohort: &Cohort, out: *mut Seconds) -> u32 {
    let wanted = (1 << cohort.count) - 1;
    let mut seconds = 0;
    // SAFETY: promised by the caller.
    unsafe {
        for lane in 0..BLOCKS {
            for index in 0..of_lane(tile.blocks, lane) {
                let x = cohort.first.add(lane * cohort.groups + index);
                let mut loud = (*x).loud & wanted;
                if loud == 0 {
                    continue;
                }
                if seconds == 0 {
                    out.write_bytes(0, 1);
                }
                seconds |= loud;
                let block = tile.first.cast::<Block>().add(BLOCKS * index + LANE_BLOCKS[lane]);
                let x = x.add(cohort::blocks(cohort.groups) / 2);
                while loud != 0 {
                    let c = loud.trailing_zeros() as usize % COHORT;
                    loud &= loud - 1;
                    for first in (0..ROWS / 2).step_by(ROW_PAIRS) {
                        let acc = (&raw mut (*out)[lane][c][first]).cast::<[float32x4_t; ROW_PAIRS]>();
                        add_column::<F>(&mut *acc, block, x, [first, c]);
                    }
                }
            }
        }
    }
    seconds
}

/// Adds the products of a block of four pairs of rows and one column.
#[inline(always)]
unsafe fn add_column<F: Form>(
    acc: &mut [float32x4_t; ROW_PAIRS],
    block: *const Block,
    x: *const CohortBlock,
    [pair, c]: [usize; 2],
) {
    // SAFETY: promised by the caller.
    unsafe {
        for part in 0..=usize::from(F::HALVES) {
            let steps = if F::HALVES { 2 * part..2 * part + 2 } else { 0..4 };
            let mut sums = [vdupq_n_s32(0); ROW_PAIRS];
            for k in steps {
                let x = vld1q_dup_s64((&raw const (*x).quants[c]).cast::<i64>().add(k));
                for r in 0..ROW_PAIRS {
                    let w = vld1q_s8((&raw const (*block).quants[k][2 * (pair + r)]).cast());
                    sums[r] = multiply_pairs(sums[r], w, vreinterpretq_s8_s64(x));
                }
            }
            let x_scale = vdupq_n_f32((*x).scales[c]);
            let scales = each_twice((&raw const (*block).scales[part][2 * pair]).cast());
            for r in 0..ROW_PAIRS {
                acc[r] = vfmaq_f32(acc[r], vmulq_f32(scales[r], x_scale), vcvtq_f32_s32(sums[r]));
            }
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                let sum = vdupq_n_f32(sums_of::<F>(x, half).add(c).read());
                let mins = each_twice((&raw const (*block).mins[half][2 * pair]).cast());
                for r in 0..ROW_PAIRS {
                    acc[r] = vfmaq_f32(acc[r], mins[r], sum);
                }
            }
        }
    }
}
