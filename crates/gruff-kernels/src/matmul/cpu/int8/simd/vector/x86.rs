//! Vectors of x86-64: a row in a register of AVX2, or two rows in one of AVX-512.

use std::arch::x86_64::*;

use super::super::super::LANE_BLOCKS;
use super::super::each;
use super::{Packed, Vector};

/// A row, with AVX2, FMA and F16C.
pub(in super::super) struct OneRow;

/// Two rows, with AVX-512 F, BW and VL besides.
pub(in super::super) struct TwoRows;

/// The word of each lane.
#[inline(always)]
unsafe fn words_of(row: *const u8, stride: usize) -> __m256i {
    // SAFETY: promised by the callers.
    unsafe {
        let w: [i32; 8] = each!(|p: 8| row.add(LANE_BLOCKS[p] * stride).cast::<i32>().read_unaligned());
        _mm256_setr_epi32(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
    }
}

/// The 16 bits of each lane.
#[inline(always)]
unsafe fn halves_of(row: *const u8, stride: usize) -> __m128i {
    // SAFETY: promised by the callers.
    unsafe {
        let h: [i16; 8] = each!(|p: 8| row.add(LANE_BLOCKS[p] * stride).cast::<i16>().read_unaligned());
        _mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7])
    }
}

#[inline(always)]
unsafe fn short_of(values: [i8; 16]) -> __m128i {
    // SAFETY: promised by the callers.
    unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
}

#[inline(always)]
unsafe fn words_in_order(values: [i32; 8]) -> __m256i {
    // SAFETY: promised by the callers.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

#[inline(always)]
unsafe fn sum_of(v: __m256) -> f32 {
    // SAFETY: promised by the callers.
    unsafe {
        let halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
        _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
    }
}

#[inline(always)]
unsafe fn both(low: __m256i, high: __m256i) -> __m512i {
    // SAFETY: promised by the callers.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
}

#[inline(always)]
unsafe fn both_short(low: __m128i, high: __m128i) -> __m256i {
    // SAFETY: promised by the callers.
    unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high) }
}

/// Writes functions of [`Vector`] that are one expression.
macro_rules! ops {
    ($($name:ident $(<$n:ident>)? ($($arg:ident: $ty:ident),*) -> $ret:ident = $value:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $n: u32>)? ($($arg: ops!(@$ty)),*) -> ops!(@$ret) {
                // SAFETY: promised by the caller.
                unsafe { $value }
            }
        )*
    };
    (@Bits) => { Self::Bits };
    (@Floats) => { Self::Floats };
    (@Short) => { Self::Short };
    (@Packed) => { Packed };
    (@usize) => { usize };
    (@u32) => { u32 };
    (@i32) => { i32 };
    (@i8) => { i8 };
    (@Bytes) => { *const u8 };
    (@Eight) => { &[f32; 8] };
    (@Rows) => { &[[f32; 8]; 2] };
    (@Words) => { [i32; 8] };
    (@Table) => { &[i8; 16] };
    (@Sixteen) => { [i8; 16] };
    (@Sums) => { [f32; 2] };
    (@TwoFloats) => { [Self::Floats; 2] };
}

impl Vector for OneRow {
    const ROWS: usize = 1;
    type Bits = __m256i;
    type Floats = __m256;
    type Short = __m128i;

