//! What a lane has of a group: how the types ([`types`](super::types)) make it, from a file's bytes, as `blocks.cuh` reads it.
//!
//! Codes come as words of four, sixteen a lane, in order. They are stored in planes of their bits: the low four as half bytes
//! (words 0 to 7 in the low ones, 8 to 15 in the high ones), a fifth or a third as 64 bits, two as 128, eight as they are. A word's
//! bytes are crossed: values 0, 2, 1, 3. Half bytes that are looked up are not: two bytes at a time become pairs of neighbours.

use std::array;

use super::book::Book;
use super::{Group, MOST_ROW, Own, RUN};

/// How long it takes to make weights of a type's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpacking {
    /// Not longer than to bring them.
    Light,
    /// Longer: more warps than registers are for in other kernels are of use then.
    Heavy,
}

/// A type's part of the layout. A group's bytes may be followed by others.
pub(super) trait Lanes {
    const UNPACKING: Unpacking;
    /// What codes are looked up in.
    const BOOK: Book = Book::None;
    /// Bytes that a lane has to itself, and that the four of a row share.
    const OWN: usize;
    const ROW: usize;

    /// What lane `t` has of a group.
    fn own(group: &Group, t: usize, own: &mut Own);

    /// What the lanes share.
    fn shared(group: &Group, shared: &mut [u8; MOST_ROW]) {
        let _ = (group, shared);
    }
}

/// Codes of a lane, four a word.
pub(super) type Codes = [u32; 16];

#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Changes places of bytes 1 and 2.
#[inline(always)]
fn cross(word: u32) -> u32 {
    word & 0xff00_00ff | (word & 0xff00) << 8 | word >> 8 & 0xff00
}

/// Four bits to the lowest bits of four bytes.
#[inline(always)]
pub(super) fn spread(bits: u32) -> u32 {
    ((bits & 15) * 0x0020_4081) & 0x0101_0101
}

/// Stores words, each as its lowest byte first: all at once, since what is read next is wider than a word.
#[inline(always)]
fn put_words<const N: usize>(own: &mut Own, at: usize, words: [u32; N]) {
    own[at..at + 4 * N].copy_from_slice(bytemuck::cast_slice(&words.map(u32::to_le)));
}

/// Stores words of bytes that are crossed there.
#[inline(always)]
pub(super) fn put<const N: usize>(own: &mut Own, at: usize, words: [u32; N]) {
    put_words(own, at, words.map(cross));
}

#[inline(always)]
pub(super) fn put_half_bytes(own: &mut Own, codes: &Codes) {
    put(own, 0, both_sub_blocks(codes));
}

/// Half bytes that are numbers of levels.
#[inline(always)]
pub(super) fn put_levels(own: &mut Own, codes: &Codes) {
    put_words(own, 0, both_sub_blocks(codes));
}

/// Bit `bit` of all codes.
#[inline(always)]
pub(super) fn put_bits(own: &mut Own, at: usize, codes: &Codes, bit: u32) {
    let mut words = [0; 2];
    for (m, code) in codes.iter().enumerate() {
        words[m / 8] |= (code >> bit & 0x0101_0101) << (m % 8);
    }
    put(own, at, words);
}

/// Two bits of all codes, from `bit` on.
#[inline(always)]
pub(super) fn put_two_bits(own: &mut Own, at: usize, codes: &Codes, bit: u32) {
    let mut words = [0; 4];
    for (m, code) in codes.iter().enumerate() {
        words[m / 4] |= (code >> bit & 0x0303_0303) << (m % 4 * 2);
    }
    put(own, at, words);
}

/// Codes by sub-block of the group and word of it.
#[inline(always)]
pub(super) fn codes(t: usize, word: impl Fn(usize, usize) -> u32) -> Codes {
    // A loop, unlike `array::from_fn`, is unrolled, and offsets in `word` are constants.
    let mut codes = [0; 16];
    for (m, code) in codes.iter_mut().enumerate() {
        *code = word(2 * t + m / 8, m % 8);
    }
    codes
}

/// The codes of four bits of a word of each sub-block, in one.
#[inline(always)]
fn both_sub_blocks(codes: &Codes) -> [u32; 8] {
    let mut words = [0; 8];
    for (i, word) in words.iter_mut().enumerate() {
        *word = codes[i] | codes[8 + i] << 4;
    }
    words
}

/// Half bytes of blocks of 32 with 16 bytes each: the low ones are the first values.
#[inline(always)]
pub(super) fn half_bytes(group: &Group, t: usize, block: usize, begin: usize) -> Codes {
    codes(t, |j, i| word(group, block * j + begin + 4 * (i % 4)) >> (4 * (i / 4)) & 0x0f0f_0f0f)
}

