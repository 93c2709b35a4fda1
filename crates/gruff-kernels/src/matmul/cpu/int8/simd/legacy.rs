//! The first generation: blocks of 32 with one scale, eight of them at a time.

use gruff_blocks::legacy;

use super::lines::{chain, nibbles, transpose_16_bytes};
use super::vector::{Packed, Vector};
use super::{Bytes, Centred, Unpack, Unpacked, WithMins, each};

/// What stands before the quants of eight blocks: scales, minima if there are any, and fifth bits if there are any.
type Head<V> = (<V as Vector>::Floats, <V as Vector>::Floats, Option<<V as Vector>::Bits>);

/// Declares a block type with 4-bit quants behind a head.
macro_rules! small_quants {
    ($name:ident, $block:ty, $form:ty, offset: $offset:literal, head: $head:ident) => {
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
                    let mut quants = chain::<V>(low, high);
                    let (scale, min, fifth) = $head::<V>(packed, STRIDE);
                    if let Some(fifth) = fifth {
                        quants = each!(|g: 8| V::or(quants[g], V::sixteens(fifth, g)));
                    }
                    Unpacked { quants, scales: [scale; 2], mins: [min; 2] }
                }
            }
        }
    };
}

/// Declares heads of blocks.
macro_rules! heads {
    ($($name:ident($packed:ident, $stride:ident) = $head:expr;)*) => {
        $(
            /// # Safety
            /// As for [`Unpack::unpack`].
            #[inline(always)]
            unsafe fn $name<V: Vector>($packed: Packed, $stride: usize) -> Head<V> {
                // SAFETY: see above.
                unsafe { $head }
            }
        )*
    };
}
heads! {
    scale(packed, stride) = (V::gather_f16(packed, stride), V::zero(), None);
    // The scale, and behind it the minimum.
    scale_min(packed, stride) = {
        let both = V::gather_words(packed, stride);
        (V::low_f16(both), V::high_f16(both), None)
    };
    scale_bits(packed, stride) = {
        const { assert!(std::mem::offset_of!(legacy::Q5_0, qh) == 2) };
        let (scale, fifth) = V::gather_f16_and_words(packed, stride);
        (scale, V::zero(), Some(fifth))
    };
    scale_min_bits(packed, stride) = {
        let (scale, min, _) = scale_min::<V>(packed, stride);
        let fifth = V::gather_words(packed.at(std::mem::offset_of!(legacy::Q5_1, qh)), stride);
        (scale, min, Some(fifth))
    };
}

small_quants!(Q4_0, legacy::Q4_0, Centred, offset: 3, head: scale);
small_quants!(Q4_1, legacy::Q4_1, WithMins, offset: 0, head: scale_min);
small_quants!(Q5_0, legacy::Q5_0, Centred, offset: 4, head: scale_bits);
small_quants!(Q5_1, legacy::Q5_1, WithMins, offset: 0, head: scale_min_bits);

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
