//! Matvec and matmul of any block type with any instruction set.

use std::arch::x86_64::*;
use std::ops::Range;

use gruff_blocks::BlockType;

use super::super::super::kernel::{Kernel, Panel};
use super::super::{GROUP, Group};
use super::dot::offset;
use super::{Avx2, Dot, Quants, Unpack, Unpacked, Vnni, each};
use super::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::Isa;
use crate::cpu::scratch::Scratch;

/// Rows that are unpacked together: two register tiles.
const TILE_ROWS: usize = 8;

/// Groups that are unpacked together: a tile stays in the first-level cache beside the columns it meets.
const TILE_GROUPS: usize = 4;

/// 256 unpacked weights of a row, in memory.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Weights {
    quants: [__m256i; 8],
    scales: [__m256; 2],
    mins: [__m256; 2],
}

type Tile = [[Weights; TILE_GROUPS]; TILE_ROWS];

/// The kernels of a block type.
pub(in super::super) fn kernel(isa: Isa, block_type: BlockType) -> Option<Kernel> {
    macro_rules! by_type {
        ($name:literal, $compute:ident; $($variant:ident => $unpack:ty,)*) => {
            match block_type {
                $(BlockType::$variant => Some(Kernel { name: $name, compute: $compute::<$unpack> }),)*
                _ => None,
            }
        };
        ($name:literal, $compute:ident) => {
            by_type! { $name, $compute;
                Q4_0 => Q4_0, Q4_1 => Q4_1, Q5_0 => Q5_0, Q5_1 => Q5_1, Q8_0 => Q8_0,
                Q2_K => Q2K, Q3_K => Q3K, Q4_K => Q4K, Q5_K => Q5K, Q6_K => Q6K,
                IQ4_NL => Iq4Nl, IQ4_XS => Iq4Xs, MXFP4 => Mxfp4,
            }
        };
    }
    match isa {
        Isa::Scalar => None,
        Isa::Avx2 => by_type!("avx2 int8", avx2),
        Isa::Avx512Vnni => by_type!("avx512-vnni int8", vnni),
    }
}

/// # Safety
/// AVX2, FMA and F16C; and as for [`Kernel::compute`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<U: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    // SAFETY: promised by the caller.
    unsafe { compute::<Avx2, U>(panel, columns, out, scratch) }
}

/// # Safety
/// As [`avx2`], and AVX-512 F, BW, VL and VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn vnni<U: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    // SAFETY: promised by the caller.
    unsafe { compute::<Vnni, U>(panel, columns, out, scratch) }
}

#[inline(always)]
unsafe fn compute<D: Dot, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    debug_assert!(out.len() >= columns.len() * panel.rows);
    if panel.cols == 0 {
        return out.fill(0.0);
    }
    // SAFETY: promised by the caller.
    unsafe {
        match columns {
            [column] => matvec::<D, U>(panel, column.cast(), out),
            _ => matmul::<D, U>(panel, columns, out, scratch),
        }
    }
}

/// More bytes than a group of any type has.
const GROUP_BYTES: usize = 512;

/// A group of a row; the last may be completed with zeros, in `rest`.
#[inline(always)]
unsafe fn group_of<U: Unpack>(
    row: *const u8,
    row_bytes: usize,
    group: usize,
    rest: &mut [u8; GROUP_BYTES],
) -> Unpacked {
    let start = group * U::BYTES;
    // SAFETY: the group begins inside the row, and either ends there too or is copied up to the end of the row.
    unsafe {
        let mut packed = row.add(start);
        if start + U::BYTES > row_bytes {
            rest.fill(0);
            std::ptr::copy_nonoverlapping(packed, rest.as_mut_ptr(), row_bytes - start);
            packed = rest.as_ptr();
        }
        U::unpack(packed)
    }
}

/// The quants as `D` multiplies them.
#[inline(always)]
unsafe fn stored<D: Dot, U: Unpack>(quants: [__m256i; 8]) -> [__m256i; 8] {
    match U::QUANTS {
        Quants::Unsigned { .. } => quants,
        // SAFETY: promised by the caller.
        Quants::Signed => unsafe { each!(|g: 8| D::signed(quants[g])) },
    }
}

#[inline(always)]
unsafe fn vector<T>(from: *const T) -> __m256i {
    // SAFETY: the callers pass 32 readable bytes.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

#[inline(always)]
unsafe fn floats(from: &[f32; 8]) -> __m256 {
    // SAFETY: eight readable floats.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

/// What sums begin with, so that weights that are stored too large come out right.
#[inline(always)]
unsafe fn start<D: Dot, U: Unpack>(offsets: &[i32; 8]) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        let Some(shift) = offset::<D, U>() else { return _mm256_setzero_si256() };
        _mm256_sllv_epi32(vector(offsets), _mm256_set1_epi32(shift as i32))
    }
}

