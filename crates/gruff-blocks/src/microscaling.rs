//! 4-bit floats (E2M1) under small shared exponents: OCP microscaling and NVIDIA's variant.

use crate::block::block_layout;
use crate::{Block, BlockType};

/// The sixteen E2M1 numbers, **doubled** so that they are integers; the scale functions below halve in return.
///
/// Source: OCP Microscaling Formats (MX) specification 1.0, table of FP4 values.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

block_layout! {
    /// 32 E2M1 numbers under one power of two: `value = e8m0_half(e) * E2M1_DOUBLED[q]`.
    MXFP4 {
        /// Biased exponent of the scale.
        e: u8,
        /// 4-bit codes. Byte `j` holds value `j` in its low half and value `j + 16` in its high half.
        qs: [u8; 16],
    }
}

block_layout! {
    /// Four sub-blocks of 16 E2M1 numbers: `value = ue4m3_half(d) * E2M1_DOUBLED[q]`.
    ///
    /// A tensor of this type usually has a further scale for the whole tensor, stored as a tensor of its own.
    NVFP4 {
        /// Unsigned E4M3 scale of each sub-block.
        d: [u8; 4],
        /// 4-bit codes, 8 bytes a sub-block; byte `j` holds value `j` in its low half and `j + 8` in its high half.
        qs: [u8; 32],
    }
}

/// Half of the E8M0 scale `2^(e - 127)`, made for [`E2M1_DOUBLED`]; exact, subnormals included.
pub const fn e8m0_half(e: u8) -> f32 {
    // 2^(e - 128): from e = 2 upwards a normal number with exponent field e - 1, below that a subnormal.
    if e < 2 { f32::from_bits(0x0020_0000 << e) } else { f32::from_bits((e as u32 - 1) << 23) }
}

/// Half of an unsigned E4M3 scale (bias 7), made for [`E2M1_DOUBLED`]. Bit 7 is ignored; the NaN code `0x7f` reads as 0.
pub const fn ue4m3_half(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3 & 15) as u32, (code & 7) as u32);
    match (code, exponent) {
        (0x7f, _) => 0.0,
        // mantissa / 8 * 2^-6, halved.
        (_, 0) => mantissa as f32 / 1024.0,
        // (1 + mantissa / 8) * 2^(exponent - 7), halved: f32's exponent field is exponent - 8 + 127.
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

impl Block for MXFP4 {
    const TYPE: BlockType = BlockType::MXFP4;
    type Values = [f32; 32];

    fn unpack(&self, values: &mut [f32; 32]) {
        let d = e8m0_half(self.e);
        for (i, value) in values.iter_mut().enumerate() {
            let code = self.qs[i % 16] >> (4 * (i / 16)) & 15;
            *value = d * f32::from(E2M1_DOUBLED[usize::from(code)]);
        }
    }
}

impl Block for NVFP4 {
    const TYPE: BlockType = BlockType::NVFP4;
    type Values = [f32; 64];

    fn unpack(&self, values: &mut [f32; 64]) {
        for (i, value) in values.iter_mut().enumerate() {
            let code = self.qs[8 * (i / 16) + i % 8] >> (4 * (i / 8 % 2)) & 15;
            *value = ue4m3_half(self.d[i / 16]) * f32::from(E2M1_DOUBLED[usize::from(code)]);
        }
    }
}
