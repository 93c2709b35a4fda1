//! Products of bytes on x86-64.

use std::arch::x86_64::*;

use super::super::vector::{OneRow, TwoRows};
use super::super::{Form, Quants, each};
use super::{Dot, SIGNED_OFFSET};

/// AVX2: 8-bit products are summed in pairs of 16 bits, which saturate, so that how many may be added up
/// depends on the size of the weights.
pub(in super::super) struct Avx2;

impl Avx2 {
    /// Products of two vectors, summed in pairs.
    #[inline(always)]
    pub(in super::super) unsafe fn pairs<F: Form>(w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            match F::QUANTS {
                // |w| <= 128 and |x| <= 127: 2 * 128 * 127 < 2^15. `sign` never meets x = -128.
                Quants::Signed => _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)),
                _ => _mm256_maddubs_epi16(w, x),
            }
        }
    }
}

impl Dot for Avx2 {
    type V = OneRow;
    const TOGETHER: usize = 4;
    const SIGNED_OFFSET: Option<u32> = None;

    #[inline(always)]
    unsafe fn signed(weights: __m256i) -> __m256i {
        weights
    }

    #[inline(always)]
    unsafe fn dot4<F: Form>(sum: __m256i, w: [__m256i; 4], x: [__m256i; 4]) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let pairs = each!(|i: 4| Self::pairs::<F>(w[i], x[i]));
            match F::QUANTS {
                // 8 products of at most 31 * 127 fit 16 bits.
                Quants::Five => {
                    let a = _mm256_add_epi16(pairs[0], pairs[1]);
                    let b = _mm256_add_epi16(pairs[2], pairs[3]);
                    _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones))
                }
                // 4 products of at most 63 * 127 do.
                Quants::Six => {
                    let a = _mm256_madd_epi16(_mm256_add_epi16(pairs[0], pairs[1]), ones);
                    let b = _mm256_madd_epi16(_mm256_add_epi16(pairs[2], pairs[3]), ones);
                    _mm256_add_epi32(sum, _mm256_add_epi32(a, b))
                }
                Quants::Signed => {
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

/// AVX-512 VNNI: four products and their sum in one instruction, two rows in a register, and 32 registers.
pub(in super::super) struct Vnni;

impl Dot for Vnni {
    type V = TwoRows;
    const TOGETHER: usize = 2;
    const SIGNED_OFFSET: Option<u32> = Some(SIGNED_OFFSET);

    #[inline(always)]
    unsafe fn signed(weights: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(weights, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot4<F: Form>(sum: __m512i, w: [__m512i; 4], x: [__m512i; 4]) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let sum = _mm512_dpbusd_epi32(sum, w[0], x[0]);
            let sum = _mm512_dpbusd_epi32(sum, w[1], x[1]);
            let sum = _mm512_dpbusd_epi32(sum, w[2], x[2]);
            _mm512_dpbusd_epi32(sum, w[3], x[3])
        }
    }
}
