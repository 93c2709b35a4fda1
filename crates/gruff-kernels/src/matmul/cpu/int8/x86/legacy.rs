//! The first generation: blocks of 32 with one scale, eight of them at a time.

use std::arch::x86_64::*;

use gruff_blocks::legacy;

use super::lines::{chain, halves, nibbles, pairs_of_halves, transpose_16_bytes, words};
use super::{Bytes, Centred, Form, Unpack, Unpacked, WithMins, each};

/// The fifth bits of eight blocks, `stride` bytes apart, as 0 or 16 in every byte.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn fifth_bits(first: *const u8, stride: usize) -> [__m256i; 8] {
    // SAFETY: see above.
    unsafe {
        let bits = words(first, stride);
        let sixteen = _mm256_set1_epi8(16);
        each!(|g: 8| {
            // Values 4 g .. 4 g + 4 are half of byte g / 2 of the word.
            let h = (g / 2) as i32 * 0x0101_0101;
            let from = _mm256_setr_epi32(
                h,
                h + 0x0404_0404,
                h + 0x0808_0808,
                h + 0x0c0c_0c0c,
                h,
                h + 0x0404_0404,
                h + 0x0808_0808,
                h + 0x0c0c_0c0c,
            );
            let mask = _mm256_set1_epi32(if g % 2 == 0 { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(bits, from), mask);
            _mm256_and_si256(_mm256_cmpeq_epi8(bits, mask), sixteen)
        })
    }
}

/// Declares a block type with 4-bit quants, perhaps fifth bits and perhaps a minimum behind the scale.
macro_rules! small_quants {
    ($name:ident, $block:ty, $form:ty, offset: $offset:literal $(, fifth: $qh:ident)?) => {
        pub(super) struct $name;

        impl Unpack for $name {
            type Form = $form;
            const BYTES: usize = 8 * size_of::<$block>();
            const OFFSET: u32 = $offset;

            #[inline(always)]
            unsafe fn unpack(packed: *const u8) -> Unpacked {
                const STRIDE: usize = size_of::<$block>();
                // SAFETY: all loads are inside the eight blocks.
                unsafe {
                    let qs = packed.add(std::mem::offset_of!($block, qs));
                    let (low, high) = nibbles(transpose_16_bytes(qs, STRIDE));
                    let quants = chain(low, high);
                    $(
                        let fifth = fifth_bits(packed.add(std::mem::offset_of!($block, $qh)), STRIDE);
                        let quants = each!(|g: 8| _mm256_or_si256(quants[g], fifth[g]));
                    )?
                    let (scale, min) = if <$form>::MINS {
                        pairs_of_halves(packed, STRIDE)
                    } else {
                        (halves(packed, STRIDE), _mm256_setzero_ps())
                    };
                    Unpacked { quants, scales: [scale; 2], mins: [min; 2] }
                }
            }
        }
    };
}

small_quants!(Q4_0, legacy::Q4_0, Centred, offset: 3);
small_quants!(Q4_1, legacy::Q4_1, WithMins, offset: 0);
small_quants!(Q5_0, legacy::Q5_0, Centred, offset: 4, fifth: qh);
small_quants!(Q5_1, legacy::Q5_1, WithMins, offset: 0, fifth: qh);

pub(super) struct Q8_0;

impl Unpack for Q8_0 {
    type Form = Bytes;
    const BYTES: usize = 8 * size_of::<legacy::Q8_0>();

    #[inline(always)]
    unsafe fn unpack(packed: *const u8) -> Unpacked {
        const STRIDE: usize = size_of::<legacy::Q8_0>();
        // SAFETY: all loads are inside the eight blocks.
        unsafe {
            let qs = packed.add(std::mem::offset_of!(legacy::Q8_0, qs));
            let quants = chain(transpose_16_bytes(qs, STRIDE), transpose_16_bytes(qs.add(16), STRIDE));
            Unpacked { quants, scales: [halves(packed, STRIDE); 2], mins: [_mm256_setzero_ps(); 2] }
        }
    }
}
