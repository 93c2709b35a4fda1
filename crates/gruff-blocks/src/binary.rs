//! One- and two-bit blocks with a single scale.

use crate::block::{F16, block_layout};
use crate::{Block, BlockType};

block_layout! {
    /// 128 signs: `value = d` where the bit is set, `-d` where it is clear.
    Q1_0 {
        /// Scale.
        d: F16,
        /// Bit `i % 8` of byte `i / 8` belongs to value `i`.
        qs: [u8; 16],
    }
}

block_layout! {
    /// 64 two-bit values: `value = d * (q - 1)`, so -1, 0, 1 or 2 times the scale.
    Q2_0 {
        /// Scale.
        d: F16,
        /// Four consecutive values a byte, low bits first.
        qs: [u8; 16],
    }
}

impl Block for Q1_0 {
    const TYPE: BlockType = BlockType::Q1_0;
    type Values = [f32; 128];

    fn unpack(&self, values: &mut [f32; 128]) {
        let d = self.d.get();
        for (i, value) in values.iter_mut().enumerate() {
            *value = if self.qs[i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    }
}

impl Block for Q2_0 {
    const TYPE: BlockType = BlockType::Q2_0;
    type Values = [f32; 64];

    fn unpack(&self, values: &mut [f32; 64]) {
        let d = self.d.get();
        for (i, value) in values.iter_mut().enumerate() {
            let q = self.qs[i / 4] >> (2 * (i % 4)) & 3;
            *value = d * (f32::from(q) - 1.0);
        }
    }
}
