//! What a lane has of a group, for each type: from the bytes of a file to those that `blocks.cuh` reads.
//!
//! Codes come as words of four, sixteen a lane, in order. They are stored in planes of their bits: the low four as half bytes
//! (words 0 to 7 in the low ones, 8 to 15 in the high ones), a fifth or a third as 64 bits, two as 128, eight as they are. A word's
//! bytes are crossed: values 0, 2, 1, 3. Half bytes that are looked up are not: two bytes at a time become pairs of neighbours.

use std::array;

use super::{Group, MOST_ROW, Own, RUN};

/// Calls an expression with `L` standing for a type's lanes.
macro_rules! with_lanes {
    ($block_type:expr, $lanes:ident => $call:expr) => {{
        use gruff_blocks::BlockType as B;
        use $crate::cuda::strips::lanes as l;
        macro_rules! call {
            ($of_type:ty) => {{
                type $lanes = $of_type;
                $call
            }};
        }
        match $block_type {
            B::Q4_0 => call!(l::Q4_0),
            B::Q4_1 => call!(l::Q4_1),
            B::Q5_0 => call!(l::Q5_0),
            B::Q5_1 => call!(l::Q5_1),
            B::Q8_0 => call!(l::Q8_0),
            B::Q8_1 => call!(l::Q8_1),
            B::Q2_K => call!(l::Q2_K),
            B::Q3_K => call!(l::Q3_K),
            B::Q4_K => call!(l::Q4_K),
            B::Q5_K => call!(l::Q5_K),
            B::Q6_K => call!(l::Q6_K),
            B::Q8_K => call!(l::Q8_K),
            B::IQ1_S => call!(l::IQ1_S),
            B::IQ1_M => call!(l::IQ1_M),
            B::IQ2_XXS => call!(l::IQ2_XXS),
            B::IQ2_XS => call!(l::IQ2_XS),
            B::IQ2_S => call!(l::IQ2_S),
            B::IQ3_XXS => call!(l::IQ3_XXS),
            B::IQ3_S => call!(l::IQ3_S),
            B::IQ4_NL => call!(l::IQ4_NL),
            B::IQ4_XS => call!(l::IQ4_XS),
            B::TQ1_0 => call!(l::TQ1_0),
            B::TQ2_0 => call!(l::TQ2_0),
            B::MXFP4 => call!(l::MXFP4),
            B::NVFP4 => call!(l::NVFP4),
            B::Q1_0 => call!(l::Q1_0),
            B::Q2_0 => call!(l::Q2_0),
            other => unreachable!("{other} is plain numbers"),
        }
    }};
}
pub(super) use with_lanes;

