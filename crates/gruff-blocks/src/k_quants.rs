//! K-quants: super-blocks of 256 values whose sub-block scales are themselves quantized.

use crate::block::{F16, block_layout};
use crate::{Block, BlockType};

/// Values in a super-block.
pub const SUPER_BLOCK: usize = 256;

block_layout! {
    /// 16 sub-blocks of 16: `value = (d * scale) * q - (dmin * min)`, `q` in 0..4.
    Q2_K {
        /// Per sub-block: scale in the low 4 bits, minimum in the high 4.
        scales: [u8; 16],
        /// 2-bit quants. Byte `32 h + j` holds values `128 h + j`, `+ 32`, `+ 64`, `+ 96`, low bits first.
        qs: [u8; 64],
        /// Scale of the scales.
        d: F16,
        /// Scale of the minima.
        dmin: F16,
    }
}

block_layout! {
    /// 16 sub-blocks of 16: `value = (d * scale) * q`, `q` in -4..4, scale in -32..32.
    Q3_K {
        /// Third bits: bit `k` of byte `j` belongs to value `32 k + j`; a *clear* bit subtracts 4.
        hmask: [u8; 32],
        /// Low 2 bits, arranged as in [`Q2_K`].
        qs: [u8; 64],
        /// Sixteen 6-bit scales; see [`q3_k_scales`].
        scales: [u8; 12],
        /// Scale of the scales.
        d: F16,
    }
}

block_layout! {
    /// 8 sub-blocks of 32: `value = (d * scale) * q - (dmin * min)`, `q` in 0..16.
    Q4_K {
        /// Scale of the scales.
        d: F16,
        /// Scale of the minima.
        dmin: F16,
        /// Eight 6-bit scales and eight 6-bit minima; see [`scale_min_k4`].
        scales: [u8; 12],
        /// 4-bit quants. Byte `32 h + j` holds value `64 h + j` in its low half and `64 h + 32 + j` in its high half.
        qs: [u8; 128],
    }
}

block_layout! {
    /// 8 sub-blocks of 32: `value = (d * scale) * q - (dmin * min)`, `q` in 0..32.
    Q5_K {
        /// Scale of the scales.
        d: F16,
        /// Scale of the minima.
        dmin: F16,
        /// Eight 6-bit scales and eight 6-bit minima; see [`scale_min_k4`].
        scales: [u8; 12],
        /// Fifth bits: bit `k` of byte `j` belongs to value `32 k + j`.
        qh: [u8; 32],
        /// Low 4 bits, arranged as in [`Q4_K`].
        qs: [u8; 128],
    }
}

block_layout! {
    /// 16 sub-blocks of 16: `value = (d * scale) * (q - 32)`, `q` in 0..64.
    Q6_K {
        /// Low 4 bits. Byte `64 h + j` holds value `128 h + j` in its low half and `128 h + 64 + j` in its high half.
        ql: [u8; 128],
        /// High 2 bits, arranged as the quants of [`Q2_K`].
        qh: [u8; 64],
        /// Signed scales.
        scales: [i8; 16],
        /// Scale of the scales.
        d: F16,
    }
}

block_layout! {
    /// `value = d * q`, with the sums of every 16 quants kept for products with minima.
    Q8_K {
        /// Scale, an `f32`.
        d: [u8; 4],
        /// Signed quants, value by value.
        qs: [i8; 256],
        /// Sums of 16 consecutive quants, each an `i16`.
        bsums: [[u8; 2]; 16],
    }
}

/// The 6-bit scale and minimum of sub-block `j` (0..8) of a [`Q4_K`] or [`Q5_K`] super-block.
///
/// Bytes 0..4 and 4..8 hold scales and minima of sub-blocks 0..4 in their low 6 bits. Bytes 8..12 hold the low 4 bits
/// of sub-blocks 4..8 (scale in the low half, minimum in the high half), whose top 2 bits are the top bits of bytes
/// 0..4 (scales) and 4..8 (minima).
///
/// # Panics
/// If `j` is 8 or more.
pub const fn scale_min_k4(scales: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | ((scales[j - 4] >> 6) << 4), (low >> 4) | ((scales[j] >> 6) << 4))
    }
}

