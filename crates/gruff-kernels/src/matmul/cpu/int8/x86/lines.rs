//! Register transpositions and loads that several block types share.
//!
//! # Safety
//! As for [`Unpack::unpack`](super::Unpack::unpack): AVX2 and F16C are enabled where these are inlined, and pointers
//! are readable for what is loaded.

use std::arch::x86_64::*;

use super::super::LANE_BLOCKS;
use super::each;

#[inline(always)]
pub(super) unsafe fn load(from: *const u8) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// The transposition of four vectors of eight 4-byte columns: `[k]` holds column k of rows 0, 1, 2, 3 and then
/// column k + 4 of them.
#[inline(always)]
pub(super) unsafe fn transpose4(rows: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: see above.
    unsafe {
        let [a, b, c, d] = rows;
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// Puts the results of two [`transpose4`] (even blocks, odd blocks) into the order of
/// [`Unpacked`](super::Unpacked).
#[inline(always)]
pub(super) unsafe fn join(even: [__m256i; 4], odd: [__m256i; 4]) -> [__m256i; 8] {
    // SAFETY: see above.
    unsafe {
        chain(
            each!(|k: 4| _mm256_permute2x128_si256::<0x20>(even[k], odd[k])),
            each!(|k: 4| _mm256_permute2x128_si256::<0x31>(even[k], odd[k])),
        )
    }
}

/// Eight blocks of 32 bytes each, in their order, into that of [`Unpacked`](super::Unpacked).
#[inline(always)]
pub(super) unsafe fn transpose8(blocks: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = blocks;
    // SAFETY: see above.
    unsafe { join(transpose4([a, c, e, g]), transpose4([b, d, f, h])) }
}

/// 16 bytes of each of eight blocks, `stride` bytes apart: vector k holds bytes `4 k .. 4 k + 4` of all of them.
#[inline(always)]
pub(super) unsafe fn transpose_16_bytes(first: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: see above.
    unsafe {
        let pairs = each!(|n: 4| {
            let even = _mm_loadu_si128(first.add(2 * n * stride).cast());
            let odd = _mm_loadu_si128(first.add((2 * n + 1) * stride).cast());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(even), odd)
        });
        transpose4(pairs)
    }
}

/// The low and the high four bits of every byte.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: [__m256i; 4]) -> ([__m256i; 4], [__m256i; 4]) {
    // SAFETY: see above.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        (
            each!(|k: 4| _mm256_and_si256(bytes[k], mask)),
            each!(|k: 4| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes[k]), mask)),
        )
    }
}

#[inline(always)]
pub(super) fn chain(low: [__m256i; 4], high: [__m256i; 4]) -> [__m256i; 8] {
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}

/// A 4-byte word at `first` and every `stride` bytes behind it, one a lane.
#[inline(always)]
pub(super) unsafe fn words(first: *const u8, stride: usize) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let w: [i32; 8] = each!(|p: 8| first.add(LANE_BLOCKS[p] * stride).cast::<i32>().read_unaligned());
        _mm256_setr_epi32(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
    }
}

/// A half-precision number at `first` and every `stride` bytes behind it, one a lane.
#[inline(always)]
pub(super) unsafe fn halves(first: *const u8, stride: usize) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let h: [i16; 8] = each!(|p: 8| first.add(LANE_BLOCKS[p] * stride).cast::<i16>().read_unaligned());
        _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]))
    }
}

/// Two adjacent half-precision numbers at `first` and every `stride` bytes behind it.
#[inline(always)]
pub(super) unsafe fn pairs_of_halves(first: *const u8, stride: usize) -> (__m256, __m256) {
    // SAFETY: see above.
    unsafe {
        let words = words(first, stride);
        let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
        let high = _mm256_srli_epi32::<16>(words);
        let low = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
        let high = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
        (_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
    }
}

/// The half-precision number at `from`, in every lane.
#[inline(always)]
pub(super) unsafe fn half(from: *const u8) -> __m256 {
    // SAFETY: see above.
    unsafe {
        let bits = from.cast::<u16>().read_unaligned();
        _mm256_cvtph_ps(_mm_set1_epi16(bits as i16))
    }
}
