//! Unpacked weights turned from lanes that are blocks to lanes that are rows.

use super::super::BLOCKS;
use super::each;

#[cfg(target_arch = "aarch64")]
use neon::{store, transpose};
#[cfg(target_arch = "x86_64")]
use x86::{store, transpose};

/// Rows that are turned together: as many as a group has blocks.
pub(super) const OCTET: usize = 8;

/// 256 unpacked weights of a row, in memory.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) quants: [[u8; 32]; 8],
    pub(super) scales: [[f32; 8]; 2],
    pub(super) mins: [[f32; 8]; 2],
}

/// A block of 32 columns of a tile of R rows: four values of every row, eight times; then scales of the block (or of its
/// first and last half) of every row; then minima.
#[repr(C, align(64))]
pub(super) struct TileBlock<const R: usize> {
    pub(super) quants: [[[u8; 4]; R]; 8],
    pub(super) scales: [[f32; R]; 2],
    pub(super) mins: [[f32; R]; 2],
}

/// Writes a group of eight rows, the `first` ones of a tile, into the blocks of its eight lanes.
///
/// # Safety
/// AVX2 on x86-64; `blocks` point to blocks that nobody else uses.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
pub(super) unsafe fn octet<const R: usize>(
    rows: &[Weights; OCTET],
    [halves, mins]: [bool; 2],
    blocks: [*mut TileBlock<R>; BLOCKS],
    first: usize,
) {
    assert!(first + OCTET <= R);
    // SAFETY: inside the blocks, as asserted.
    unsafe {
        for g in 0..8 {
            let lanes = transpose(each!(|r: 8| rows[r].quants[g].as_ptr().cast()));
            for p in 0..8 {
                let to = &raw mut (*blocks[p]).quants[g][first];
                store(to.cast(), lanes[p]);
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

/// Writes eight lanes of eight rows to where each lane goes.
///
/// # Safety
/// AVX2 is enabled on x86-64 where this is inlined; eight readable, eight writable numbers each.
#[inline(always)]
pub(super) unsafe fn numbers(rows: [*const f32; OCTET], to: [*mut f32; 8]) {
    // SAFETY: promised by the caller.
    unsafe {
        let lanes = transpose(rows);
        for p in 0..8 {
            store(to[p], lanes[p]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::each;

    /// Column i of eight vectors of eight lanes in memory.
    #[inline(always)]
    pub(super) unsafe fn transpose(rows: [*const f32; 8]) -> [__m256; 8] {
        // SAFETY: AVX2 is enabled where this is inlined; eight readable lanes each.
        unsafe {
            let v = each!(|r: 8| _mm256_loadu_ps(rows[r]));
            let low = each!(|i: 4| _mm256_castps_pd(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1])));
            let high = each!(|i: 4| _mm256_castps_pd(_mm256_unpackhi_ps(v[2 * i], v[2 * i + 1])));
            // Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7 of the first four vectors, then of the last four.
            let fours = each!(|i: 8| {
                let (pair, column) = (i / 4 * 2, i % 4);
                let (from, next) =
                    if column < 2 { (low[pair], low[pair + 1]) } else { (high[pair], high[pair + 1]) };
                _mm256_castpd_ps(if column % 2 == 0 {
                    _mm256_unpacklo_pd(from, next)
                } else {
                    _mm256_unpackhi_pd(from, next)
                })
            });
            each!(|i: 8| {
                if i < 4 {
                    _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4])
                } else {
                    _mm256_permute2f128_ps::<0x31>(fours[i - 4], fours[i])
                }
            })
        }
    }

    /// # Safety
    /// AVX2 is enabled where this is inlined; eight writable lanes.
    #[inline(always)]
    pub(super) unsafe fn store(to: *mut f32, v: __m256) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_ps(to, v) }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::each;

    /// Columns i of four vectors of four lanes in memory.
    ///
    /// # Safety
    /// Four readable lanes each.
    #[inline(always)]
    unsafe fn transpose4(rows: [*const f32; 4]) -> [float32x4_t; 4] {
        // SAFETY: promised by the caller.
        unsafe {
            let v = each!(|r: 4| vld1q_f32(rows[r]));
            // Lanes 0 and 2 of pairs of rows, lanes 1 and 3 of them.
            let even = each!(|i: 2| vreinterpretq_f64_f32(vtrn1q_f32(v[2 * i], v[2 * i + 1])));
            let odd = each!(|i: 2| vreinterpretq_f64_f32(vtrn2q_f32(v[2 * i], v[2 * i + 1])));
            [
                vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1])),
                vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1])),
                vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1])),
                vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1])),
            ]
        }
    }

    /// Column i of eight vectors of eight lanes in memory.
    ///
    /// # Safety
    /// Eight readable lanes each.
    #[inline(always)]
    pub(super) unsafe fn transpose(rows: [*const f32; 8]) -> [[float32x4_t; 2]; 8] {
        // SAFETY: promised by the caller.
        unsafe {
            let quarters: [[[float32x4_t; 4]; 2]; 2] =
                each!(|right: 2| each!(|low: 2| transpose4(each!(|r: 4| rows[4 * low + r].add(4 * right)))));
            each!(|i: 8| [quarters[i / 4][0][i % 4], quarters[i / 4][1][i % 4]])
        }
    }

    /// # Safety
    /// Eight writable lanes.
    #[inline(always)]
    pub(super) unsafe fn store(to: *mut f32, v: [float32x4_t; 2]) {
        // SAFETY: promised by the caller.
        unsafe {
            vst1q_f32(to, v[0]);
            vst1q_f32(to.add(4), v[1]);
        }
    }
}
