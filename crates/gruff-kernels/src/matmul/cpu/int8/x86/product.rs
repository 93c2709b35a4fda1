//! Matvec and matmul of any block type with any instruction set.

use std::arch::x86_64::*;

use gruff_blocks::BlockType;

use super::super::super::kernel::{Kernel, Panel};
use super::super::{BLOCKS, GROUP, Group, LANE_BLOCKS};
use super::dot::{Avx2, Dot, Vnni, offset};
use super::tile::{self, Tiled};
use super::{Form, Quants, Unpack, Unpacked, each};
use super::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::Isa;
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

/// Columns up to which weights are unpacked in registers, for every row, instead of in tiles, whose many rows memory
/// delivers slower.
const FEW: usize = 8;

/// The kernels of a block type.
pub(in super::super) fn kernel(isa: Isa, block_type: BlockType) -> Option<Kernel> {
    macro_rules! by_type {
        ($name:literal, $compute:ident; $($variant:ident => $unpack:ty,)*) => {
            match block_type {
                $(BlockType::$variant => Some(Kernel { name: $name, compute: $compute::<$unpack>, rereads: false }),)*
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
        // Weights in registers are bound by memory; tiles are multiplied as this instruction set does.
        Isa::AvxVnni => by_type!("avx-vnni int8", avx2),
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
unsafe fn compute<D: Tiled, U: Unpack>(
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
            _ if columns.len() <= FEW => few::<D, U>(panel, columns, out),
            _ => tile::product::<D, U>(panel, columns, out, scratch),
        }
    }
}

/// More bytes than a group of any type has.
const GROUP_BYTES: usize = 512;

/// How groups of a panel's rows are read.
pub(super) struct Groups<'a> {
    panel: &'a Panel,
    /// All ones in the lanes whose blocks a row's last group has.
    last: __m256,
    /// Room for the last group of the last row, behind which nothing may be read.
    rest: [u8; GROUP_BYTES],
}

impl<'a> Groups<'a> {
    /// # Safety
    /// AVX2.
    #[inline(always)]
    pub(super) unsafe fn of(panel: &'a Panel) -> Self {
        let blocks = (panel.cols.div_ceil(Q8_BLOCK) - 1) % BLOCKS;
        // SAFETY: promised by the caller.
        let last = unsafe {
            let lanes = each!(|p: 8| LANE_BLOCKS[p] as i32);
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(
                _mm256_set1_epi32(blocks as i32 + 1),
                vector(&raw const lanes),
            ))
        };
        Self { panel, last, rest: [0; GROUP_BYTES] }
    }

    /// A row's first byte.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> *const u8 {
        self.panel.first.wrapping_add(row * self.panel.row_bytes)
    }

    /// A group of a row. What the last group has beyond the row has scale 0.
    ///
    /// # Safety
    /// AVX2, FMA and F16C; there is such a group in such a row, and the panel is readable.
    #[inline(always)]
    pub(super) unsafe fn unpack<U: Unpack>(&mut self, row: usize, group: usize) -> Unpacked {
        let start = group * U::BYTES;
        let mut packed = self.row(row).wrapping_add(start);
        let ends = start + U::BYTES > self.panel.row_bytes;
        // SAFETY: promised by the caller; where a group reaches beyond its row there are others behind it, or it is
        // copied up to the row's end.
        unsafe {
            if ends && start + U::BYTES > (self.panel.rows - row) * self.panel.row_bytes {
                let bytes = self.panel.row_bytes - start;
                std::ptr::copy_nonoverlapping(packed, self.rest.as_mut_ptr(), bytes);
                packed = self.rest.as_ptr();
            }
            let mut w = U::unpack(packed);
            if ends {
                for half in 0..2 {
                    w.scales[half] = _mm256_and_ps(w.scales[half], self.last);
                    w.mins[half] = _mm256_and_ps(w.mins[half], self.last);
                }
            }
            w
        }
    }
}

/// The quants as `D` multiplies them.
#[inline(always)]
pub(super) unsafe fn stored<D: Dot, U: Unpack>(quants: [__m256i; 8]) -> [__m256i; 8] {
    match U::Form::QUANTS {
        // SAFETY: promised by the caller.
        Quants::Signed => unsafe { each!(|g: 8| D::signed(quants[g])) },
        _ => quants,
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
        D::dot4::<U::Form>(sum, w, x)
    }
}

/// One column: weights go from the packed row to the product in registers.
#[inline(always)]
unsafe fn matvec<D: Dot, U: Unpack>(panel: &Panel, column: *const Group, out: &mut [f32]) {
    let groups = panel.cols.div_ceil(GROUP);
    // SAFETY: rows and columns are readable, and `out` has a value a row, as promised by the caller.
    unsafe {
        let mut weights = Groups::of(panel);
        let loud = has_loud(column, groups);
        for row in 0..panel.rows {
            let mut acc = _mm256_setzero_ps();
            let mut second = _mm256_setzero_ps();
            for group in 0..groups {
                let w = weights.unpack::<U>(row, group);
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
    // SAFETY: promised by the caller.
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
        let acc = if U::Form::HALVES {
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
        if !U::Form::MINS {
            return acc;
        }
        if !U::Form::HALVES {
            return _mm256_fmadd_ps(mins[0], floats(&x.whole_sums), acc);
        }
        let acc = _mm256_fmadd_ps(mins[0], floats(&x.sums[0]), acc);
        _mm256_fmadd_ps(mins[1], floats(&x.sums[1]), acc)
    }
}

/// Some columns: as [`matvec`], each group of weights in registers meets all of them.
#[inline(always)]
unsafe fn few<D: Dot, U: Unpack>(panel: &Panel, columns: &[*const u8], out: &mut [f32]) {
    let groups = panel.cols.div_ceil(GROUP);
    // SAFETY: rows and columns are readable, there are at most `FEW`, and `out` has a value for each row and column, as
    // promised by the caller.
    unsafe {
        let mut weights = Groups::of(panel);
        let mut loud = [false; FEW];
        for (loud, column) in loud.iter_mut().zip(columns) {
            *loud = has_loud(column.cast(), groups);
        }
        for row in 0..panel.rows {
            let mut sums = [_mm256_setzero_ps(); FEW];
            let mut seconds = [_mm256_setzero_ps(); FEW];
            for group in 0..groups {
                let w = weights.unpack::<U>(row, group);
                let quants = stored::<D, U>(w.quants);
                for (c, column) in columns.iter().enumerate() {
                    let at = column.cast::<Group>().add(group);
                    let sum = sums.get_unchecked_mut(c);
                    *sum = add_group::<D, U>(*sum, &w, &quants, &*at);
                    if (*at).is_loud() {
                        let second = seconds.get_unchecked_mut(c);
                        *second = add_group::<D, U>(*second, &w, &quants, &*Group::second(at));
                    }
                }
            }
            for c in 0..columns.len() {
                let sum = lanes(sums[c]);
                *out.get_unchecked_mut(c * panel.rows + row) =
                    if loud[c] { sum + lanes(seconds[c]) } else { sum };
            }
        }
    }
}