/// A type's part of the layout. A group's bytes may be followed by others.
pub(super) trait Lanes {
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
type Codes = [u32; 16];

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Changes places of bytes 1 and 2.
#[inline(always)]
fn cross(word: u32) -> u32 {
    word & 0xff00_00ff | (word & 0xff00) << 8 | word >> 8 & 0xff00
}

/// Four bits to the lowest bits of four bytes.
#[inline(always)]
fn spread(bits: u32) -> u32 {
    ((bits & 15) * 0x0020_4081) & 0x0101_0101
}

/// Stores words, each as its lowest byte first: all at once, since what is read next is wider than a word.
#[inline(always)]
fn put_words<const N: usize>(own: &mut Own, at: usize, words: [u32; N]) {
    own[at..at + 4 * N].copy_from_slice(bytemuck::cast_slice(&words.map(u32::to_le)));
}

/// Stores words of bytes that are crossed there.
#[inline(always)]
fn put<const N: usize>(own: &mut Own, at: usize, words: [u32; N]) {
    put_words(own, at, words.map(cross));
}

#[inline(always)]
fn put_half_bytes(own: &mut Own, codes: &Codes) {
    put(own, 0, both_sub_blocks(codes));
}

/// Half bytes that are numbers of levels.
#[inline(always)]
fn put_levels(own: &mut Own, codes: &Codes) {
    put_words(own, 0, both_sub_blocks(codes));
}

/// Bit `bit` of all codes.
#[inline(always)]
fn put_bits(own: &mut Own, at: usize, codes: &Codes, bit: u32) {
    let mut words = [0; 2];
    for (m, code) in codes.iter().enumerate() {
        words[m / 8] |= (code >> bit & 0x0101_0101) << (m % 8);
    }
    put(own, at, words);
}

/// Two bits of all codes, from `bit` on.
#[inline(always)]
fn put_two_bits(own: &mut Own, at: usize, codes: &Codes, bit: u32) {
    let mut words = [0; 4];
    for (m, code) in codes.iter().enumerate() {
        words[m / 4] |= (code >> bit & 0x0303_0303) << (m % 4 * 2);
    }
    put(own, at, words);
}

/// Codes by sub-block of the group and word of it.
#[inline(always)]
fn codes(t: usize, word: impl Fn(usize, usize) -> u32) -> Codes {
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
fn half_bytes(group: &Group, t: usize, block: usize, begin: usize) -> Codes {
    codes(t, |j, i| word(group, block * j + begin + 4 * (i % 4)) >> (4 * (i / 4)) & 0x0f0f_0f0f)
}

/// Copies the bytes in front of the codes of a lane's two blocks.
#[inline(always)]
fn put_heads(own: &mut Own, at: usize, group: &Group, t: usize, block: usize, bytes: usize) {
    for (index, head) in own[at..].chunks_exact_mut(bytes).take(2).enumerate() {
        let from = block * (2 * t + index);
        head.copy_from_slice(&group[from..from + bytes]);
    }
}

macro_rules! of_half_bytes {
    ($($name:ident: block $block:literal, head $head:literal, $put:ident;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const OWN: usize = 32 + 2 * $head;
            const ROW: usize = 0;
            #[inline(always)]
            fn own(group: &Group, t: usize, own: &mut Own) {
                $put(own, &half_bytes(group, t, $block, $head));
                put_heads(own, 32, group, t, $block, $head);
            }
        }
    )*};
}
of_half_bytes! {
    Q4_0: block 18, head 2, put_half_bytes;
    Q4_1: block 20, head 4, put_half_bytes;
    IQ4_NL: block 18, head 2, put_levels;
    MXFP4: block 17, head 1, put_levels;
}

macro_rules! of_five_bits {
    ($($name:ident: block $block:literal, head $head:literal;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const OWN: usize = 40 + 2 * $head;
            const ROW: usize = 0;
            #[inline(always)]
            fn own(group: &Group, t: usize, own: &mut Own) {
                put_half_bytes(own, &half_bytes(group, t, $block, $head + 4));
                put_bits(own, 32, &codes(t, |j, i| spread(word(group, $block * j + $head) >> (4 * i))), 0);
                put_heads(own, 40, group, t, $block, $head);
            }
        }
    )*};
}
of_five_bits! {
    Q5_0: block 22, head 2;
    Q5_1: block 24, head 4;
}

/// What makes signed bytes positive: 128 more.
const SIGN: u32 = 0x8080_8080;

macro_rules! of_bytes {
    ($($name:ident: block $block:literal, head $head:literal;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const OWN: usize = 64 + 2 * $head;
            const ROW: usize = 0;
            #[inline(always)]
            fn own(group: &Group, t: usize, own: &mut Own) {
                put(own, 0, codes(t, |j, i| word(group, $block * j + $head + 4 * i) ^ SIGN));
                put_heads(own, 64, group, t, $block, $head);
            }
        }
    )*};
}
of_bytes! {
    Q8_0: block 34, head 2;
    Q8_1: block 36, head 4;
}

macro_rules! lanes {
    ($($name:ident($own:literal, $row:literal @ $at:literal) |$group:ident, $t:ident, $out:ident| $body:block)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const OWN: usize = $own;
            const ROW: usize = $row;
            #[inline(always)]
            fn own($group: &Group, $t: usize, $out: &mut Own) $body
            fn shared(group: &Group, shared: &mut [u8; MOST_ROW]) {
                shared[..$row].copy_from_slice(&group[$at..$at + $row]);
            }
        }
    )*};
}

/// Two bits of each of 32 bytes a half group, from `begin` on.
#[inline(always)]
fn two_bits(group: &Group, begin: usize, j: usize, i: usize) -> u32 {
    word(group, begin + 32 * (j / 4) + 4 * i) >> (2 * (j % 4)) & 0x0303_0303
}