/// Copies the bytes in front of the codes of a lane's two blocks.
#[inline(always)]
pub(super) fn put_heads(own: &mut Own, at: usize, group: &Group, t: usize, block: usize, bytes: usize) {
    for (index, head) in own[at..].chunks_exact_mut(bytes).take(2).enumerate() {
        let from = block * (2 * t + index);
        head.copy_from_slice(&group[from..from + bytes]);
    }
}

/// What makes signed bytes positive: 128 more.
pub(super) const SIGN: u32 = 0x8080_8080;

/// Two bits of each of 32 bytes a half group, from `begin` on.
#[inline(always)]
pub(super) fn two_bits(group: &Group, begin: usize, j: usize, i: usize) -> u32 {
    word(group, begin + 32 * (j / 4) + 4 * i) >> (2 * (j % 4)) & 0x0303_0303
}

/// Half bytes of Q4_K and Q5_K, from `begin` on.
#[inline(always)]
pub(super) fn k_half_bytes(group: &Group, t: usize, begin: usize) -> Codes {
    codes(t, |j, i| word(group, begin + 32 * (j / 2) + 4 * i) >> (4 * (j % 2)) & 0x0f0f_0f0f)
}

/// The two scales and minima of a lane of Q4_K and Q5_K, six bits each.
#[inline(always)]
pub(super) fn put_scales_and_minima(own: &mut Own, at: usize, group: &Group, t: usize) {
    let scales = &group[4..16];
    let both = |j: usize| {
        let (scale, minimum) = if j < 4 {
            (scales[j] & 63, scales[j + 4] & 63)
        } else {
            let low = scales[j + 4];
            (low & 15 | scales[j - 4] >> 6 << 4, low >> 4 | scales[j] >> 6 << 4)
        };
        u32::from(scale) | u32::from(minimum) << 6
    };
    let all = both(2 * t) | both(2 * t + 1) << 12;
    own[at..at + 3].copy_from_slice(&all.to_le_bytes()[..3]);
}

/// Every other bit, from the lowest on, in the lower half.
#[inline(always)]
fn every_other(bits: u32) -> u32 {
    let pairs = bits & 0x5555_5555;
    let twos = (pairs | pairs >> 1) & 0x3333_3333;
    let fours = (twos | twos >> 2) & 0x0f0f_0f0f;
    let eights = (fours | fours >> 4) & 0x00ff_00ff;
    (eights | eights >> 8) & 0xffff
}

/// A sign a value, lowest first, to where `blocks.cuh` has it: value 2 p at bit 15 - p, value 2 p + 1 at bit 31 - p.
#[inline(always)]
pub(super) fn signs(bits: u32) -> u32 {
    let reversed = bits.reverse_bits();
    every_other(reversed >> 1) | every_other(reversed) << 16
}

/// Four times seven signs, with a bit of something else in the place of each eighth.
#[inline(always)]
pub(super) fn signs_beside(sevens: [u32; 4], bits: [u32; 4]) -> u32 {
    let mut all = 0;
    for e in 0..4 {
        all |= (sevens[e] & 127) << (8 * e) | (bits[e] & 1) << (8 * e + 7);
    }
    signs(all)
}

/// The signs and the scale of a sub-block of IQ2_XXS and IQ3_XXS.
#[inline(always)]
pub(super) fn signs_and_scale(word: u32) -> u32 {
    signs_beside([word, word >> 7, word >> 14, word >> 21], [word >> 28, word >> 29, word >> 30, word >> 31])
}

#[inline(always)]
pub(super) fn copy(own: &mut [u8], at: usize, from: &[u8]) {
    own[at..at + from.len()].copy_from_slice(from);
}

/// The digit of weight 3^-(n + 1) of a byte of base-3 digits.
fn trit(byte: u8, n: u32) -> u8 {
    ((u16::from(byte.wrapping_mul(3_u8.pow(n))) * 3) >> 8) as u8
}

/// The byte of five digits, the most significant first.
pub(super) fn trit_byte(digits: [u8; 5]) -> u8 {
    let number = digits.iter().fold(0_u16, |number, digit| 3 * number + u16::from(*digit));
    (number * 256).div_ceil(243) as u8
}

/// The digits of a lane of TQ1_0.
pub(super) fn trits(group: &Group, t: usize) -> [u8; 64] {
    array::from_fn(|value| {
        let (byte, n) = trit_place(RUN * t + value);
        trit(group[byte], n)
    })
}

/// Which byte of a group of TQ1_0 has a value, as which digit.
pub(super) fn trit_place(value: usize) -> (usize, u32) {
    match value {
        0..160 => (value % 32, value as u32 / 32),
        160..240 => (32 + (value - 160) % 16, (value as u32 - 160) / 16),
        _ => (48 + value % 4, (value as u32 - 240) / 4),
    }
}
