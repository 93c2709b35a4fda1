//! IQ types: groups of values are entries of code books (1 to 3 bits) or of a non-linear scale (4 bits).
//!
//! All but [`IQ4_NL`] are super-blocks of 256 values in eight sub-blocks of 32. The books and the sign table are in
//! [`codebooks`](crate::codebooks).

use crate::block::{F16, U16, block_layout};
pub use crate::codebooks::IQ4_NL_VALUES;
use crate::codebooks::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, SIGNS};
use crate::{Block, BlockType};

/// What [`IQ1_S`] and [`IQ1_M`] add to or take from the entries of their book.
pub const IQ1_DELTA: f32 = 0.125;

block_layout! {
    /// Eight values an entry of a 2048-point book: `value = d * (2 scale + 1) * (grid +- delta)`.
    IQ1_S {
        /// Scale.
        d: F16,
        /// Low 8 bits of the 32 entry numbers.
        qs: [u8; 32],
        /// A word per sub-block: four times 3 high bits of entry numbers, a 3-bit scale, the sign of delta.
        qh: [U16; 8],
    }
}

block_layout! {
    /// As [`IQ1_S`] with a 3-bit scale per 16 values and a delta sign per 8; see [`iq1_m_d`] for the super-block scale.
    IQ1_M {
        /// Low 8 bits of the 32 entry numbers.
        qs: [u8; 32],
        /// A half byte per entry: 3 high bits of the number and the sign of delta.
        qh: [u8; 16],
        /// Four words, each with four 3-bit scales below a quarter of the super-block scale.
        scales: [U16; 4],
    }
}

block_layout! {
    /// Eight values an entry of a 256-point book: `value = d * (scale + 1/2) / 4 * grid * sign`.
    IQ2_XXS {
        /// Scale.
        d: F16,
        /// Per sub-block: four entry numbers (bytes), then a word of four 7-bit sign patterns and a 4-bit scale on top.
        qs: [[u8; 8]; 8],
    }
}

block_layout! {
    /// Eight values an entry of a 512-point book: `value = d * (scale + 1/2) / 4 * grid * sign`.
    IQ2_XS {
        /// Scale.
        d: F16,
        /// Per entry: 9 bits of number, 7 bits of sign pattern.
        qs: [U16; 32],
        /// A 4-bit scale per 16 values, low half first.
        scales: [u8; 8],
    }
}

block_layout! {
    /// Eight values an entry of a 1024-point book: `value = d * (scale + 1/2) / 4 * grid * sign`.
    IQ2_S {
        /// Scale.
        d: F16,
        /// Low 8 bits of the entry numbers.
        qs: [u8; 32],
        /// Per entry, a bit per value: set means negative.
        signs: [u8; 32],
        /// Per sub-block: four times 2 high bits of the entry numbers, the first entry lowest.
        qh: [u8; 8],
        /// A 4-bit scale per 16 values, low half first.
        scales: [u8; 8],
    }
}

block_layout! {
    /// Four values an entry of a 256-point book: `value = d * (scale + 1/2) / 2 * grid * sign`.
    IQ3_XXS {
        /// Scale.
        d: F16,
        /// Entry numbers.
        qs: [u8; 64],
        /// A word per sub-block: four 7-bit sign patterns (of 8 values) and a 4-bit scale on top.
        scales_and_signs: [[u8; 4]; 8],
    }
}

block_layout! {
    /// Four values an entry of a 512-point book: `value = d * (2 scale + 1) * grid * sign`.
    IQ3_S {
        /// Scale.
        d: F16,
        /// Low 8 bits of the entry numbers.
        qs: [u8; 64],
        /// Per sub-block: the ninth bits of its eight entry numbers, the first entry lowest.
        qh: [u8; 8],
        /// A bit per value: bit `i % 8` of byte `i / 8`, set means negative.
        signs: [u8; 32],
        /// A 4-bit scale per sub-block, low half first.
        scales: [u8; 4],
    }
}