/// Half bytes of Q4_K and Q5_K, from `begin` on.
#[inline(always)]
fn k_half_bytes(group: &Group, t: usize, begin: usize) -> Codes {
    codes(t, |j, i| word(group, begin + 32 * (j / 2) + 4 * i) >> (4 * (j % 2)) & 0x0f0f_0f0f)
}

/// The two scales and minima of a lane of Q4_K and Q5_K, six bits each.
#[inline(always)]
fn put_scales_and_minima(own: &mut Own, at: usize, group: &Group, t: usize) {
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
fn signs(bits: u32) -> u32 {
    let reversed = bits.reverse_bits();
    every_other(reversed >> 1) | every_other(reversed) << 16
}

/// Four times seven signs, with a bit of something else in the place of each eighth.
#[inline(always)]
fn signs_beside(sevens: [u32; 4], bits: [u32; 4]) -> u32 {
    let mut all = 0;
    for e in 0..4 {
        all |= (sevens[e] & 127) << (8 * e) | (bits[e] & 1) << (8 * e + 7);
    }
    signs(all)
}

/// The signs and the scale of a sub-block of IQ2_XXS and IQ3_XXS.
#[inline(always)]
fn signs_and_scale(word: u32) -> u32 {
    signs_beside([word, word >> 7, word >> 14, word >> 21], [word >> 28, word >> 29, word >> 30, word >> 31])
}

#[inline(always)]
fn copy(own: &mut [u8], at: usize, from: &[u8]) {
    own[at..at + from.len()].copy_from_slice(from);
}

lanes! {
    Q2_K(20, 4 @ 80) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 16, j, i)), 0);
        copy(own, 16, &group[4 * t..4 * t + 4]);
    }
    Q3_K(27, 2 @ 108) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 32, j, i)), 0);
        put_bits(own, 16, &codes(t, |j, i| word(group, 4 * i) >> j & 0x0101_0101), 0);
        let scale = |k: usize| {
            let (low, high) = (group[96 + k % 8] >> (4 * (k / 8)) & 15, group[104 + k % 4] >> (2 * (k / 4)) & 3);
            u32::from(low | high << 4)
        };
        let all = (0..4).fold(0, |all, k| all | scale(4 * t + k) << (6 * k));
        copy(own, 24, &all.to_le_bytes()[..3]);
    }
    Q4_K(35, 4 @ 0) |group, t, own| {
        put_half_bytes(own, &k_half_bytes(group, t, 16));
        put_scales_and_minima(own, 32, group, t);
    }
    Q5_K(43, 4 @ 0) |group, t, own| {
        put_half_bytes(own, &k_half_bytes(group, t, 48));
        put_bits(own, 32, &codes(t, |j, i| word(group, 16 + 4 * i) >> j & 0x0101_0101), 0);
        put_scales_and_minima(own, 40, group, t);
    }
    Q6_K(52, 2 @ 208) |group, t, own| {
        let low = codes(t, |j, i| word(group, 64 * (j / 4) + 32 * (j % 2) + 4 * i) >> (4 * (j / 2 % 2)) & 0x0f0f_0f0f);
        put_half_bytes(own, &low);
        put_two_bits(own, 32, &codes(t, |j, i| two_bits(group, 128, j, i)), 0);
        copy(own, 48, &group[192 + 4 * t..196 + 4 * t]);
    }
    Q8_K(64, 4 @ 0) |group, t, own| {
        put(own, 0, codes(t, |j, i| word(group, 4 + 32 * j + 4 * i) ^ SIGN));
    }
    TQ1_0(13, 2 @ 52) |group, t, own| {
        let digits = trits(group, t);
        for (m, byte) in own[..12].iter_mut().enumerate() {
            // Byte b of word w has digit k of what are, crossed, bytes of words 5 w + k of codes.
            let b = [0, 2, 1, 3][m % 4];
            *byte = trit_byte(array::from_fn(|k| digits[4 * (m / 4 * 5 + k) + b]));
        }
        own[12] = trit_byte([digits[60], digits[61], digits[62], digits[63], 0]);
    }
    TQ2_0(16, 2 @ 64) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 0, j, i)), 0);
    }
    Q2_0(18, 0 @ 0) |group, t, own| {
        let four = |j: usize, i: usize| {
            let byte = u32::from(group[18 * t + 2 + 8 * (j % 2) + i]);
            let twos = (byte | byte << 12) & 0x000f_000f;
            (twos | twos << 6) & 0x0303_0303
        };
        put_two_bits(own, 0, &codes(t, four), 0);
        copy(own, 16, &group[18 * t..18 * t + 2]);
    }
    IQ4_XS(33, 4 @ 0) |group, t, own| {
        put_levels(own, &half_bytes(group, t, 16, 8));
        own[32] = group[4 + t];
    }
    NVFP4(36, 0 @ 0) |group, t, own| {
        let block = &group[36 * t..36 * t + 36];
        let code = |j: usize, i: usize| {
            word(block, 4 + 16 * (j % 2) + 8 * (i / 4) + 4 * (i % 2)) >> (4 * (i / 2 % 2)) & 0x0f0f_0f0f
        };
        put_levels(own, &codes(t, code));
        copy(own, 32, &block[..4]);
    }
    IQ2_XXS(16, 2 @ 0) |group, t, own| {
        for s in 0..2 {
            let block = &group[2 + 8 * (2 * t + s)..];
            copy(own, 4 * s, &block[..4]);
            copy(own, 8 + 4 * s, &signs_and_scale(word(block, 4)).to_le_bytes());
        }
    }
    IQ2_XS(18, 2 @ 0) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            let entry = |e: usize| {
                let at = 2 + 2 * (4 * j + e);
                u32::from(u16::from_le_bytes([group[at], group[at + 1]]))
            };
            for e in 0..4 {
                own[4 * s + e] = entry(e) as u8;
            }
            let entries = [entry(0), entry(1), entry(2), entry(3)];
            let beside = signs_beside(entries.map(|entry| entry >> 9), entries.map(|entry| entry >> 8));
            copy(own, 8 + 4 * s, &beside.to_le_bytes());
            own[16 + s] = group[66 + j];
        }
    }
    IQ2_S(20, 2 @ 0) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 4 * s, &group[2 + 4 * j..6 + 4 * j]);
            copy(own, 8 + 4 * s, &signs(word(group, 34 + 4 * j)).to_le_bytes());
            (own[16 + s], own[18 + s]) = (group[66 + j], group[74 + j]);
        }
    }
    IQ3_XXS(24, 2 @ 0) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 8 * s, &group[2 + 8 * j..10 + 8 * j]);
            copy(own, 16 + 4 * s, &signs_and_scale(word(group, 66 + 4 * j)).to_le_bytes());
        }
    }
    IQ3_S(27, 2 @ 0) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 8 * s, &group[2 + 8 * j..10 + 8 * j]);
            copy(own, 16 + 4 * s, &signs(word(group, 74 + 4 * j)).to_le_bytes());
            own[24 + s] = group[66 + j];
        }
        own[26] = group[106 + t];
    }
    IQ1_S(12, 2 @ 0) |group, t, own| {
        copy(own, 0, &group[2 + 8 * t..10 + 8 * t]);
        copy(own, 8, &group[34 + 4 * t..38 + 4 * t]);
    }
    IQ1_M(12, 8 @ 48) |group, t, own| {
        copy(own, 0, &group[8 * t..8 * t + 8]);
        copy(own, 8, &group[32 + 4 * t..36 + 4 * t]);
    }
}

#[allow(non_camel_case_types)]
pub(super) struct Q1_0;

impl Lanes for Q1_0 {
    const OWN: usize = 8;
    const ROW: usize = 4;

    #[inline(always)]
    fn own(group: &Group, t: usize, own: &mut Own) {
        put_bits(own, 0, &codes(t, |j, i| spread(word(group, 18 * (j / 4) + 2 + 4 * (j % 4)) >> (4 * i))), 0);
    }

    fn shared(group: &Group, shared: &mut [u8; MOST_ROW]) {
        copy(shared, 0, &group[..2]);
        copy(shared, 2, &group[18..20]);
    }
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
fn trits(group: &Group, t: usize) -> [u8; 64] {
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