/// Adds `scale * x.scale * sum`.
#[inline(always)]
unsafe fn add_scaled(acc: __m256, scale: __m256, x_scale: __m256, sum: __m256i) -> __m256 {
    // SAFETY: promised by the caller.
    unsafe { _mm256_fmadd_ps(_mm256_mul_ps(scale, x_scale), _mm256_cvtepi32_ps(sum), acc) }
}

/// The sum of the lanes, in the order that the family's contract states.
#[inline(always)]
unsafe fn lanes(v: __m256) -> f32 {
    // SAFETY: promised by the caller.
    unsafe {
        let halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
        _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
    }
}

/// Adds the products of four vectors of weights in registers.
#[inline(always)]
unsafe fn quad<D: Dot, U: Unpack>(sum: __m256i, w: &[__m256i; 8], x: &Group, half: usize) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        let w = each!(|g: 4| w[4 * half + g]);
        let x = each!(|g: 4| vector(&raw const x.quants[4 * half + g]));
        D::dot4::<U>(sum, w, x)
    }
}

/// One column: weights go from the packed row to the product in registers.
#[inline(always)]
unsafe fn matvec<D: Dot, U: Unpack>(panel: &Panel, column: *const Group, out: &mut [f32]) {
    let groups = panel.cols.div_ceil(GROUP);
    let mut rest = [0; GROUP_BYTES];
    // SAFETY: rows and columns are readable, and `out` has a value a row, as promised by the caller.
    unsafe {
        let loud = has_loud(column, groups);
        for row in 0..panel.rows {
            let mut acc = _mm256_setzero_ps();
            let mut second = _mm256_setzero_ps();
            let packed = panel.first.add(row * panel.row_bytes);
            for group in 0..groups {
                let w = group_of::<U>(packed, panel.row_bytes, group, &mut rest);
                let quants = stored::<D, U>(w.quants);
                let x = &*column.add(group);
                acc = add_group::<D, U>(acc, &w, &quants, x);
                if x.is_loud() {
                    second = add_group::<D, U>(second, &w, &quants, &*Group::second(column.add(group)));
                }
            }
            let sum = lanes(acc);
            *out.get_unchecked_mut(row) = if loud { sum + lanes(second) } else { sum };
        }
    }
}

/// Whether a column has second terms.
#[inline(always)]
unsafe fn has_loud(column: *const Group, groups: usize) -> bool {
    // SAFETY: promised by the caller of `matvec` and `matmul`.
    (0..groups).any(|group| unsafe { (*column.add(group)).is_loud() })
}

/// Adds the product of a group of weights in registers and one of activations.
#[inline(always)]
unsafe fn add_group<D: Dot, U: Unpack>(
    acc: __m256,
    w: &Unpacked,
    quants: &[__m256i; 8],
    x: &Group,
) -> __m256 {
    // SAFETY: promised by the caller of `matvec`.
    unsafe {
        let x_scale = floats(&x.scales);
        let first = quad::<D, U>(start::<D, U>(&x.offsets[0]), quants, x, 0);
        let second = quad::<D, U>(start::<D, U>(&x.offsets[1]), quants, x, 1);
        let acc = if U::HALVES {
            let acc = add_scaled(acc, w.scales[0], x_scale, first);
            add_scaled(acc, w.scales[1], x_scale, second)
        } else {
            add_scaled(acc, w.scales[0], x_scale, _mm256_add_epi32(first, second))
        };
        add_mins::<U>(acc, &w.mins, x)
    }
}

#[inline(always)]
unsafe fn add_mins<U: Unpack>(acc: __m256, mins: &[__m256; 2], x: &Group) -> __m256 {
    // SAFETY: promised by the caller.
    unsafe {
        if !U::MINS {
            return acc;
        }
        if !U::HALVES {
            return _mm256_fmadd_ps(mins[0], floats(&x.whole_sums), acc);
        }
        let acc = _mm256_fmadd_ps(mins[0], floats(&x.sums[0]), acc);
        _mm256_fmadd_ps(mins[1], floats(&x.sums[1]), acc)
    }
}

