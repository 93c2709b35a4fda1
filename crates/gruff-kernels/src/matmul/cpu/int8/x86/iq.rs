//! Four-bit codes into a table of sixteen levels.

use std::arch::x86_64::*;
use std::mem::offset_of;

use gruff_blocks::{iq, microscaling};

use super::super::LANE_BLOCKS;
use super::lines::{chain, half, halves, nibbles, transpose_16_bytes};
use super::{Bytes, Centred, Unpack, Unpacked, each};

/// The levels that the low and the high half of every byte name, 16 bytes a block.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn levels(table: &[i8; 16], codes: *const u8, stride: usize) -> [__m256i; 8] {
    // SAFETY: see above.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        let (low, high) = nibbles(transpose_16_bytes(codes, stride));
        let codes = chain(low, high);
        each!(|g: 8| _mm256_shuffle_epi8(table, codes[g]))
    }
}

pub(super) struct Iq4Nl;

impl Unpack for Iq4Nl {
    type Form = Bytes;
    const BYTES: usize = 8 * size_of::<iq::IQ4_NL>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        const STRIDE: usize = size_of::<iq::IQ4_NL>();
        // SAFETY: all loads are inside the eight blocks.
        unsafe {
            let quants = levels(&iq::IQ4_NL_VALUES, packed.add(offset_of!(iq::IQ4_NL, qs)), STRIDE);
            Unpacked { quants, scales: [halves(packed, STRIDE); 2], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}

pub(super) struct Iq4Xs;

impl Unpack for Iq4Xs {
    type Form = Bytes;
    const BYTES: usize = size_of::<iq::IQ4_XS>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        // SAFETY: all loads are inside the block.
        unsafe {
            let quants = levels(&iq::IQ4_NL_VALUES, packed.add(offset_of!(iq::IQ4_XS, qs)), 16);
            let high = packed.add(offset_of!(iq::IQ4_XS, scales_h)).cast::<u16>().read_unaligned();
            let low = packed.add(offset_of!(iq::IQ4_XS, scales_l)).cast::<u32>().read_unaligned();
            // Lanes are blocks 0 2 4 6 1 3 5 7; block b has low bits 4 b and high bits 2 b.
            let low = _mm256_srlv_epi32(
                _mm256_set1_epi32(low as i32),
                _mm256_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28),
            );
            let high = _mm256_srlv_epi32(
                _mm256_set1_epi32(i32::from(high)),
                _mm256_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14),
            );
            let scales = _mm256_or_si256(
                _mm256_and_si256(low, _mm256_set1_epi32(15)),
                _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3))),
            );
            let scales = _mm256_cvtepi32_ps(_mm256_sub_epi32(scales, _mm256_set1_epi32(32)));
            let scale = _mm256_mul_ps(half(packed), scales);
            Unpacked { quants, scales: [scale; 2], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}

pub(super) struct Mxfp4;

impl Unpack for Mxfp4 {
    type Form = Centred;
    const BYTES: usize = 8 * size_of::<microscaling::MXFP4>();
    // The doubled levels are -12..=12.
    const OFFSET: u32 = 4;

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        const STRIDE: usize = size_of::<microscaling::MXFP4>();
        const LEVELS: [i8; 16] = {
            let mut levels = microscaling::E2M1_DOUBLED;
            let mut i = 0;
            while i < 16 {
                levels[i] += 16;
                i += 1;
            }
            levels
        };
        // SAFETY: all loads are inside the eight blocks.
        unsafe {
            let quants = levels(&LEVELS, packed.add(offset_of!(microscaling::MXFP4, qs)), STRIDE);
            let exponents = packed.add(offset_of!(microscaling::MXFP4, e));
            let scales: [f32; 8] =
                each!(|p: 8| microscaling::e8m0_half(*exponents.add(LANE_BLOCKS[p] * STRIDE)));
            Unpacked { quants, scales: [_mm256_loadu_ps(scales.as_ptr()); 2], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}
