//! The vocabulary in which block types are unpacked, once for every instruction set.

use super::each;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::{Pair, PairOfRegisters};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{OneRow, TwoRows};

/// Where packed bytes of the rows of a vector lie.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// In the first row.
    pub(super) first: *const u8,
    /// Bytes from there to the same place of the second, where vectors hold two.
    pub(super) next: isize,
}

impl Packed {
    /// The place `bytes` further.
    #[inline(always)]
    pub(super) fn at(self, bytes: usize) -> Self {
        Self { first: self.first.wrapping_add(bytes), ..self }
    }

    /// The place in a row.
    #[inline(always)]
    pub(super) fn row(self, row: usize) -> *const u8 {
        if row == 0 { self.first } else { self.first.wrapping_offset(self.next) }
    }
}

/// Registers that hold 32 bytes of one row, or of two rows side by side: each of them two halves of 16 bytes, each of
/// these four lanes of four bytes. Every operation does to each row what the names say; nothing crosses rows.
///
/// # Safety
/// Of every function: the instruction set is enabled where it is inlined, and what it loads or stores is in bounds.
pub(super) trait Vector: 'static {
    /// Rows side by side.
    const ROWS: usize;
    /// 32 bytes, or 8 integers of 32 bits, a row.
    type Bits: Copy;
    /// 8 numbers a row.
    type Floats: Copy;
    /// 16 bytes a row.
    type Short: Copy;

    // Loads from each row.

    /// 32 bytes.
    unsafe fn load(from: Packed) -> Self::Bits;
    /// 16 bytes and 16 others.
    unsafe fn load_halves(low: Packed, high: Packed) -> Self::Bits;
    /// A word of each of eight blocks `stride` bytes apart, in the order of [`LANE_BLOCKS`](super::super::LANE_BLOCKS).
    unsafe fn gather_words(from: Packed, stride: usize) -> Self::Bits;
    /// As [`gather_words`](Self::gather_words), numbers in half precision.
    unsafe fn gather_f16(from: Packed, stride: usize) -> Self::Floats;
    /// A number in half precision, and the word behind it, of each of eight blocks `stride` bytes apart, in the same order.
    #[inline(always)]
    unsafe fn gather_f16_and_words(from: Packed, stride: usize) -> (Self::Floats, Self::Bits) {
        // SAFETY: promised by the caller.
        unsafe { (Self::gather_f16(from, stride), Self::gather_words(from.at(2), stride)) }
    }
    /// A number in half precision, in every lane.
    unsafe fn f16(from: Packed) -> Self::Floats;
    /// A word, in every lane.
    unsafe fn word(from: Packed) -> Self::Bits;
    /// 16 bytes.
    unsafe fn load_short(from: Packed) -> Self::Short;

    // The same for every row.

    unsafe fn splat8(value: i8) -> Self::Bits;
    unsafe fn splat32(value: i32) -> Self::Bits;
    unsafe fn words(values: [i32; 8]) -> Self::Bits;
    /// In both halves.
    unsafe fn table(values: &[i8; 16]) -> Self::Bits;
    /// 32 bytes from memory.
    unsafe fn same_bits(from: *const u8) -> Self::Bits;
    /// Eight numbers from memory.
    unsafe fn same_floats(from: &[f32; 8]) -> Self::Floats;
    unsafe fn zero() -> Self::Floats;
    unsafe fn short(values: [i8; 16]) -> Self::Short;

    /// Eight numbers for each row.
    unsafe fn floats(rows: &[[f32; 8]; 2]) -> Self::Floats;

    // Bits.

    unsafe fn and(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    unsafe fn or(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Words of 16 bits shifted right.
    unsafe fn right16<const N: u32>(v: Self::Bits) -> Self::Bits;
    /// Words of 16 bits shifted left.
    unsafe fn left16<const N: u32>(v: Self::Bits) -> Self::Bits;
    /// Words of 32 bits shifted right, each by its own number.
    unsafe fn right32_by(v: Self::Bits, by: Self::Bits) -> Self::Bits;
    /// Words of 32 bits shifted left.
    unsafe fn left32(v: Self::Bits, by: u32) -> Self::Bits;
    unsafe fn add32(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    unsafe fn sub32(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    unsafe fn sub8(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// All ones where bytes are equal.
    unsafe fn equal8(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// 16 in byte i of the lanes whose word has bit `4 nibble + i`, 0 in the others.
    #[inline(always)]
    unsafe fn sixteens(words: Self::Bits, nibble: usize) -> Self::Bits {
        let byte = (nibble / 2) as i8;
        // SAFETY: promised by the caller.
        unsafe {
            let from: [i8; 16] = each!(|i: 16| byte + (i / 4 * 4) as i8);
            let mask =
                Self::splat32(if nibble.is_multiple_of(2) { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
            let bits = Self::and(Self::shuffle(words, Self::table(&from)), mask);
            Self::and(Self::equal8(bits, mask), Self::splat8(16))
        }
    }
    /// Bytes of a half by their index in it.
    unsafe fn shuffle(v: Self::Bits, from: Self::Bits) -> Self::Bits;
    /// Of each half: lanes 0 of a and b, lanes 1 of a and b.
    unsafe fn zip32_low(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Of each half: lanes 2 of a and b, lanes 3 of a and b.
    unsafe fn zip32_high(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Of each half: the first two lanes of a and b.
    unsafe fn zip64_low(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// Of each half: the last two lanes of a and b.
    unsafe fn zip64_high(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// The first halves of a and b.
    unsafe fn join_low(a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// The second halves of a and b.
    unsafe fn join_high(a: Self::Bits, b: Self::Bits) -> Self::Bits;

    // Numbers.

    /// Of signed integers.
    unsafe fn to_floats(v: Self::Bits) -> Self::Floats;
    /// Of half precision, in the low halves of words.
    unsafe fn low_f16(v: Self::Bits) -> Self::Floats;
    /// Of half precision, in the high halves of words.
    unsafe fn high_f16(v: Self::Bits) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn negate(v: Self::Floats) -> Self::Floats;
    /// Zero where the mask is not all ones.
    unsafe fn keep(v: Self::Floats, mask: Self::Bits) -> Self::Floats;
    /// The lanes of each row summed as `((0+4)+(2+6))+((1+5)+(3+7))`.
    unsafe fn sums(v: Self::Floats) -> [f32; 2];

    // 16 bytes.

    unsafe fn short_and(a: Self::Short, b: Self::Short) -> Self::Short;
    unsafe fn short_or(a: Self::Short, b: Self::Short) -> Self::Short;
    unsafe fn short_sub8(a: Self::Short, b: Self::Short) -> Self::Short;
    unsafe fn short_right16<const N: u32>(v: Self::Short) -> Self::Short;
    unsafe fn short_left16<const N: u32>(v: Self::Short) -> Self::Short;
    unsafe fn short_right32_by(v: Self::Short, by: Self::Short) -> Self::Short;
    /// Bytes by their index; 0 for -1.
    unsafe fn short_shuffle(v: Self::Short, from: Self::Short) -> Self::Short;
    /// The first eight bytes and the last eight, unsigned.
    unsafe fn widen(v: Self::Short) -> [Self::Floats; 2];
    /// The first eight bytes and the last eight, signed.
    unsafe fn widen_signed(v: Self::Short) -> [Self::Floats; 2];

    // Stores of one row.

    unsafe fn store_bits(v: Self::Bits, row: usize, to: *mut u8);
    unsafe fn store_floats(v: Self::Floats, row: usize, to: *mut f32);
}
