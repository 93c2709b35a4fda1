//! K-quants: one super-block of 256 is eight blocks of 32, whose scales are small integers times one number.

use std::mem::offset_of;

use gruff_blocks::k_quants as blocks;

use super::lines::{join, load4, nibbles, transpose4, transpose8};
use super::vector::{Packed, Vector};
use super::{CentredHalves, HalvesWithMins, SixBitHalves, Unpack, Unpacked, WithMins, each};

/// Scales and negated minima of a Q4_K or Q5_K super-block, which begins with d, dmin and the twelve bytes that
/// [`blocks::scale_min_k4`] describes.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn scales_and_mins<V: Vector>(packed: Packed) -> (V::Floats, V::Floats) {
    // SAFETY: see above.
    unsafe {
        let head = V::load_short(packed);
        // Output bytes 0..8 are scales of blocks 0 2 4 6 1 3 5 7, 8..16 their minima. Input bytes are those of
        // the head: 4 more than the index into the scales.
        let low =
            V::short_shuffle(head, V::short([4, 6, 12, 14, 5, 7, 13, 15, 8, 10, 12, 14, 9, 11, 13, 15]));
        let high =
            V::short_shuffle(head, V::short([-1, -1, 4, 6, -1, -1, 5, 7, -1, -1, 8, 10, -1, -1, 9, 11]));
        let first = V::short([63, 63, 15, 15, 63, 63, 15, 15, 63, 63, 0, 0, 63, 63, 0, 0]);
        let upper = V::short([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 0, 0, 15, 15]);
        let low = V::short_or(V::short_and(low, first), V::short_and(V::short_right16::<4>(low), upper));
        let high = V::short_and(V::short_right16::<2>(high), V::short([0x30; 16]));
        let [scales, mins] = V::widen(V::short_or(low, high));
        let (d, dmin) = (V::f16(packed), V::f16(packed.at(2)));
        (V::mul(d, scales), V::negate(V::mul(dmin, mins)))
    }
}

pub(super) struct Q4K;

impl Unpack for Q4K {
    type Form = WithMins;
    const BYTES: usize = size_of::<blocks::Q4_K>();

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let rows = load4::<V>(packed.at(offset_of!(blocks::Q4_K, qs)));
            let (even, odd) = nibbles::<V>(transpose4::<V>(rows));
            let (scale, min) = scales_and_mins::<V>(packed);
            Unpacked { quants: join::<V>(even, odd), scales: [scale; 2], mins: [min; 2] }
        }
    }
}

pub(super) struct Q5K;

impl Unpack for Q5K {
    type Form = WithMins;
    const BYTES: usize = size_of::<blocks::Q5_K>();

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let qh = V::load(packed.at(offset_of!(blocks::Q5_K, qh)));
            let (low, high) = nibbles::<V>(load4::<V>(packed.at(offset_of!(blocks::Q5_K, qs))));
            let sixteen = V::splat8(16);
            // Bit b of the high bits is the fifth bit of block b.
            let fifth = [
                V::left16::<4>(qh),
                V::left16::<3>(qh),
                V::left16::<2>(qh),
                V::left16::<1>(qh),
                qh,
                V::right16::<1>(qh),
                V::right16::<2>(qh),
                V::right16::<3>(qh),
            ];
            let quants = each!(|b: 8| {
                let four = if b % 2 == 0 { low[b / 2] } else { high[b / 2] };
                V::or(four, V::and(fifth[b], sixteen))
            });
            let (scale, min) = scales_and_mins::<V>(packed);
            Unpacked { quants: transpose8::<V>(quants), scales: [scale; 2], mins: [min; 2] }
        }
    }
}

/// The two-bit fields of 64 bytes: byte `32 h + j` holds value j of blocks `4 h`, `4 h + 1`, .., low bits first.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn two_bits<V: Vector>(qs: Packed) -> [V::Bits; 8] {
    // SAFETY: see above.
    unsafe {
        let mask = V::splat8(3);
        let (a, b) = (V::load(qs), V::load(qs.at(32)));
        let shifted = [
            a,
            V::right16::<2>(a),
            V::right16::<4>(a),
            V::right16::<6>(a),
            b,
            V::right16::<2>(b),
            V::right16::<4>(b),
            V::right16::<6>(b),
        ];
        each!(|b: 8| V::and(shifted[b], mask))
    }
}

/// Sixteen bytes, one for each half block, in lane order: the first halves' eight, then the second halves'.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn by_halves<V: Vector>(bytes: V::Short) -> V::Short {
    // SAFETY: see above.
    unsafe { V::short_shuffle(bytes, V::short([0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15])) }
}

pub(super) struct Q6K;