    ops! {
        load(from: Packed) -> Bits = _mm256_loadu_si256(from.first.cast());
        load_halves(low: Packed, high: Packed) -> Bits = both_short(
            _mm_loadu_si128(low.first.cast()),
            _mm_loadu_si128(high.first.cast()),
        );
        gather_words(from: Packed, stride: usize) -> Bits = words_of(from.first, stride);
        gather_f16(from: Packed, stride: usize) -> Floats = _mm256_cvtph_ps(halves_of(from.first, stride));
        f16(from: Packed) -> Floats = _mm256_cvtph_ps(_mm_set1_epi16(from.first.cast::<i16>().read_unaligned()));
        word(from: Packed) -> Bits = _mm256_set1_epi32(from.first.cast::<i32>().read_unaligned());
        load_short(from: Packed) -> Short = _mm_loadu_si128(from.first.cast());

        splat8(value: i8) -> Bits = _mm256_set1_epi8(value);
        splat32(value: i32) -> Bits = _mm256_set1_epi32(value);
        words(values: Words) -> Bits = words_in_order(values);
        table(values: Table) -> Bits = _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()));
        same_bits(from: Bytes) -> Bits = _mm256_loadu_si256(from.cast());
        same_floats(from: Eight) -> Floats = _mm256_loadu_ps(from.as_ptr());
        zero() -> Floats = _mm256_setzero_ps();
        short(values: Sixteen) -> Short = short_of(values);
        floats(rows: Rows) -> Floats = _mm256_loadu_ps(rows[0].as_ptr());

        and(a: Bits, b: Bits) -> Bits = _mm256_and_si256(a, b);
        or(a: Bits, b: Bits) -> Bits = _mm256_or_si256(a, b);
        right16<N>(v: Bits) -> Bits = _mm256_srl_epi16(v, _mm_cvtsi32_si128(N as i32));
        left16<N>(v: Bits) -> Bits = _mm256_sll_epi16(v, _mm_cvtsi32_si128(N as i32));
        right32_by(v: Bits, by: Bits) -> Bits = _mm256_srlv_epi32(v, by);
        left32(v: Bits, by: u32) -> Bits = _mm256_sllv_epi32(v, _mm256_set1_epi32(by as i32));
        add32(a: Bits, b: Bits) -> Bits = _mm256_add_epi32(a, b);
        sub32(a: Bits, b: Bits) -> Bits = _mm256_sub_epi32(a, b);
        sub8(a: Bits, b: Bits) -> Bits = _mm256_sub_epi8(a, b);
        equal8(a: Bits, b: Bits) -> Bits = _mm256_cmpeq_epi8(a, b);
        shuffle(v: Bits, from: Bits) -> Bits = _mm256_shuffle_epi8(v, from);
        zip32_low(a: Bits, b: Bits) -> Bits = _mm256_unpacklo_epi32(a, b);
        zip32_high(a: Bits, b: Bits) -> Bits = _mm256_unpackhi_epi32(a, b);
        zip64_low(a: Bits, b: Bits) -> Bits = _mm256_unpacklo_epi64(a, b);
        zip64_high(a: Bits, b: Bits) -> Bits = _mm256_unpackhi_epi64(a, b);
        join_low(a: Bits, b: Bits) -> Bits = _mm256_permute2x128_si256::<0x20>(a, b);
        join_high(a: Bits, b: Bits) -> Bits = _mm256_permute2x128_si256::<0x31>(a, b);

        to_floats(v: Bits) -> Floats = _mm256_cvtepi32_ps(v);
        low_f16(v: Bits) -> Floats = {
            let low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
            _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low)))
        };
        high_f16(v: Bits) -> Floats = {
            let high = _mm256_srli_epi32::<16>(v);
            _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high)))
        };
        mul(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
        mul_add(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fmadd_ps(a, b, c);
        negate(v: Floats) -> Floats = _mm256_xor_ps(v, _mm256_set1_ps(-0.0));
        keep(v: Floats, mask: Bits) -> Floats = _mm256_and_ps(v, _mm256_castsi256_ps(mask));
        sums(v: Floats) -> Sums = [sum_of(v), 0.0];

        short_and(a: Short, b: Short) -> Short = _mm_and_si128(a, b);
        short_or(a: Short, b: Short) -> Short = _mm_or_si128(a, b);
        short_sub8(a: Short, b: Short) -> Short = _mm_sub_epi8(a, b);
        short_right16<N>(v: Short) -> Short = _mm_srl_epi16(v, _mm_cvtsi32_si128(N as i32));
        short_left16<N>(v: Short) -> Short = _mm_sll_epi16(v, _mm_cvtsi32_si128(N as i32));
        short_right32_by(v: Short, by: Short) -> Short = _mm_srlv_epi32(v, by);
        short_shuffle(v: Short, from: Short) -> Short = _mm_shuffle_epi8(v, from);
        widen(v: Short) -> TwoFloats = [
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(v))),
        ];
        widen_signed(v: Short) -> TwoFloats = [
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v))),
        ];
    }

    #[inline(always)]
    unsafe fn store_bits(v: __m256i, _: usize, to: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_si256(to.cast(), v) }
    }

    #[inline(always)]
    unsafe fn store_floats(v: __m256, _: usize, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_ps(to, v) }
    }
}

