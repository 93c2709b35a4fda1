//! K-quants: one super-block of 256 is eight blocks of 32, whose scales are small integers times one number.

use std::arch::x86_64::*;
use std::mem::offset_of;

use gruff_blocks::k_quants as blocks;

use super::lines::{half, join, load, nibbles, transpose4, transpose8};
use super::{CentredHalves, HalvesWithMins, SixBitHalves, Unpack, Unpacked, WithMins, each};

/// Eight bytes to eight lanes.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn widen(bytes: __m128i) -> __m256 {
    // SAFETY: see above.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

/// As [`widen`], of signed bytes.
#[inline(always)]
unsafe fn widen_signed(bytes: __m128i) -> __m256 {
    // SAFETY: see above.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)) }
}

#[inline(always)]
unsafe fn negate(v: __m256) -> __m256 {
    // SAFETY: see above.
    unsafe { _mm256_xor_ps(v, _mm256_set1_ps(-0.0)) }
}

/// Scales and negated minima of a Q4_K or Q5_K super-block, which begins with d, dmin and the twelve bytes that
/// [`blocks::scale_min_k4`] describes.
#[inline(always)]
unsafe fn scales_and_mins(packed: *const u8) -> (__m256, __m256) {
    // SAFETY: see above.
    unsafe {
        let head = _mm_loadu_si128(packed.cast());
        // Output bytes 0..8 are scales of blocks 0 2 4 6 1 3 5 7, 8..16 their minima. Input bytes are those of
        // the head: 4 more than the index into the scales.
        let low =
            _mm_shuffle_epi8(head, _mm_setr_epi8(4, 6, 12, 14, 5, 7, 13, 15, 8, 10, 12, 14, 9, 11, 13, 15));
        let high =
            _mm_shuffle_epi8(head, _mm_setr_epi8(-1, -1, 4, 6, -1, -1, 5, 7, -1, -1, 8, 10, -1, -1, 9, 11));
        let first = _mm_setr_epi8(63, 63, 15, 15, 63, 63, 15, 15, 63, 63, 0, 0, 63, 63, 0, 0);
        let upper = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 0, 0, 15, 15);
        let low = _mm_or_si128(_mm_and_si128(low, first), _mm_and_si128(_mm_srli_epi16::<4>(low), upper));
        let high = _mm_and_si128(_mm_srli_epi16::<2>(high), _mm_set1_epi8(0x30));
        let all = _mm_or_si128(low, high);
        let (d, dmin) = (half(packed), half(packed.add(2)));
        let scales = _mm256_mul_ps(d, widen(all));
        let mins = _mm256_mul_ps(dmin, widen(_mm_srli_si128::<8>(all)));
        (scales, negate(mins))
    }
}

pub(super) struct Q4K;

impl Unpack for Q4K {
    type Form = WithMins;
    const BYTES: usize = size_of::<blocks::Q4_K>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let qs = packed.add(offset_of!(blocks::Q4_K, qs));
            let packed_rows = [load(qs), load(qs.add(32)), load(qs.add(64)), load(qs.add(96))];
            let (even, odd) = nibbles(transpose4(packed_rows));
            let (scale, min) = scales_and_mins(packed);
            Unpacked { quants: join(even, odd), scales: [scale; 2], mins: [min; 2] }
        }
    }
}

pub(super) struct Q5K;

impl Unpack for Q5K {
    type Form = WithMins;
    const BYTES: usize = size_of::<blocks::Q5_K>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let qs = packed.add(offset_of!(blocks::Q5_K, qs));
            let qh = load(packed.add(offset_of!(blocks::Q5_K, qh)));
            let (low, high) = nibbles([load(qs), load(qs.add(32)), load(qs.add(64)), load(qs.add(96))]);
            let sixteen = _mm256_set1_epi8(16);
            // Bit b of the high bits is the fifth bit of block b.
            let fifth: [__m256i; 8] = [
                _mm256_slli_epi16::<4>(qh),
                _mm256_slli_epi16::<3>(qh),
                _mm256_slli_epi16::<2>(qh),
                _mm256_slli_epi16::<1>(qh),
                qh,
                _mm256_srli_epi16::<1>(qh),
                _mm256_srli_epi16::<2>(qh),
                _mm256_srli_epi16::<3>(qh),
            ];
            let quants = each!(|b: 8| {
                let four = if b % 2 == 0 { low[b / 2] } else { high[b / 2] };
                _mm256_or_si256(four, _mm256_and_si256(fifth[b], sixteen))
            });
            let (scale, min) = scales_and_mins(packed);
            Unpacked { quants: transpose8(quants), scales: [scale; 2], mins: [min; 2] }
        }
    }
}

/// The two-bit fields of 64 bytes: byte `32 h + j` holds value j of blocks `4 h`, `4 h + 1`, .., low bits first.
#[inline(always)]
unsafe fn two_bits(qs: *const u8) -> [__m256i; 8] {
    // SAFETY: see above.
    unsafe {
        let mask = _mm256_set1_epi8(3);
        let (a, b) = (load(qs), load(qs.add(32)));
        let shifted = [
            a,
            _mm256_srli_epi16::<2>(a),
            _mm256_srli_epi16::<4>(a),
            _mm256_srli_epi16::<6>(a),
            b,
            _mm256_srli_epi16::<2>(b),
            _mm256_srli_epi16::<4>(b),
            _mm256_srli_epi16::<6>(b),
        ];
        each!(|b: 8| _mm256_and_si256(shifted[b], mask))
    }
}