impl Unpack for Q6K {
    type Form = SixBitHalves;
    const BYTES: usize = size_of::<blocks::Q6_K>();
    const OFFSET: u32 = 5;

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let qh = packed.at(offset_of!(blocks::Q6_K, qh));
            let (low, high) = nibbles::<V>(load4::<V>(packed.at(offset_of!(blocks::Q6_K, ql))));
            let (a, b) = (V::load(qh), V::load(qh.at(32)));
            let mask = V::splat8(0x30);
            let four = [low[0], low[1], high[0], high[1], low[2], low[3], high[2], high[3]];
            let two = [
                V::left16::<4>(a),
                V::left16::<2>(a),
                a,
                V::right16::<2>(a),
                V::left16::<4>(b),
                V::left16::<2>(b),
                b,
                V::right16::<2>(b),
            ];
            let quants = each!(|b: 8| V::or(four[b], V::and(two[b], mask)));
            let d = V::f16(packed.at(offset_of!(blocks::Q6_K, d)));
            let scales = V::load_short(packed.at(offset_of!(blocks::Q6_K, scales)));
            let [first, second] = V::widen_signed(by_halves::<V>(scales));
            Unpacked {
                quants: transpose8::<V>(quants),
                scales: [V::mul(d, first), V::mul(d, second)],
                mins: [V::zero(); 2],
            }
        }
    }
}

pub(super) struct Q2K;

impl Unpack for Q2K {
    type Form = HalvesWithMins;
    const BYTES: usize = size_of::<blocks::Q2_K>();

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let quants = two_bits::<V>(packed.at(offset_of!(blocks::Q2_K, qs)));
            let bytes = by_halves::<V>(V::load_short(packed.at(offset_of!(blocks::Q2_K, scales))));
            let mask = V::short([15; 16]);
            let scales = V::widen(V::short_and(bytes, mask));
            let mins = V::widen(V::short_and(V::short_right16::<4>(bytes), mask));
            let d = V::f16(packed.at(offset_of!(blocks::Q2_K, d)));
            let dmin = V::negate(V::f16(packed.at(offset_of!(blocks::Q2_K, dmin))));
            Unpacked {
                quants: transpose8::<V>(quants),
                scales: each!(|half: 2| V::mul(d, scales[half])),
                mins: each!(|half: 2| V::mul(dmin, mins[half])),
            }
        }
    }
}

pub(super) struct Q3K;

impl Unpack for Q3K {
    type Form = CentredHalves;
    const BYTES: usize = size_of::<blocks::Q3_K>();
    const OFFSET: u32 = 2;

    #[inline(always)]
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V> {
        // SAFETY: all loads are inside the block.
        unsafe {
            let two = two_bits::<V>(packed.at(offset_of!(blocks::Q3_K, qs)));
            let mask = V::load(packed.at(offset_of!(blocks::Q3_K, hmask)));
            let four = V::splat8(4);
            // Bit b of the mask is the third bit of block b.
            let third = [
                V::left16::<2>(mask),
                V::left16::<1>(mask),
                mask,
                V::right16::<1>(mask),
                V::right16::<2>(mask),
                V::right16::<3>(mask),
                V::right16::<4>(mask),
                V::right16::<5>(mask),
            ];
            let quants = each!(|b: 8| V::or(two[b], V::and(third[b], four)));
            let [first, second] = V::widen_signed(by_halves::<V>(six_bit_scales::<V>(packed)));
            let d = V::f16(packed.at(offset_of!(blocks::Q3_K, d)));
            Unpacked {
                quants: transpose8::<V>(quants),
                scales: [V::mul(d, first), V::mul(d, second)],
                mins: [V::zero(); 2],
            }
        }
    }
}

/// The sixteen scales of a Q3_K super-block, which [`blocks::q3_k_scales`] describes.
///
/// # Safety
/// As for [`Unpack::unpack`].
#[inline(always)]
unsafe fn six_bit_scales<V: Vector>(packed: Packed) -> V::Short {
    /// The twelve bytes are read with the four before them, since there are only two behind.
    const BEFORE: usize = 4;
    const { assert!(offset_of!(blocks::Q3_K, scales) >= BEFORE) };
    // SAFETY: see above.
    unsafe {
        let bytes = V::load_short(packed.at(offset_of!(blocks::Q3_K, scales) - BEFORE));
        // Low four bits of scales 0..8 are low in the first eight bytes, those of 8..16 high.
        let eight = V::short_shuffle(bytes, V::short([4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11]));
        let lower = V::short([15, 15, 15, 15, 15, 15, 15, 15, 0, 0, 0, 0, 0, 0, 0, 0]);
        let upper = V::short([0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 15, 15, 15, 15, 15, 15]);
        let four_bits =
            V::short_or(V::short_and(eight, lower), V::short_and(V::short_right16::<4>(eight), upper));
        // High two bits of scales 0..4, 4..8, 8..12, 12..16 in the last four bytes, lowest first.
        let four = V::short_shuffle(
            bytes,
            V::short([12, 13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15, 12, 13, 14, 15]),
        );
        let by = V::short([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0]);
        let two_bits = V::short_and(V::short_right32_by(four, by), V::short([3; 16]));
        let scales = V::short_or(four_bits, V::short_left16::<4>(two_bits));
        V::short_sub8(scales, V::short([32; 16]))
    }
}
