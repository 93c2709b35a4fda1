//! Ternary blocks: 256 values of -1, 0 or 1 times one scale.

use crate::block::{F16, block_layout};
use crate::{Block, BlockType};

block_layout! {
    /// Five values a byte; see [`trit`].
    ///
    /// `qs` covers values 0..240 and `qh` the last 16. The first 32 bytes hold values 0..160 (digit `n` of byte `j` is
    /// value `32 n + j`), the next 16 hold values 160..240 (`160 + 16 n + j`), and `qh` holds four digits a byte
    /// (`240 + 4 n + j`).
    TQ1_0 {
        /// Five base-3 digits a byte.
        qs: [u8; 48],
        /// Four base-3 digits a byte.
        qh: [u8; 4],
        /// Scale.
        d: F16,
    }
}

block_layout! {
    /// `value = d * (q - 1)`, two bits a value (the format never writes 3; it would read as 2).
    TQ2_0 {
        /// 2-bit quants. Byte `32 h + j` holds values `128 h + j`, `+ 32`, `+ 64`, `+ 96`, low bits first.
        qs: [u8; 64],
        /// Scale.
        d: F16,
    }
}

/// Digit `n` (0 is the most significant) of a byte of base-3 digits: 0, 1 or 2.
///
/// The byte is a fixed-point fraction of 256ths: multiplying by 3^n modulo 256 drops the first `n` digits, and the
/// integer part of three times the rest is the next digit.
pub const fn trit(byte: u8, n: u32) -> u8 {
    let rest = byte.wrapping_mul(3_u8.pow(n));
    ((rest as u16 * 3) >> 8) as u8
}

impl Block for TQ1_0 {
    const TYPE: BlockType = BlockType::TQ1_0;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        let d = self.d.get();
        let (first, second) = self.qs.split_at(32);
        let mut values = values.iter_mut();
        for (bytes, digits) in [(first, 5), (second, 5), (&self.qh[..], 4)] {
            for n in 0..digits {
                for (byte, value) in bytes.iter().zip(&mut values) {
                    *value = d * (f32::from(trit(*byte, n)) - 1.0);
                }
            }
        }
    }
}

impl Block for TQ2_0 {
    const TYPE: BlockType = BlockType::TQ2_0;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        let d = self.d.get();
        for (i, value) in values.iter_mut().enumerate() {
            let q = self.qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
            *value = d * (f32::from(q) - 1.0);
        }
    }
}