block_layout! {
    /// 32 values: `value = d * IQ4_NL_VALUES[q]`.
    IQ4_NL {
        /// Scale.
        d: F16,
        /// 4-bit codes. Byte `j` holds value `j` in its low half and value `j + 16` in its high half.
        qs: [u8; 16],
    }
}

block_layout! {
    /// `value = d * (scale - 32) * IQ4_NL_VALUES[q]`, a 6-bit scale per sub-block; see [`IQ4_XS::scale`].
    IQ4_XS {
        /// Scale.
        d: F16,
        /// High 2 bits of the eight scales, the first lowest.
        scales_h: U16,
        /// Low 4 bits of the scales, low half first.
        scales_l: [u8; 4],
        /// 4-bit codes, 16 bytes per sub-block, each arranged as in [`IQ4_NL`].
        qs: [u8; 128],
    }
}

impl IQ4_XS {
    /// The signed scale (-32..32) of sub-block `j` (0..8).
    ///
    /// # Panics
    /// If `j` is 8 or more.
    pub const fn scale(&self, j: usize) -> i8 {
        let low = self.scales_l[j / 2] >> (4 * (j % 2)) & 15;
        let high = (self.scales_h.get() >> (2 * j) & 3) as u8;
        (low | high << 4) as i8 - 32
    }
}

/// The super-block scale of [`IQ1_M`], whose four half bytes are the top bits of the four words, lowest first.
pub fn iq1_m_d(scales: &[U16; 4]) -> f32 {
    let bits = (0..4).map(|k| scales[k].get() >> 12 << (4 * k)).fold(0, |all, part| all | part);
    half::f16::from_bits(bits).to_f32()
}

/// Writes `scale * entry`, negated where the bit of `signs` is set, for the values of one entry.
fn signed<const N: usize>(values: &mut [f32], scale: f32, entry: &[u8; N], signs: u8) {
    for (i, (value, level)) in values.iter_mut().zip(entry).enumerate() {
        let sign = if signs >> i & 1 == 1 { -1.0 } else { 1.0 };
        *value = scale * f32::from(*level) * sign;
    }
}

/// Writes `scale * (entry + delta)` for the values of one entry.
fn shifted(values: &mut [f32], scale: f32, entry: &[i8; 8], negative: bool) {
    let delta = if negative { -IQ1_DELTA } else { IQ1_DELTA };
    for (value, level) in values.iter_mut().zip(entry) {
        *value = scale * (f32::from(*level) + delta);
    }
}

/// The 4-bit number `i` of a row of them, low half of a byte first.
fn half_byte(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

impl Block for IQ1_S {
    const TYPE: BlockType = BlockType::IQ1_S;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let high = self.qh[k / 4].get();
            let scale = self.d.get() * f32::from(2 * (high >> 12 & 7) + 1);
            let entry = u16::from(self.qs[k]) | (high >> (3 * (k % 4)) & 7) << 8;
            shifted(values, scale, &IQ1S_GRID[usize::from(entry)], high >> 15 == 1);
        }
    }
}

impl Block for IQ1_M {
    const TYPE: BlockType = BlockType::IQ1_M;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        let d = iq1_m_d(&self.scales);
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let high = u16::from(half_byte(&self.qh, k));
            let scale = d * f32::from(2 * (self.scales[k / 8].get() >> (3 * (k / 2 % 4)) & 7) + 1);
            let entry = u16::from(self.qs[k]) | (high & 7) << 8;
            shifted(values, scale, &IQ1S_GRID[usize::from(entry)], high >> 3 == 1);
        }
    }
}

