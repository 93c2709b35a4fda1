//! What a lane has of a group, for each type, and what decoding it takes. `blocks.cuh` has the other half of each.

use std::array;

use gruff_blocks::codebooks::{
    IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_NL_VALUES,
};
use gruff_blocks::microscaling::E2M1_DOUBLED;

use super::book::Book;
use super::lanes::{
    Lanes, SIGN, Unpacking, codes, copy, half_bytes, k_half_bytes, put, put_bits, put_half_bytes, put_heads,
    put_levels, put_scales_and_minima, put_two_bits, signs, signs_and_scale, signs_beside, spread, trit_byte,
    trits, two_bits, word,
};
use super::{Group, MOST_ROW, Own};

/// Calls an expression with `L` standing for a type's lanes.
macro_rules! with_lanes {
    ($block_type:expr, $lanes:ident => $call:expr) => {{
        use gruff_blocks::BlockType as B;
        use $crate::cuda::strips::types as l;
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

macro_rules! of_half_bytes {
    ($($name:ident: block $block:literal, head $head:literal, $unpacking:ident, $book:expr, $put:ident;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const UNPACKING: Unpacking = Unpacking::$unpacking;
            const BOOK: Book = $book;
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
    Q4_0: block 18, head 2, Light, Book::None, put_half_bytes;
    Q4_1: block 20, head 4, Light, Book::None, put_half_bytes;
    IQ4_NL: block 18, head 2, Heavy, Book::Levels(&IQ4_NL_VALUES), put_levels;
    MXFP4: block 17, head 1, Heavy, Book::Levels(&E2M1_DOUBLED), put_levels;
}

macro_rules! of_five_bits {
    ($($name:ident: block $block:literal, head $head:literal;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const UNPACKING: Unpacking = Unpacking::Light;
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

macro_rules! of_bytes {
    ($($name:ident: block $block:literal, head $head:literal;)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const UNPACKING: Unpacking = Unpacking::Light;
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
    ($($name:ident($own:literal, $row:literal @ $at:literal, $unpacking:ident $(, $book:expr)?)
        |$group:ident, $t:ident, $out:ident| $body:block)*) => {$(
        #[allow(non_camel_case_types)]
        pub(super) struct $name;
        impl Lanes for $name {
            const UNPACKING: Unpacking = Unpacking::$unpacking;
            $(const BOOK: Book = $book;)?
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

lanes! {
    Q2_K(20, 4 @ 80, Heavy) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 16, j, i)), 0);
        copy(own, 16, &group[4 * t..4 * t + 4]);
    }
    Q3_K(27, 2 @ 108, Heavy) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 32, j, i)), 0);
        put_bits(own, 16, &codes(t, |j, i| word(group, 4 * i) >> j & 0x0101_0101), 0);
        let scale = |k: usize| {
            let (low, high) = (group[96 + k % 8] >> (4 * (k / 8)) & 15, group[104 + k % 4] >> (2 * (k / 4)) & 3);
            u32::from(low | high << 4)
        };
        let all = (0..4).fold(0, |all, k| all | scale(4 * t + k) << (6 * k));
        copy(own, 24, &all.to_le_bytes()[..3]);
    }
    Q4_K(35, 4 @ 0, Light) |group, t, own| {
        put_half_bytes(own, &k_half_bytes(group, t, 16));
        put_scales_and_minima(own, 32, group, t);
    }
    Q5_K(43, 4 @ 0, Light) |group, t, own| {
        put_half_bytes(own, &k_half_bytes(group, t, 48));
        put_bits(own, 32, &codes(t, |j, i| word(group, 16 + 4 * i) >> j & 0x0101_0101), 0);
        put_scales_and_minima(own, 40, group, t);
    }
    Q6_K(52, 2 @ 208, Light) |group, t, own| {
        let low = codes(t, |j, i| word(group, 64 * (j / 4) + 32 * (j % 2) + 4 * i) >> (4 * (j / 2 % 2)) & 0x0f0f_0f0f);
        put_half_bytes(own, &low);
        put_two_bits(own, 32, &codes(t, |j, i| two_bits(group, 128, j, i)), 0);
        copy(own, 48, &group[192 + 4 * t..196 + 4 * t]);
    }
    Q8_K(64, 4 @ 0, Light) |group, t, own| {
        put(own, 0, codes(t, |j, i| word(group, 4 + 32 * j + 4 * i) ^ SIGN));
    }
    TQ1_0(13, 2 @ 52, Heavy) |group, t, own| {
        let digits = trits(group, t);
        for (m, byte) in own[..12].iter_mut().enumerate() {
            // Byte b of word w has digit k of what are, crossed, bytes of words 5 w + k of codes.
            let b = [0, 2, 1, 3][m % 4];
            *byte = trit_byte(array::from_fn(|k| digits[4 * (m / 4 * 5 + k) + b]));
        }
        own[12] = trit_byte([digits[60], digits[61], digits[62], digits[63], 0]);
    }
    TQ2_0(16, 2 @ 64, Heavy) |group, t, own| {
        put_two_bits(own, 0, &codes(t, |j, i| two_bits(group, 0, j, i)), 0);
    }
    Q2_0(18, 0 @ 0, Heavy) |group, t, own| {
        let four = |j: usize, i: usize| {
            let byte = u32::from(group[18 * t + 2 + 8 * (j % 2) + i]);
            let twos = (byte | byte << 12) & 0x000f_000f;
            (twos | twos << 6) & 0x0303_0303
        };
        put_two_bits(own, 0, &codes(t, four), 0);
        copy(own, 16, &group[18 * t..18 * t + 2]);
    }
    IQ4_XS(33, 4 @ 0, Heavy, Book::Levels(&IQ4_NL_VALUES)) |group, t, own| {
        put_levels(own, &half_bytes(group, t, 16, 8));
        own[32] = group[4 + t];
    }
    NVFP4(36, 0 @ 0, Heavy, Book::Levels(&E2M1_DOUBLED)) |group, t, own| {
        let block = &group[36 * t..36 * t + 36];
        let code = |j: usize, i: usize| {
            word(block, 4 + 16 * (j % 2) + 8 * (i / 4) + 4 * (i % 2)) >> (4 * (i / 2 % 2)) & 0x0f0f_0f0f
        };
        put_levels(own, &codes(t, code));
        copy(own, 32, &block[..4]);
    }
    IQ2_XXS(16, 2 @ 0, Heavy, Book::Eights(&IQ2XXS_GRID)) |group, t, own| {
        for s in 0..2 {
            let block = &group[2 + 8 * (2 * t + s)..];
            copy(own, 4 * s, &block[..4]);
            copy(own, 8 + 4 * s, &signs_and_scale(word(block, 4)).to_le_bytes());
        }
    }
    IQ2_XS(18, 2 @ 0, Heavy, Book::Eights(&IQ2XS_GRID)) |group, t, own| {
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
    IQ2_S(20, 2 @ 0, Heavy, Book::Eights(&IQ2S_GRID)) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 4 * s, &group[2 + 4 * j..6 + 4 * j]);
            copy(own, 8 + 4 * s, &signs(word(group, 34 + 4 * j)).to_le_bytes());
            (own[16 + s], own[18 + s]) = (group[66 + j], group[74 + j]);
        }
    }
    IQ3_XXS(24, 2 @ 0, Heavy, Book::Fours(&IQ3XXS_GRID)) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 8 * s, &group[2 + 8 * j..10 + 8 * j]);
            copy(own, 16 + 4 * s, &signs_and_scale(word(group, 66 + 4 * j)).to_le_bytes());
        }
    }
    IQ3_S(27, 2 @ 0, Heavy, Book::Fours(&IQ3S_GRID)) |group, t, own| {
        for s in 0..2 {
            let j = 2 * t + s;
            copy(own, 8 * s, &group[2 + 8 * j..10 + 8 * j]);
            copy(own, 16 + 4 * s, &signs(word(group, 74 + 4 * j)).to_le_bytes());
            own[24 + s] = group[66 + j];
        }
        own[26] = group[106 + t];
    }
    IQ1_S(12, 2 @ 0, Heavy, Book::Eighths(&IQ1S_GRID)) |group, t, own| {
        copy(own, 0, &group[2 + 8 * t..10 + 8 * t]);
        copy(own, 8, &group[34 + 4 * t..38 + 4 * t]);
    }
    IQ1_M(12, 8 @ 48, Heavy, Book::Eighths(&IQ1S_GRID)) |group, t, own| {
        copy(own, 0, &group[8 * t..8 * t + 8]);
        copy(own, 8, &group[32 + 4 * t..36 + 4 * t]);
    }
}

#[allow(non_camel_case_types)]
pub(super) struct Q1_0;

impl Lanes for Q1_0 {
    const UNPACKING: Unpacking = Unpacking::Heavy;
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
