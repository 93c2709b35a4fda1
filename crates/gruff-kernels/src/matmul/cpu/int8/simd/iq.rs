//! Four-bit codes into a table of sixteen levels.

use std::mem::offset_of;

use gruff_blocks::{iq, microscaling};

use super::super::LANE_BLOCKS;
use super::lines::{chain, nibbles, transpose_16_bytes};
use super::vector::{Packed, Vector};
use super::{Bytes, Centred, Unpack, Unpacked, each};

/// The levels that the low and the high half of every byte name, 16 bytes a block.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn levels<V: Vector>(table: &[i8; 16], codes: Packed, stride: usize) -> [V::Bits; 8] {
    // SAFETY: see above.
    unsafe {
        let table = V::table(table);
        let (low, high) = nibbles::<V>(transpose_16_bytes::<V>(codes, stride));
        let codes = chain::<V>(low, high);
        each!(|g: 8| V::shuffle(table, codes[g]))
    }
}

pub(super) struct Iq4Nl;

impl Unpack for Iq4Nl {
    type Form = Bytes;
    const BYTES: usize = 8 * size_of::<iq::IQ4_NL>();

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        const STRIDE: usize = size_of::<iq::IQ4_NL>();
        // SAFETY: all loads are inside the eight blocks.
        unsafe {
            let quants = levels::<V>(&iq::IQ4_NL_VALUES, packed.at(offset_of!(iq::IQ4_NL, qs)), STRIDE);
            Unpacked { quants, scales: [V::gather_f16(packed, STRIDE); 2], mins: [V::zero(); 2] }
        }
    }
}

pub(super) struct Iq4Xs;

impl Unpack for Iq4Xs {
    type Form = Bytes;
    const BYTES: usize = size_of::<iq::IQ4_XS>();

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let quants = levels::<V>(&iq::IQ4_NL_VALUES, packed.at(offset_of!(iq::IQ4_XS, qs)), 16);
            // The high bits are the upper half of the first word.
            const { assert!(offset_of!(iq::IQ4_XS, scales_h) == 2) };
            let high = V::word(packed);
            let low = V::word(packed.at(offset_of!(iq::IQ4_XS, scales_l)));
            // Lanes are blocks 0 2 4 6 1 3 5 7; block b has low bits 4 b and high bits 2 b.
            let low = V::right32_by(low, V::words([0, 8, 16, 24, 4, 12, 20, 28]));
            let high = V::right32_by(high, V::words([16, 20, 24, 28, 18, 22, 26, 30]));
            let scales = V::or(V::and(low, V::splat32(15)), V::left32(V::and(high, V::splat32(3)), 4));
            let scales = V::to_floats(V::sub32(scales, V::splat32(32)));
            let scale = V::mul(V::f16(packed), scales);
            Unpacked { quants, scales: [scale; 2], mins: [V::zero(); 2] }
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
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
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
            let quants = levels::<V>(&LEVELS, packed.at(offset_of!(microscaling::MXFP4, qs)), STRIDE);
            let mut scales = [[0f32; 8]; 2];
            for row in 0..V::ROWS {
                let exponents = packed.at(offset_of!(microscaling::MXFP4, e)).row(row);
                scales[row] = each!(|p: 8| microscaling::e8m0_half(*exponents.add(LANE_BLOCKS[p] * STRIDE)));
            }
            Unpacked { quants, scales: [V::floats(&scales); 2], mins: [V::zero(); 2] }
        }
    }
}