impl Block for IQ2_XXS {
    const TYPE: BlockType = BlockType::IQ2_XXS;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (sub_block, values) in self.qs.iter().zip(values.chunks_exact_mut(32)) {
            let [a, b, c, d, word @ ..] = *sub_block;
            let word = u32::from_le_bytes(word);
            let scale = self.d.get() * (0.5 + (word >> 28) as f32) * 0.25;
            for (k, (entry, values)) in [a, b, c, d].into_iter().zip(values.chunks_exact_mut(8)).enumerate() {
                let signs = SIGNS[(word >> (7 * k) & 127) as usize];
                signed(values, scale, &IQ2XXS_GRID[usize::from(entry)], signs);
            }
        }
    }
}

impl Block for IQ2_XS {
    const TYPE: BlockType = BlockType::IQ2_XS;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (k, (q, values)) in self.qs.iter().zip(values.chunks_exact_mut(8)).enumerate() {
            let scale = self.d.get() * (0.5 + f32::from(half_byte(&self.scales, k / 2))) * 0.25;
            let (entry, signs) = (q.get() & 511, q.get() >> 9);
            signed(values, scale, &IQ2XS_GRID[usize::from(entry)], SIGNS[usize::from(signs)]);
        }
    }
}

impl Block for IQ2_S {
    const TYPE: BlockType = BlockType::IQ2_S;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let scale = self.d.get() * (0.5 + f32::from(half_byte(&self.scales, k / 2))) * 0.25;
            let high = u16::from(self.qh[k / 4] >> (2 * (k % 4)) & 3);
            let entry = u16::from(self.qs[k]) | high << 8;
            signed(values, scale, &IQ2S_GRID[usize::from(entry)], self.signs[k]);
        }
    }
}

impl Block for IQ3_XXS {
    const TYPE: BlockType = BlockType::IQ3_XXS;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let word = u32::from_le_bytes(self.scales_and_signs[k / 4]);
            let scale = self.d.get() * (0.5 + (word >> 28) as f32) * 0.5;
            let signs = SIGNS[(word >> (7 * (k % 4)) & 127) as usize];
            let (first, second) = values.split_at_mut(4);
            signed(first, scale, &IQ3XXS_GRID[usize::from(self.qs[2 * k])], signs);
            signed(second, scale, &IQ3XXS_GRID[usize::from(self.qs[2 * k + 1])], signs >> 4);
        }
    }
}

impl Block for IQ3_S {
    const TYPE: BlockType = BlockType::IQ3_S;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        for (k, values) in values.chunks_exact_mut(4).enumerate() {
            let scale = self.d.get() * f32::from(2 * half_byte(&self.scales, k / 8) + 1);
            let high = u16::from(self.qh[k / 8] >> (k % 8) & 1);
            let entry = u16::from(self.qs[k]) | high << 8;
            let signs = self.signs[k / 2] >> (4 * (k % 2));
            signed(values, scale, &IQ3S_GRID[usize::from(entry)], signs);
        }
    }
}

/// Unpacks 16 bytes of 4-bit codes into 32 values.
fn non_linear(values: &mut [f32], scale: f32, codes: &[u8]) {
    let (low, high) = values.split_at_mut(codes.len());
    for ((codes, low), high) in codes.iter().zip(low).zip(high) {
        *low = scale * f32::from(IQ4_NL_VALUES[usize::from(codes & 15)]);
        *high = scale * f32::from(IQ4_NL_VALUES[usize::from(codes >> 4)]);
    }
}

impl Block for IQ4_NL {
    const TYPE: BlockType = BlockType::IQ4_NL;
    type Values = [f32; 32];

    fn unpack(&self, values: &mut [f32; 32]) {
        non_linear(values, self.d.get(), &self.qs);
    }
}

impl Block for IQ4_XS {
    const TYPE: BlockType = BlockType::IQ4_XS;
    type Values = [f32; 256];

    fn unpack(&self, values: &mut [f32; 256]) {
        let sub_blocks = values.chunks_exact_mut(32).zip(self.qs.chunks_exact(16));
        for (j, (values, codes)) in sub_blocks.enumerate() {
            non_linear(values, self.d.get() * f32::from(self.scale(j)), codes);
        }
    }
}