/// Bytes 0..8 of both rows, then 8..16 of both.
#[inline(always)]
unsafe fn eights(v: __m256i) -> [__m128i; 2] {
    // SAFETY: promised by the callers.
    unsafe {
        let eights = _mm256_permute4x64_epi64::<0b11_01_10_00>(v);
        [_mm256_castsi256_si128(eights), _mm256_extracti128_si256::<1>(eights)]
    }
}

#[inline(always)]
unsafe fn row_of(v: __m512i, row: usize) -> __m256i {
    // SAFETY: promised by the callers.
    unsafe { if row == 0 { _mm512_castsi512_si256(v) } else { _mm512_extracti64x4_epi64::<1>(v) } }
}

/// Words of 16 bits from eight blocks `STRIDE` bytes apart of each of two rows, `WORDS` of them from a block, in the order
/// of [`LANE_BLOCKS`], `FIRST` words behind its beginning. A few loads hold all of them, and as many permutations pick them:
/// loads of single words would be sixteen, each with an insertion. A load holds the first `SPAN` bytes of blocks, so that two
/// that pick from the same bytes share it.
struct Picked<const STRIDE: usize, const FIRST: usize, const WORDS: usize, const SPAN: usize>;

impl<const STRIDE: usize, const FIRST: usize, const WORDS: usize, const SPAN: usize>
    Picked<STRIDE, FIRST, WORDS, SPAN>
{
    /// Bytes of a register.
    const WIDTH: usize = 64;
    /// Blocks whose words a load holds.
    const BLOCKS: usize = (Self::WIDTH - SPAN) / STRIDE + 1;
    /// Loads of a row.
    const LOADS: usize = 8_usize.div_ceil(Self::BLOCKS);
    /// For each load of both rows but the first: where words come from, what is there (its number) or the load (32 and the
    /// number in it). The first two loads are met by the first permutation.
    const FROM: [[i16; 32]; 8] = {
        assert!(STRIDE.is_multiple_of(2) && 2 * Self::LOADS <= 8 && 2 * (FIRST + WORDS) <= SPAN);
        let mut from = [[0; 32]; 8];
        let mut load = 1;
        while load < 2 * Self::LOADS {
            let mut to = 0;
            while to < 16 * WORDS {
                let (row, lane) = (to / WORDS / 8, to / WORDS % 8);
                let block = LANE_BLOCKS[lane];
                let holder = row * Self::LOADS + block / Self::BLOCKS;
                let word = (block * STRIDE - Self::begin(holder)) / 2 + FIRST + to % WORDS;
                from[load][to] = if holder == load {
                    32 + word as i16
                } else if load == 1 && holder == 0 {
                    word as i16
                } else {
                    to as i16
                };
                to += 1;
            }
            load += 1;
        }
        from
    };

    /// Where a load of both rows begins in its row: the last ends with the last block's span, so that none reads behind.
    const fn begin(load: usize) -> usize {
        let (begin, last) = (load % Self::LOADS * Self::BLOCKS * STRIDE, 7 * STRIDE + SPAN - Self::WIDTH);
        if begin < last { begin } else { last }
    }

    /// # Safety
    /// AVX-512 BW is enabled where this is inlined; the words, and what lies between them, are readable.
    #[inline(always)]
    unsafe fn of(from: Packed) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe {
            let mut words = _mm512_loadu_si512(from.row(0).cast());
            let mut load = 1;
            while load < 2 * Self::LOADS {
                let next = _mm512_loadu_si512(from.at(Self::begin(load)).row(load / Self::LOADS).cast());
                let picked = _mm512_loadu_si512(Self::FROM[load].as_ptr().cast());
                words = _mm512_permutex2var_epi16(words, picked, next);
                load += 1;
            }
            words
        }
    }
}

