//! Random blocks that look like weights: for kernel tests and for files of a model's shape without its contents.
//!
//! The blocks are valid and finite, every field of every type takes its full range, and values are spread around zero
//! with a chosen standard deviation. The generator is a counter-based hash: block `n` of a seed is the same however
//! the blocks are divided over calls, threads or machines.

use std::ops::Range;

use bytemuck::{bytes_of, from_bytes};
use half::{bf16, f16};

use crate::block::{F16, U16};
use crate::iq::IQ1_M;
use crate::k_quants::{Q2_K, Q4_K, Q5_K, Q8_K, pack_scale_min_k4, scale_min_k4};
use crate::legacy::Q8_1;
use crate::microscaling::{NVFP4, ue4m3_half};
use crate::ternary::{TQ1_0, TQ2_0};
use crate::{Block, BlockType};

/// Standard deviations of [`random_blocks`], those of weights and of activations.
pub const DEVIATIONS: Range<f32> = 0.02..1.0;

/// Root mean square of the sixteen doubled E2M1 numbers.
const E2M1_RMS: f32 = 5.852;

/// Makes `blocks` random blocks whose standard deviations are spread over [`DEVIATIONS`].
pub fn random_blocks(block_type: BlockType, blocks: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; blocks * block_type.bytes()];
    fill_blocks(block_type, seed, 0, DEVIATIONS, &mut out);
    out
}

/// Fills `out` with blocks `first_block`, `first_block + 1`, .. of the stream that belongs to `seed`.
///
/// The standard deviation of each block is drawn from `deviations` (positive; each octave as likely as another); integers are
/// spread over -111..=111 whatever `deviations` says. Bytes after the last whole block are left alone.
pub fn fill_blocks(
    block_type: BlockType,
    seed: u64,
    first_block: u64,
    deviations: Range<f32>,
    out: &mut [u8],
) {
    // The bits of positive floats are a piecewise linear logarithm, the same on every machine.
    let (low, high) = (deviations.start.to_bits(), deviations.end.to_bits());
    for (index, block) in (first_block..).zip(out.chunks_exact_mut(block_type.bytes())) {
        let mut random = Random::new(seed, index);
        let step = (u64::from(high.saturating_sub(low)) * (random.next() >> 32)) >> 32;
        let deviation = f32::from_bits(low + step as u32);
        fill_block(block_type, deviation, &mut random, block);
    }
}

/// Numbers that depend on a seed, the index of a block and their position alone.
struct Random {
    key: u64,
    count: u64,
}