/// Packs eight scales and eight minima (0..64 each) as [`scale_min_k4`] reads them.
pub fn pack_scale_min_k4(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|j| match j {
        0..4 => scales[j] & 63 | scales[j + 4] >> 4 << 6,
        4..8 => mins[j - 4] & 63 | mins[j] >> 4 << 6,
        _ => scales[j - 4] & 15 | mins[j - 4] << 4,
    })
}

/// The sixteen signed scales (-32..32) of a [`Q3_K`] super-block.
///
/// Byte `j` of the first 8 holds the low 4 bits of scales `j` and `j + 8`; byte `8 + j` holds the high 2 bits of scales
/// `j`, `j + 4`, `j + 8`, `j + 12`.
pub fn q3_k_scales(scales: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = scales[i % 8] >> (4 * (i / 8)) & 15;
        let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The 2-bit field of value `i` where each half of 128 values shares 32 bytes.
fn two_bits(qs: &[u8; 64], i: usize) -> u8 {
    qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// The 4-bit field of value `i` where each run of 64 values shares 32 bytes.
fn four_bits(qs: &[u8; 128], i: usize) -> u8 {
    qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// The 1-bit field of value `i` where all values share 32 bytes.
fn one_bit(bits: &[u8; 32], i: usize) -> u8 {
    bits[i % 32] >> (i / 32) & 1
}

impl Block for Q2_K {
    const TYPE: BlockType = BlockType::Q2_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        let (d, dmin) = (self.d.get(), self.dmin.get());
        for (i, value) in values.iter_mut().enumerate() {
            let scale = self.scales[i / 16];
            let (dl, ml) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
            *value = dl * f32::from(two_bits(&self.qs, i)) - ml;
        }
    }
}

impl Block for Q3_K {
    const TYPE: BlockType = BlockType::Q3_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        let d = self.d.get();
        let scales = q3_k_scales(&self.scales);
        for (i, value) in values.iter_mut().enumerate() {
            let q = (two_bits(&self.qs, i) | one_bit(&self.hmask, i) << 2) as i8 - 4;
            *value = d * f32::from(scales[i / 16]) * f32::from(q);
        }
    }
}

/// Q4_K and Q5_K differ only in where a quant comes from.
fn unpack_k4(
    d: F16,
    dmin: F16,
    scales: &[u8; 12],
    quant: impl Fn(usize) -> u8,
    values: &mut [f32; SUPER_BLOCK],
) {
    for (j, sub_block) in values.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min_k4(scales, j);
        let (dl, ml) = (d.get() * f32::from(scale), dmin.get() * f32::from(min));
        for (i, value) in sub_block.iter_mut().enumerate() {
            *value = dl * f32::from(quant(32 * j + i)) - ml;
        }
    }
}

impl Block for Q4_K {
    const TYPE: BlockType = BlockType::Q4_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        unpack_k4(self.d, self.dmin, &self.scales, |i| four_bits(&self.qs, i), values);
    }
}

impl Block for Q5_K {
    const TYPE: BlockType = BlockType::Q5_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        let quant = |i| four_bits(&self.qs, i) | one_bit(&self.qh, i) << 4;
        unpack_k4(self.d, self.dmin, &self.scales, quant, values);
    }
}

impl Block for Q6_K {
    const TYPE: BlockType = BlockType::Q6_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        let d = self.d.get();
        for (i, value) in values.iter_mut().enumerate() {
            let low = self.ql[64 * (i / 128) + i % 64] >> (4 * (i / 64 % 2)) & 15;
            let q = (low | two_bits(&self.qh, i) << 4) as i8 - 32;
            *value = d * f32::from(self.scales[i / 16]) * f32::from(q);
        }
    }
}

impl Block for Q8_K {
    const TYPE: BlockType = BlockType::Q8_K;
    type Values = [f32; SUPER_BLOCK];

    fn unpack(&self, values: &mut [f32; SUPER_BLOCK]) {
        let d = f32::from_le_bytes(self.d);
        for (value, q) in values.iter_mut().zip(self.qs) {
            *value = d * f32::from(q);
        }
    }
}