/// Sixteen bytes, one for each half block, in lane order: the first halves' eight, then the second halves'.
#[inline(always)]
unsafe fn by_halves(bytes: __m128i) -> __m128i {
    // SAFETY: see above.
    unsafe { _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15)) }
}

pub(super) struct Q6K;

impl Unpack for Q6K {
    type Form = SixBitHalves;
    const BYTES: usize = size_of::<blocks::Q6_K>();
    const OFFSET: u32 = 5;

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let ql = packed.add(offset_of!(blocks::Q6_K, ql));
            let qh = packed.add(offset_of!(blocks::Q6_K, qh));
            let (low, high) = nibbles([load(ql), load(ql.add(32)), load(ql.add(64)), load(ql.add(96))]);
            let (a, b) = (load(qh), load(qh.add(32)));
            let mask = _mm256_set1_epi8(0x30);
            let four = [low[0], low[1], high[0], high[1], low[2], low[3], high[2], high[3]];
            let two = [
                _mm256_slli_epi16::<4>(a),
                _mm256_slli_epi16::<2>(a),
                a,
                _mm256_srli_epi16::<2>(a),
                _mm256_slli_epi16::<4>(b),
                _mm256_slli_epi16::<2>(b),
                b,
                _mm256_srli_epi16::<2>(b),
            ];
            let quants = each!(|b: 8| _mm256_or_si256(four[b], _mm256_and_si256(two[b], mask)));
            let d = half(packed.add(offset_of!(blocks::Q6_K, d)));
            let scales = by_halves(_mm_loadu_si128(packed.add(offset_of!(blocks::Q6_K, scales)).cast()));
            let first = _mm256_mul_ps(d, widen_signed(scales));
            let second = _mm256_mul_ps(d, widen_signed(_mm_srli_si128::<8>(scales)));
            Unpacked { quants: transpose8(quants), scales: [first, second], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}

pub(super) struct Q2K;

impl Unpack for Q2K {
    type Form = HalvesWithMins;
    const BYTES: usize = size_of::<blocks::Q2_K>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let quants = two_bits(packed.add(offset_of!(blocks::Q2_K, qs)));
            let bytes = by_halves(_mm_loadu_si128(packed.add(offset_of!(blocks::Q2_K, scales)).cast()));
            let mask = _mm_set1_epi8(15);
            let (scales, mins) =
                (_mm_and_si128(bytes, mask), _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
            let d = half(packed.add(offset_of!(blocks::Q2_K, d)));
            let dmin = negate(half(packed.add(offset_of!(blocks::Q2_K, dmin))));
            let scales =
                [_mm256_mul_ps(d, widen(scales)), _mm256_mul_ps(d, widen(_mm_srli_si128::<8>(scales)))];
            let mins =
                [_mm256_mul_ps(dmin, widen(mins)), _mm256_mul_ps(dmin, widen(_mm_srli_si128::<8>(mins)))];
            Unpacked { quants: transpose8(quants), scales, mins }
        }
    }
}

pub(super) struct Q3K;

impl Unpack for Q3K {
    type Form = CentredHalves;
    const BYTES: usize = size_of::<blocks::Q3_K>();
    const OFFSET: u32 = 2;

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let two = two_bits(packed.add(offset_of!(blocks::Q3_K, qs)));
            let mask = load(packed.add(offset_of!(blocks::Q3_K, hmask)));
            let four = _mm256_set1_epi8(4);
            // Bit b of the mask is the third bit of block b.
            let third: [__m256i; 8] = [
                _mm256_slli_epi16::<2>(mask),
                _mm256_slli_epi16::<1>(mask),
                mask,
                _mm256_srli_epi16::<1>(mask),
                _mm256_srli_epi16::<2>(mask),
                _mm256_srli_epi16::<3>(mask),
                _mm256_srli_epi16::<4>(mask),
                _mm256_srli_epi16::<5>(mask),
            ];
            let quants = each!(|b: 8| _mm256_or_si256(two[b], _mm256_and_si256(third[b], four)));
            let (low, high) = (
                packed.add(offset_of!(blocks::Q3_K, scales)).cast::<u64>().read_unaligned(),
                packed.add(offset_of!(blocks::Q3_K, scales) + 8).cast::<u32>().read_unaligned(),
            );
            // Low four bits of scales 0..8 and 8..16, high two of 0..4, 4..8, 8..12, 12..16.
            let four_bits = _mm_set_epi64x(
                (low >> 4 & 0x0f0f_0f0f_0f0f_0f0f) as i64,
                (low & 0x0f0f_0f0f_0f0f_0f0f) as i64,
            );
            let spread = _mm_srlv_epi32(_mm_set1_epi32(high as i32), _mm_setr_epi32(0, 2, 4, 6));
            let two_bits = _mm_slli_epi16::<4>(_mm_and_si128(spread, _mm_set1_epi8(3)));
            let scales = _mm_sub_epi8(_mm_or_si128(four_bits, two_bits), _mm_set1_epi8(32));
            let scales = by_halves(scales);
            let d = half(packed.add(offset_of!(blocks::Q3_K, d)));
            let first = _mm256_mul_ps(d, widen_signed(scales));
            let second = _mm256_mul_ps(d, widen_signed(_mm_srli_si128::<8>(scales)));
            Unpacked { quants: transpose8(quants), scales: [first, second], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}
