//! Register transpositions that several block types share.
//!
//! # Safety
//! As for [`Vector`].

use super::each;
use super::vector::{Packed, Vector};

/// The transposition of four vectors of eight 4-byte columns: `[k]` holds column k of rows 0, 1, 2, 3 and then
/// column k + 4 of them.
#[inline(always)]
pub(super) unsafe fn transpose4<V: Vector>(rows: [V::Bits; 4]) -> [V::Bits; 4] {
    // SAFETY: see above.
    unsafe {
        let [a, b, c, d] = rows;
        let (ab_low, ab_high) = (V::zip32_low(a, b), V::zip32_high(a, b));
        let (cd_low, cd_high) = (V::zip32_low(c, d), V::zip32_high(c, d));
        [
            V::zip64_low(ab_low, cd_low),
            V::zip64_high(ab_low, cd_low),
            V::zip64_low(ab_high, cd_high),
            V::zip64_high(ab_high, cd_high),
        ]
    }
}

/// Puts the results of two [`transpose4`] (even blocks, odd blocks) into the order of
/// [`Unpacked`](super::Unpacked).
#[inline(always)]
pub(super) unsafe fn join<V: Vector>(even: [V::Bits; 4], odd: [V::Bits; 4]) -> [V::Bits; 8] {
    // SAFETY: see above.
    unsafe {
        chain::<V>(each!(|k: 4| V::join_low(even[k], odd[k])), each!(|k: 4| V::join_high(even[k], odd[k])))
    }
}

/// Eight blocks of 32 bytes each, in their order, into that of [`Unpacked`](super::Unpacked).
#[inline(always)]
pub(super) unsafe fn transpose8<V: Vector>(blocks: [V::Bits; 8]) -> [V::Bits; 8] {
    let [a, b, c, d, e, f, g, h] = blocks;
    // SAFETY: see above.
    unsafe { join::<V>(transpose4::<V>([a, c, e, g]), transpose4::<V>([b, d, f, h])) }
}

/// 16 bytes of each of eight blocks, `stride` bytes apart: vector k holds bytes `4 k .. 4 k + 4` of all of them.
#[inline(always)]
pub(super) unsafe fn transpose_16_bytes<V: Vector>(first: Packed, stride: usize) -> [V::Bits; 4] {
    // SAFETY: see above.
    unsafe {
        transpose4::<V>(each!(|n: 4| {
            V::load_halves(first.at(2 * n * stride), first.at((2 * n + 1) * stride))
        }))
    }
}

/// Four times 32 consecutive bytes.
#[inline(always)]
pub(super) unsafe fn load4<V: Vector>(first: Packed) -> [V::Bits; 4] {
    // SAFETY: see above.
    unsafe { each!(|n: 4| V::load(first.at(32 * n))) }
}

/// The low and the high four bits of every byte.
#[inline(always)]
pub(super) unsafe fn nibbles<V: Vector>(bytes: [V::Bits; 4]) -> ([V::Bits; 4], [V::Bits; 4]) {
    // SAFETY: see above.
    unsafe {
        let mask = V::splat8(15);
        (each!(|k: 4| V::and(bytes[k], mask)), each!(|k: 4| V::and(V::right16::<4>(bytes[k]), mask)))
    }
}

#[inline(always)]
pub(super) fn chain<V: Vector>(low: [V::Bits; 4], high: [V::Bits; 4]) -> [V::Bits; 8] {
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}