/// Several columns: tiles of rows are unpacked once and multiplied with all of them, then with the second terms of
/// those that have any.
#[inline(always)]
unsafe fn matmul<D: Dot, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let groups = panel.cols.div_ceil(GROUP);
    let (tile, sums) = scratch.split::<Tile, Sums>(2 * columns.len());
    let second_sums = sums.wrapping_add(columns.len());
    // SAFETY: promised by the caller.
    let loud: Vec<usize> = (0..columns.len())
        .filter(|column| unsafe { has_loud(columns.get_unchecked(*column).cast(), groups) })
        .collect();
    for row in (0..panel.rows).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(panel.rows - row);
        for start in (0..groups).step_by(TILE_GROUPS) {
            let range = start..(start + TILE_GROUPS).min(groups);
            // SAFETY: promised by the caller; the tile and the sums are written before they are read.
            unsafe {
                unpack_tile::<D, U>(panel, row, range.clone(), tile);
                let (first, last) = (start == 0, range.end == groups);
                let block = Block { tile, first, last, groups: range, rows };
                for at in (0..columns.len()).step_by(D::COLS) {
                    let columns = &columns[at..(at + D::COLS).min(columns.len())];
                    let sums = sums.add(at);
                    let out = out[at * panel.rows + row..].as_mut_ptr();
                    for tile_row in (0..rows).step_by(D::ROWS) {
                        match (D::ROWS, columns.len()) {
                            (4, 1) => block.run::<D, U, 4, 1>(tile_row, columns, sums, out, panel.rows),
                            (4, 2) => block.run::<D, U, 4, 2>(tile_row, columns, sums, out, panel.rows),
                            (4, _) => block.run::<D, U, 4, 3>(tile_row, columns, sums, out, panel.rows),
                            (_, 1) => block.run::<D, U, 2, 1>(tile_row, columns, sums, out, panel.rows),
                            _ => block.run::<D, U, 2, 2>(tile_row, columns, sums, out, panel.rows),
                        }
                    }
                }
                add_second::<D, U>(&block, columns, &loud, second_sums);
                if block.last {
                    for at in &loud {
                        for r in 0..rows {
                            out[at * panel.rows + row + r] += lanes((*second_sums.add(*at))[r]);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the tile's products with the second terms of the columns `loud`, group by group, as many columns together as
/// have one in the group. Their sums stay apart from the first ones.
#[inline(always)]
unsafe fn add_second<D: Dot, U: Unpack>(
    block: &Block,
    columns: &[*const u8],
    loud: &[usize],
    sums: *mut Sums,
) {
    // SAFETY: promised by the caller of `matmul`, which passes a value of `sums` for every column.
    unsafe {
        if block.first {
            for at in loud {
                sums.add(*at).write([_mm256_setzero_ps(); TILE_ROWS]);
            }
        }
        for group in block.groups.clone() {
            let mut together = [0; 3];
            let mut count = 0;
            for at in loud {
                if !(*columns.get_unchecked(*at).cast::<Group>().add(group)).is_loud() {
                    continue;
                }
                together[count] = *at;
                count += 1;
                if count == D::COLS {
                    match D::COLS {
                        3 => block.second::<D, U, 4, 3>(group, columns, together, sums),
                        _ => block.second::<D, U, 2, 2>(group, columns, together, sums),
                    }
                    count = 0;
                }
            }
            match (D::ROWS, count) {
                (_, 0) => {}
                (4, 1) => block.second::<D, U, 4, 1>(group, columns, together, sums),
                (4, _) => block.second::<D, U, 4, 2>(group, columns, together, sums),
                _ => block.second::<D, U, 2, 1>(group, columns, together, sums),
            }
        }
    }
}

/// Unpacks the tile's rows; what completes the last register tile repeats the last row (computed, not stored).
#[inline(always)]
unsafe fn unpack_tile<D: Dot, U: Unpack>(panel: &Panel, row: usize, groups: Range<usize>, tile: *mut Tile) {
    let mut rest = [0; GROUP_BYTES];
    for r in 0..(panel.rows - row).next_multiple_of(D::ROWS).min(TILE_ROWS) {
        // SAFETY: promised by the caller.
        unsafe {
            let packed = panel.first.add((row + r).min(panel.rows - 1) * panel.row_bytes);
            for group in groups.clone() {
                let w = group_of::<U>(packed, panel.row_bytes, group, &mut rest);
                let quants = stored::<D, U>(w.quants);
                let weights = Weights { quants, scales: w.scales, mins: w.mins };
                (&raw mut (*tile)[r][group - groups.start]).write(weights);
            }
        }
    }
}

/// What the eight lanes of a tile's rows have summed up for one column, between parts of the rows.
type Sums = [__m256; TILE_ROWS];

/// A tile and its place in the rows.
struct Block {
    tile: *const Tile,
    groups: Range<usize>,
    /// Whether the rows begin, and end, with these groups.
    first: bool,
    last: bool,
    rows: usize,
}

impl Block {
    /// Rows `row..row + R` of the tile with C columns.
    #[inline(always)]
    unsafe fn run<D: Dot, U: Unpack, const R: usize, const C: usize>(
        &self,
        row: usize,
        columns: &[*const u8],
        sums: *mut Sums,
        out: *mut f32,
        out_stride: usize,
    ) {
        // SAFETY: promised by the caller of `matmul`, which passes C columns, sums and output columns.
        unsafe {
            let columns: [*const Group; C] = each!(|c: C| columns.get_unchecked(c).cast());
            let mut acc = [[_mm256_setzero_ps(); C]; R];
            if !self.first {
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = (&raw const (*sums.add(c))[row + r]).read();
                    }
                }
            }
            for group in self.groups.clone() {
                let at = group - self.groups.start;
                let w: [*const Weights; R] =
                    each!(|r: R| (&raw const (*self.tile)[row + r]).cast::<Weights>().add(at));
                let x: [*const Group; C] = each!(|c: C| columns[c].add(group));
                multiply::<D, U, R, C>(&mut acc, w, x);
            }
            if !self.last {
                for r in 0..R {
                    for c in 0..C {
                        (&raw mut (*sums.add(c))[row + r]).write(acc[r][c]);
                    }
                }
                return;
            }
            for r in 0..R {
                if row + r < self.rows {
                    for c in 0..C {
                        *out.add(c * out_stride + row + r) = lanes(acc[r][c]);
                    }
                }
            }
        }
    }

    /// Adds all rows' products with the second terms that C columns have for a group.
    #[inline(always)]
    unsafe fn second<D: Dot, U: Unpack, const R: usize, const C: usize>(
        &self,
        group: usize,
        columns: &[*const u8],
        together: [usize; 3],
        sums: *mut Sums,
    ) {
        // SAFETY: promised by the caller of `matmul`; `together` are columns with a second term for the group.
        unsafe {
            let x: [*const Group; C] =
                each!(|c: C| Group::second(columns.get_unchecked(together[c]).cast::<Group>().add(group)));
            for row in (0..self.rows).step_by(R) {
                let w: [*const Weights; R] = each!(|r: R| (&raw const (*self.tile)[row + r])
                    .cast::<Weights>()
                    .add(group - self.groups.start));
                let mut acc = [[_mm256_setzero_ps(); C]; R];
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = (&raw const (*sums.add(together[c]))[row + r]).read();
                    }
                }
                multiply::<D, U, R, C>(&mut acc, w, x);
                for r in 0..R {
                    for c in 0..C {
                        (&raw mut (*sums.add(together[c]))[row + r]).write(acc[r][c]);
                    }
                }
            }
        }
    }
}

/// One group of R rows and C columns.
#[inline(always)]
unsafe fn multiply<D: Dot, U: Unpack, const R: usize, const C: usize>(
    acc: &mut [[__m256; C]; R],
    w: [*const Weights; R],
    x: [*const Group; C],
) {
    // SAFETY: promised by the caller of `matmul`.
    unsafe {
        let w_first: [*const __m256i; R] = each!(|r: R| (&raw const (*w[r]).quants).cast());
        let w_second: [*const __m256i; R] = each!(|r: R| w_first[r].add(4));
        let x_first: [*const __m256i; C] = each!(|c: C| (&raw const (*x[c]).quants).cast());
        let x_second: [*const __m256i; C] = each!(|c: C| x_first[c].add(4));
        if U::HALVES {
            let mut sums = [each!(|c: C| start::<D, U>(&(*x[c]).offsets[0])); R];
            D::tile4::<U, R, C>(&mut sums, w_first, x_first);
            fold(acc, 0, &sums, w, x);
            let mut sums = [each!(|c: C| start::<D, U>(&(*x[c]).offsets[1])); R];
            D::tile4::<U, R, C>(&mut sums, w_second, x_second);
            fold(acc, 1, &sums, w, x);
        } else {
            let mut sums = [each!(|c: C| start::<D, U>(&(*x[c]).whole_offsets)); R];
            D::tile4::<U, R, C>(&mut sums, w_first, x_first);
            D::tile4::<U, R, C>(&mut sums, w_second, x_second);
            fold(acc, 0, &sums, w, x);
        }
        if U::MINS {
            for c in 0..C {
                for r in 0..R {
                    acc[r][c] = add_mins::<U>(acc[r][c], &(*w[r]).mins, &*x[c]);
                }
            }
        }
    }
}

/// Adds sums times the scales of half `half` of the blocks.
#[inline(always)]
unsafe fn fold<const R: usize, const C: usize>(
    acc: &mut [[__m256; C]; R],
    half: usize,
    sums: &[[__m256i; C]; R],
    w: [*const Weights; R],
    x: [*const Group; C],
) {
    // SAFETY: promised by the caller of `matmul`.
    unsafe {
        for c in 0..C {
            let x_scale = floats(&(*x[c]).scales);
            for r in 0..R {
                acc[r][c] = add_scaled(acc[r][c], (*w[r]).scales[half], x_scale, sums[r][c]);
            }
        }
    }
}