impl Random {
    fn new(seed: u64, index: u64) -> Self {
        Random { key: mix(mix(seed) ^ index), count: 0 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        mix(self.key.wrapping_add(self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in 0..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 24) as f32
    }

    /// Near-normal with deviation 1, at most 3.47 from 0: the sum of four uniform numbers, scaled.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u32 = (0..4).map(|k| (bits >> (16 * k) & 0xffff) as u32).sum();
        (sum as f32 / 65535.0 - 2.0) * 3_f32.sqrt()
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How to give random bytes a chosen deviation.
struct Scale {
    /// Offset of the f16 scale.
    at: usize,
    /// Root mean square of the unpacked values for random bytes and a scale of 1.
    rms: f32,
    /// Whether quantizers write negative scales too.
    signed: bool,
    /// Offset of the f16 minimum and what it must be, in scales, to centre the values.
    min: Option<(usize, f32)>,
}

/// The scale of types that have one f16 scale a block at a fixed place.
const fn scale_of(block_type: BlockType) -> Option<Scale> {
    let (at, rms, signed, min) = match block_type {
        BlockType::Q4_0 => (0, 4.637, true, None),
        BlockType::Q4_1 => (0, 4.610, false, Some((2, -7.5))),
        BlockType::Q5_0 => (0, 9.247, true, None),
        BlockType::Q5_1 => (0, 9.233, false, Some((2, -15.5))),
        BlockType::Q8_0 | BlockType::Q8_1 => (0, 73.90, false, None),
        BlockType::Q2_K => (80, 9.95, false, Some((82, 1.5))),
        BlockType::Q3_K => (108, 43.34, true, None),
        BlockType::Q4_K => (0, 169.0, false, Some((2, 7.5))),
        BlockType::Q5_K => (0, 339.0, false, Some((2, 15.5))),
        BlockType::Q6_K => (208, 1365.7, true, None),
        BlockType::IQ1_S => (0, 7.2, false, None),
        BlockType::IQ2_XXS => (0, 52.8, false, None),
        BlockType::IQ2_XS => (0, 55.9, false, None),
        BlockType::IQ2_S => (0, 56.0, false, None),
        BlockType::IQ3_XXS => (0, 143.9, false, None),
        BlockType::IQ3_S => (0, 140.5, false, None),
        BlockType::IQ4_NL => (0, 67.7, true, None),
        BlockType::IQ4_XS => (0, 1305.0, true, None),
        BlockType::TQ1_0 => (52, 0.816, false, None),
        BlockType::TQ2_0 => (64, 0.707, false, None),
        BlockType::Q1_0 => (0, 1.0, false, None),
        BlockType::Q2_0 => (0, 1.225, false, None),
        _ => return None,
    };
    Some(Scale { at, rms, signed, min })
}

fn fill_block(block_type: BlockType, deviation: f32, random: &mut Random, block: &mut [u8]) {
    let integer = |random: &mut Random| (random.normal() * 32.0) as i8;
    match block_type {
        BlockType::F32 => put(block, 0, (random.normal() * deviation).to_le_bytes()),
        BlockType::F64 => put(block, 0, f64::from(random.normal() * deviation).to_le_bytes()),
        BlockType::F16 => put(block, 0, f16::from_f32(random.normal() * deviation).to_le_bytes()),
        BlockType::BF16 => put(block, 0, bf16::from_f32(random.normal() * deviation).to_le_bytes()),
        BlockType::I8 => put(block, 0, integer(random).to_le_bytes()),
        BlockType::I16 => put(block, 0, i16::from(integer(random)).to_le_bytes()),
        BlockType::I32 => put(block, 0, i32::from(integer(random)).to_le_bytes()),
        BlockType::I64 => put(block, 0, i64::from(integer(random)).to_le_bytes()),
        _ => {
            random.fill(block);
            if let Some(scale) = scale_of(block_type) {
                set_scale(&scale, deviation, random, block);
            }
            repair(block_type, deviation, random, block);
        }
    }
}

fn put<const N: usize>(block: &mut [u8], at: usize, bytes: [u8; N]) {
    block[at..at + N].copy_from_slice(&bytes);
}

fn set_scale(scale: &Scale, deviation: f32, random: &mut Random, block: &mut [u8]) {
    let negative = scale.signed && random.next() & 1 == 1;
    let d = deviation / scale.rms * if negative { -1.0 } else { 1.0 };
    put(block, scale.at, F16::from(d).0);
    if let Some((at, factor)) = scale.min {
        put(block, at, F16::from(d * factor).0);
    }
}

/// Brings the fields that depend on each other, or have no f16 scale, into agreement.
fn repair(block_type: BlockType, deviation: f32, random: &mut Random, block: &mut [u8]) {
    match block_type {
        BlockType::Q8_1 => edit(block, |block: &mut Q8_1| {
            let sum: i32 = block.qs.iter().map(|q| i32::from(*q)).sum();
            block.s = F16::from(block.d.get() * sum as f32);
        }),
        BlockType::Q8_K => edit(block, |block: &mut Q8_K| {
            block.d = (deviation / 73.9).to_le_bytes();
            for (sum, quants) in block.bsums.iter_mut().zip(block.qs.chunks_exact(16)) {
                *sum = quants.iter().map(|q| i16::from(*q)).sum::<i16>().to_le_bytes();
            }
        }),
        BlockType::Q2_K => edit(block, |block: &mut Q2_K| {
            for byte in &mut block.scales {
                *byte = *byte & 15 | near(*byte & 15, 1, 15, random) << 4;
            }
        }),
        BlockType::Q4_K => edit(block, |block: &mut Q4_K| follow_scales(&mut block.scales, random)),
        BlockType::Q5_K => edit(block, |block: &mut Q5_K| follow_scales(&mut block.scales, random)),
        BlockType::IQ1_M => edit(block, |block: &mut IQ1_M| {
            let bits = f16::from_f32(deviation / 7.2).to_bits();
            for (k, word) in block.scales.iter_mut().enumerate() {
                *word = U16((word.get() & 0x0fff | (bits >> (4 * k) & 15) << 12).to_le_bytes());
            }
        }),
        BlockType::TQ1_0 => edit(block, |block: &mut TQ1_0| {
            // Five digits are a number below 243, stored as 256ths rounded up; four digits are followed by a zero.
            for byte in &mut block.qs {
                *byte = fraction(u16::from(*byte) * 243 / 256);
            }
            for byte in &mut block.qh {
                *byte = fraction(u16::from(*byte) * 81 / 256 * 3);
            }
        }),
        BlockType::TQ2_0 => edit(block, |block: &mut TQ2_0| {
            for byte in &mut block.qs {
                let threes = *byte & *byte >> 1 & 0x55;
                *byte &= !(threes << 1);
            }
        }),
        BlockType::MXFP4 => {
            // The exponent field of an f32 is that of E8M0; halved scales shift it by one, and sqrt 2 rounds.
            let bits = (deviation / E2M1_RMS * std::f32::consts::SQRT_2).to_bits();
            block[0] = ((bits >> 23) + 1).min(254) as u8;
        }
        BlockType::NVFP4 => edit(block, |block: &mut NVFP4| {
            for code in &mut block.d {
                let scale = deviation / E2M1_RMS * (0.5 + random.unit());
                *code = nearest_ue4m3(scale);
            }
        }),
        _ => {}
    }
}

fn edit<B: Block>(block: &mut [u8], change: impl FnOnce(&mut B)) {
    let mut copy: B = *from_bytes(block);
    change(&mut copy);
    block.copy_from_slice(bytes_of(&copy));
}

/// A number within `distance` of `x` and within 0..=`top`.
fn near(x: u8, distance: u8, top: u8, random: &mut Random) -> u8 {
    let step = (random.next() % (2 * u64::from(distance) + 1)) as u8;
    (x + step).saturating_sub(distance).min(top)
}

/// Makes the eight minima follow the scales, so that values stay centred.
fn follow_scales(packed: &mut [u8; 12], random: &mut Random) {
    let scales = std::array::from_fn(|j| scale_min_k4(packed, j).0);
    let mins = scales.map(|scale| near(scale, 3, 63, random));
    *packed = pack_scale_min_k4(&scales, &mins);
}

fn fraction(digits: u16) -> u8 {
    (digits * 256).div_ceil(243) as u8
}

/// The positive code whose halved scale is the largest not above `scale`.
fn nearest_ue4m3(scale: f32) -> u8 {
    (1..=0x7e).rev().find(|code| ue4m3_half(*code) <= scale).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rms(values: &[f32]) -> f32 {
        (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64).sqrt() as f32
    }

    #[test]
    fn blocks_have_the_deviation_asked_for() {
        for block_type in BlockType::ALL {
            let mut packed = vec![0; 20_480 / block_type.values() * block_type.bytes()];
            fill_blocks(*block_type, 3, 0, 0.25..0.25, &mut packed);
            let values = block_type.unpack_to_vec(&packed).unwrap();
            assert!(values.iter().all(|v| v.is_finite()), "{block_type}");
            let (got, mean) = (rms(&values), values.iter().sum::<f32>() / values.len() as f32);
            let integer =
                matches!(*block_type, BlockType::I8 | BlockType::I16 | BlockType::I32 | BlockType::I64);
            let (want, slack) = match *block_type {
                _ if integer => (32.0, 0.05),
                BlockType::MXFP4 => (0.25, 0.42),
                BlockType::NVFP4 => (0.25, 0.10),
                _ => (0.25, 0.05),
            };
            assert!((got / want - 1.0).abs() < slack, "{block_type}: deviation {got}, not {want}");
            let centred = *block_type == BlockType::Q2_0 || mean.abs() < 0.1 * got;
            assert!(centred, "{block_type}: mean {mean} with deviation {got}");
        }
    }

    #[test]
    fn a_block_does_not_depend_on_the_division() {
        for block_type in BlockType::ALL {
            let whole = random_blocks(*block_type, 9, 11);
            let mut part = vec![0; 4 * block_type.bytes()];
            fill_blocks(*block_type, 11, 5, DEVIATIONS, &mut part);
            assert_eq!(part, whole[5 * block_type.bytes()..], "{block_type}");
            assert_ne!(whole, random_blocks(*block_type, 9, 12), "{block_type}");
        }
    }

    #[test]
    fn dependent_fields_agree() {
        let packed = random_blocks(BlockType::Q8_K, 4, 1);
        for block in bytemuck::cast_slice::<u8, Q8_K>(&packed) {
            for (sum, quants) in block.bsums.iter().zip(block.qs.chunks_exact(16)) {
                assert_eq!(i16::from_le_bytes(*sum), quants.iter().map(|q| i16::from(*q)).sum::<i16>());
            }
        }
    }
}
