//! The first generation: blocks of 32 with one scale, eight of them at a time.

use gruff_blocks::legacy;

use super::lines::{chain, nibbles, transpose_16_bytes};
use super::vector::{Packed, Vector};
use super::{Bytes, Centred, Form, Unpack, Unpacked, WithMins, each};

/// The fifth bits of eight blocks, `stride` bytes apart, as 0 or 16 in every byte.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn fifth_bits<V: Vector>(first: Packed, stride: usize) -> [V::Bits; 8] {
    // SAFETY: see above.
    unsafe {
        let bits = V::gather_words(first, stride);
        let sixteen = V::splat8(16);
        each!(|g: 8| {
            // Values 4 g .. 4 g + 4 are half of byte g / 2 of the word.
            let h = (g / 2) as i8;
            let from: [i8; 16] = each!(|i: 16| h + (i / 4 * 4) as i8);
            let mask = V::splat32(if g % 2 == 0 { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
            let bits = V::and(V::shuffle(bits, V::table(&from)), mask);
            V::and(V::equal8(bits, mask), sixteen)
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
            unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
                const STRIDE: usize = size_of::<$block>();
                // SAFETY: all loads are inside the eight blocks.
                unsafe {
                    let qs = packed.at(std::mem::offset_of!($block, qs));
                    let (low, high) = nibbles::<V>(transpose_16_bytes::<V>(qs, STRIDE));
                    let quants = chain::<V>(low, high);
                    $(
                        let fifth = fifth_bits::<V>(packed.at(std::mem::offset_of!($block, $qh)), STRIDE);
                        let quants = each!(|g: 8| V::or(quants[g], fifth[g]));
                    )?
                    let (scale, min) = if <$form>::MINS {
                        // The scale, and behind it the minimum.
                        let both = V::gather_words(packed, STRIDE);
                        (V::low_f16(both), V::high_f16(both))
                    } else {
                        (V::gather_f16(packed, STRIDE), V::zero())
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
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        const STRIDE: usize = size_of::<legacy::Q8_0>();
        // SAFETY: all loads are inside the eight blocks.
        unsafe {
            let qs = packed.at(std::mem::offset_of!(legacy::Q8_0, qs));
            let (first, last) =
                (transpose_16_bytes::<V>(qs, STRIDE), transpose_16_bytes::<V>(qs.at(16), STRIDE));
            Unpacked {
                quants: chain::<V>(first, last),
                scales: [V::gather_f16(packed, STRIDE); 2],
                mins: [V::zero(); 2],
            }
        }
    }
}