impl Vector for TwoRows {
    const ROWS: usize = 2;
    type Bits = __m512i;
    type Floats = __m512;
    type Short = __m256i;

    ops! {
        load(from: Packed) -> Bits = both(
            _mm256_loadu_si256(from.row(0).cast()),
            _mm256_loadu_si256(from.row(1).cast()),
        );
        load_halves(low: Packed, high: Packed) -> Bits = both(
            both_short(_mm_loadu_si128(low.row(0).cast()), _mm_loadu_si128(high.row(0).cast())),
            both_short(_mm_loadu_si128(low.row(1).cast()), _mm_loadu_si128(high.row(1).cast())),
        );
        gather_words(from: Packed, stride: usize) -> Bits = match stride {
            20 => Picked::<20, 0, 2, 4>::of(from),
            22 => Picked::<22, 0, 2, 4>::of(from),
            24 => Picked::<24, 0, 2, 4>::of(from),
            _ => both(words_of(from.row(0), stride), words_of(from.row(1), stride)),
        };
        gather_f16(from: Packed, stride: usize) -> Floats = _mm512_cvtph_ps(match stride {
            18 => row_of(Picked::<18, 0, 1, 2>::of(from), 0),
            22 => row_of(Picked::<22, 0, 1, 2>::of(from), 0),
            34 => row_of(Picked::<34, 0, 1, 2>::of(from), 0),
            _ => both_short(halves_of(from.row(0), stride), halves_of(from.row(1), stride)),
        });
        f16(from: Packed) -> Floats = _mm512_cvtph_ps(both_short(
            _mm_set1_epi16(from.row(0).cast::<i16>().read_unaligned()),
            _mm_set1_epi16(from.row(1).cast::<i16>().read_unaligned()),
        ));
        word(from: Packed) -> Bits = both(
            _mm256_set1_epi32(from.row(0).cast::<i32>().read_unaligned()),
            _mm256_set1_epi32(from.row(1).cast::<i32>().read_unaligned()),
        );
        load_short(from: Packed) -> Short = both_short(
            _mm_loadu_si128(from.row(0).cast()),
            _mm_loadu_si128(from.row(1).cast()),
        );

        splat8(value: i8) -> Bits = _mm512_set1_epi8(value);
        splat32(value: i32) -> Bits = _mm512_set1_epi32(value);
        words(values: Words) -> Bits = _mm512_broadcast_i64x4(words_in_order(values));
        table(values: Table) -> Bits = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
        same_bits(from: Bytes) -> Bits = _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
        same_floats(from: Eight) -> Floats = _mm512_castsi512_ps(_mm512_broadcast_i64x4(_mm256_loadu_si256(from.as_ptr().cast())));
        zero() -> Floats = _mm512_setzero_ps();
        short(values: Sixteen) -> Short = _mm256_broadcastsi128_si256(short_of(values));
        floats(rows: Rows) -> Floats = _mm512_loadu_ps(rows.as_ptr().cast());

        and(a: Bits, b: Bits) -> Bits = _mm512_and_si512(a, b);
        or(a: Bits, b: Bits) -> Bits = _mm512_or_si512(a, b);
        right16<N>(v: Bits) -> Bits = _mm512_srli_epi16::<N>(v);
        left16<N>(v: Bits) -> Bits = _mm512_slli_epi16::<N>(v);
        right32_by(v: Bits, by: Bits) -> Bits = _mm512_srlv_epi32(v, by);
        left32(v: Bits, by: u32) -> Bits = _mm512_sllv_epi32(v, _mm512_set1_epi32(by as i32));
        add32(a: Bits, b: Bits) -> Bits = _mm512_add_epi32(a, b);
        sub32(a: Bits, b: Bits) -> Bits = _mm512_sub_epi32(a, b);
        sub8(a: Bits, b: Bits) -> Bits = _mm512_sub_epi8(a, b);
        equal8(a: Bits, b: Bits) -> Bits = _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b));
        shuffle(v: Bits, from: Bits) -> Bits = _mm512_shuffle_epi8(v, from);
        zip32_low(a: Bits, b: Bits) -> Bits = _mm512_unpacklo_epi32(a, b);
        zip32_high(a: Bits, b: Bits) -> Bits = _mm512_unpackhi_epi32(a, b);
        zip64_low(a: Bits, b: Bits) -> Bits = _mm512_unpacklo_epi64(a, b);
        zip64_high(a: Bits, b: Bits) -> Bits = _mm512_unpackhi_epi64(a, b);
        join_low(a: Bits, b: Bits) -> Bits =
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), b);
        join_high(a: Bits, b: Bits) -> Bits =
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), b);

        to_floats(v: Bits) -> Floats = _mm512_cvtepi32_ps(v);
        low_f16(v: Bits) -> Floats = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
        high_f16(v: Bits) -> Floats = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v)));
        mul(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
        mul_add(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fmadd_ps(a, b, c);
        negate(v: Floats) -> Floats =
            _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32(i32::MIN)));
        keep(v: Floats, mask: Bits) -> Floats =
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), mask));
        sums(v: Floats) -> Sums = [
            sum_of(_mm512_castps512_ps256(v)),
            sum_of(_mm256_castsi256_ps(row_of(_mm512_castps_si512(v), 1))),
        ];

        short_and(a: Short, b: Short) -> Short = _mm256_and_si256(a, b);
        short_or(a: Short, b: Short) -> Short = _mm256_or_si256(a, b);
        short_sub8(a: Short, b: Short) -> Short = _mm256_sub_epi8(a, b);
        short_right16<N>(v: Short) -> Short = _mm256_srl_epi16(v, _mm_cvtsi32_si128(N as i32));
        short_left16<N>(v: Short) -> Short = _mm256_sll_epi16(v, _mm_cvtsi32_si128(N as i32));
        short_right32_by(v: Short, by: Short) -> Short = _mm256_srlv_epi32(v, by);
        short_shuffle(v: Short, from: Short) -> Short = _mm256_shuffle_epi8(v, from);
        widen(v: Short) -> TwoFloats = {
            let eights = eights(v);
            [
                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(eights[0])),
                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(eights[1])),
            ]
        };
        widen_signed(v: Short) -> TwoFloats = {
            let eights = eights(v);
            [
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eights[0])),
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eights[1])),
            ]
        };
    }

    #[inline(always)]
    unsafe fn gather_f16_and_words(from: Packed, stride: usize) -> (__m512, __m512i) {
        // SAFETY: promised by the caller.
        unsafe {
            match stride {
                22 => (
                    _mm512_cvtph_ps(row_of(Picked::<22, 0, 1, 6>::of(from), 0)),
                    Picked::<22, 1, 2, 6>::of(from),
                ),
                _ => (Self::gather_f16(from, stride), Self::gather_words(from.at(2), stride)),
            }
        }
    }

    #[inline(always)]
    unsafe fn sixteens(words: __m512i, nibble: usize) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe {
            // Four bytes for each nibble, whose number is what a permutation looks at.
            let table: [i32; 16] =
                each!(|n: 16| ((n & 1 | (n & 2) << 7 | (n & 4) << 14 | (n & 8) << 21) << 4) as i32);
            let table = _mm512_loadu_si512(table.as_ptr().cast());
            let nibble = _mm512_srl_epi32(words, _mm_cvtsi32_si128(4 * nibble as i32));
            _mm512_permutexvar_epi32(nibble, table)
        }
    }

    #[inline(always)]
    unsafe fn store_bits(v: __m512i, row: usize, to: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_si256(to.cast(), row_of(v, row)) }
    }

    #[inline(always)]
    unsafe fn store_floats(v: __m512, row: usize, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_si256(to.cast(), row_of(_mm512_castps_si512(v), row)) }
    }
}
