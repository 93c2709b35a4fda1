//! The first generation: blocks of 32 values with one scale and perhaps a minimum.
//!
//! In all of them byte `j` of the 4-bit quants holds value `j` in its low half and value `j + 16` in its high half.

use crate::block::{F16, block_layout};
use crate::{Block, BlockType};

block_layout! {
    /// `value = d * (q - 8)`, `q` in 0..16.
    Q4_0 {
        /// Scale.
        d: F16,
        /// 4-bit quants.
        qs: [u8; 16],
    }
}

block_layout! {
    /// `value = d * q + m`, `q` in 0..16.
    Q4_1 {
        /// Scale.
        d: F16,
        /// Minimum.
        m: F16,
        /// 4-bit quants.
        qs: [u8; 16],
    }
}

block_layout! {
    /// `value = d * (q - 16)`, `q` in 0..32.
    Q5_0 {
        /// Scale.
        d: F16,
        /// Fifth bits: bit `i` of the little-endian word belongs to value `i`.
        qh: [u8; 4],
        /// Low 4 bits.
        qs: [u8; 16],
    }
}

block_layout! {
    /// `value = d * q + m`, `q` in 0..32.
    Q5_1 {
        /// Scale.
        d: F16,
        /// Minimum.
        m: F16,
        /// Fifth bits: bit `i` of the little-endian word belongs to value `i`.
        qh: [u8; 4],
        /// Low 4 bits.
        qs: [u8; 16],
    }
}

block_layout! {
    /// `value = d * q`, `q` in -128..128.
    Q8_0 {
        /// Scale.
        d: F16,
        /// Signed quants, value by value.
        qs: [i8; 32],
    }
}

block_layout! {
    /// `value = d * q`, with the sum of the block kept for products with minima.
    Q8_1 {
        /// Scale.
        d: F16,
        /// `d` times the sum of the quants.
        s: F16,
        /// Signed quants, value by value.
        qs: [i8; 32],
    }
}

/// The 32 four-bit quants of a block, in the order of the values.
fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The 32 five-bit quants of a block, in the order of the values.
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let low = nibbles(qs);
    let high = u32::from_le_bytes(qh);
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as u8) << 4)
}

macro_rules! unpack_as {
    ($name:ident, |$block:ident| $quants:expr, |$q:ident| $formula:expr) => {
        impl Block for $name {
            const TYPE: BlockType = BlockType::$name;
            type Values = [f32; 32];

            fn unpack(&self, values: &mut [f32; 32]) {
                let $block = self;
                for (value, q) in values.iter_mut().zip($quants) {
                    let $q = f32::from(q);
                    *value = $formula;
                }
            }
        }
    };
}

unpack_as!(Q4_0, |b| nibbles(&b.qs), |q| b.d.get() * (q - 8.0));
unpack_as!(Q4_1, |b| nibbles(&b.qs), |q| b.d.get() * q + b.m.get());
unpack_as!(Q5_0, |b| five_bits(&b.qs, b.qh), |q| b.d.get() * (q - 16.0));
unpack_as!(Q5_1, |b| five_bits(&b.qs, b.qh), |q| b.d.get() * q + b.m.get());
unpack_as!(Q8_0, |b| b.qs, |q| b.d.get() * q);
unpack_as!(Q8_1, |b| b.qs, |q| b.d.get() * q);
