//! Products of bytes: weights (as [`Quants`] says) times signed activations, exact sums of four in each lane.
//!
//! # Safety
//! The features that an instruction set's doc names are enabled where these are inlined.

use std::arch::x86_64::*;

use super::{Quants, Unpack, each};

/// How an instruction set multiplies bytes.
pub(super) trait Dot {
    /// Rows of weights and columns of activations that a matmul keeps in registers.
    const ROWS: usize;
    const COLS: usize;
    /// Signed weights are stored `1 << n` too large, where the instruction wants unsigned ones.
    const SIGNED_OFFSET: Option<u32>;

    /// Stores signed weights as the instruction wants them.
    unsafe fn signed(weights: __m256i) -> __m256i;

    /// `sum + w[0] x[0] + w[1] x[1] + w[2] x[2] + w[3] x[3]`, four bytes a lane.
    unsafe fn dot4<U: Unpack>(sum: __m256i, w: [__m256i; 4], x: [__m256i; 4]) -> __m256i;

    /// As [`dot4`](Self::dot4), for R rows and C columns that lie in memory.
    #[inline(always)]
    unsafe fn tile4<U: Unpack, const R: usize, const C: usize>(
        sums: &mut [[__m256i; C]; R],
        w: [*const __m256i; R],
        x: [*const __m256i; C],
    ) {
        // SAFETY: four vectors are readable behind every pointer.
        unsafe {
            for r in 0..R {
                let w = each!(|g: 4| w[r].add(g).read());
                for c in 0..C {
                    let x = each!(|g: 4| x[c].add(g).read());
                    sums[r][c] = Self::dot4::<U>(sums[r][c], w, x);
                }
            }
        }
    }
}

/// By how much the stored weights are too large: `1 << n`.
#[inline(always)]
pub(super) const fn offset<D: Dot, U: Unpack>() -> Option<u32> {
    match U::QUANTS {
        Quants::Unsigned { offset, .. } => offset,
        Quants::Signed => D::SIGNED_OFFSET,
    }
}

/// AVX2: 8-bit products are summed in pairs of 16 bits, which saturate, so that how many may be added up
/// depends on the size of the weights.
pub(super) struct Avx2;

impl Dot for Avx2 {
    const ROWS: usize = 2;
    const COLS: usize = 2;
    const SIGNED_OFFSET: Option<u32> = None;

    #[inline(always)]
    unsafe fn signed(weights: __m256i) -> __m256i {
        weights
    }

    #[inline(always)]
    unsafe fn dot4<U: Unpack>(sum: __m256i, w: [__m256i; 4], x: [__m256i; 4]) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut pairs = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                pairs[i] = match U::QUANTS {
                    Quants::Unsigned { .. } => _mm256_maddubs_epi16(w[i], x[i]),
                    // |w| <= 128 and |x| <= 127: 2 * 128 * 127 < 2^15. `sign` never meets x = -128.
                    Quants::Signed => {
                        _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x[i], w[i]))
                    }
                };
            }
            match U::QUANTS {
                // 8 products of at most 31 * 127 fit 16 bits.
                Quants::Unsigned { bits: 0..=5, .. } => {
                    let a = _mm256_add_epi16(pairs[0], pairs[1]);
                    let b = _mm256_add_epi16(pairs[2], pairs[3]);
                    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones))
                }
                // 4 products of at most 63 * 127 do.
                Quants::Unsigned { bits: 6, .. } => {
                    let a = _mm256_madd_epi16(_mm256_add_epi16(pairs[0], pairs[1]), ones);
                    let b = _mm256_madd_epi16(_mm256_add_epi16(pairs[2], pairs[3]), ones);
                    _mm256_add_epi32(sum, _mm256_add_epi32(a, b))
                }
                _ => {
                    let mut sum = sum;
                    for pairs in pairs {
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                    }
                    sum
                }
            }
        }
    }
}

/// AVX-512 VNNI on 256-bit vectors: four products and their sum in one instruction, and 32 registers.
pub(super) struct Vnni;

impl Dot for Vnni {
    const ROWS: usize = 4;
    const COLS: usize = 3;
    const SIGNED_OFFSET: Option<u32> = Some(7);

    #[inline(always)]
    unsafe fn signed(weights: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(weights, _mm256_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot4<U: Unpack>(sum: __m256i, w: [__m256i; 4], x: [__m256i; 4]) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let sum = _mm256_dpbusd_epi32(sum, w[0], x[0]);
            let sum = _mm256_dpbusd_epi32(sum, w[1], x[1]);
            let sum = _mm256_dpbusd_epi32(sum, w[2], x[2]);
            _mm256_dpbusd_epi32(sum, w[3], x[3])
        }
    }

    #[inline(always)]
    unsafe fn tile4<U: Unpack, const R: usize, const C: usize>(
        sums: &mut [[__m256i; C]; R],
        w: [*const __m256i; R],
        x: [*const __m256i; C],
    ) {
        // SAFETY: as above; four vectors are readable behind every pointer.
        unsafe {
            for g in 0..4 {
                let w: [__m256i; R] = each!(|r: R| w[r].add(g).read());
                for c in 0..C {
                    let x = x[c].add(g).read();
                    for r in 0..R {
                        sums[r][c] = _mm256_dpbusd_epi32(sums[r][c], w[r], x);
                    }
                }
            }
        }
    }
}
