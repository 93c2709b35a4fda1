//! From `f32` to packed blocks, by plain rounding, for the types where that is a sound thing to do.
//!
//! The legacy types come out bit-equal to those of the `gguf` Python package. `Q4_K`, `Q5_K` and `Q6_K` take the range of each
//! sub-block as it is, without the search for better scales that a quantizer of checkpoints makes.

use half::{bf16, f16};

use crate::arrange::{fifth_bits, fifth_bits_k5, nibbles, nibbles_k4, six_bits};
use crate::block::F16;
use crate::k_quants::{Q4_K, Q5_K, Q6_K, SUPER_BLOCK, pack_scale_min_k4};
use crate::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::{Block, BlockType, Error};

impl BlockType {
    /// Packs `f32` values into whole blocks, rounding each to the nearest value its block can hold.
    ///
    /// Values must be finite; others are packed as arbitrary numbers.
    ///
    /// # Errors
    /// [`Error::Length`] unless `out` is a whole number of blocks that hold exactly `values.len()` values;
    /// [`Error::CannotPack`] for a type other than `F32`, `F64`, `F16`, `BF16`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`,
    /// `Q4_K`, `Q5_K` and `Q6_K`.
    pub fn pack(self, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
        self.check_lengths(out.len(), values.len())?;
        match self {
            BlockType::F32 => each(values, out, f32::to_le_bytes),
            BlockType::F64 => each(values, out, |value| f64::from(value).to_le_bytes()),
            BlockType::F16 => each(values, out, |value| f16::from_f32(value).to_le_bytes()),
            BlockType::BF16 => each(values, out, |value| bf16::from_f32(value).to_le_bytes()),
            BlockType::Q4_0 => blocks(values, out, q4_0),
            BlockType::Q4_1 => blocks(values, out, q4_1),
            BlockType::Q5_0 => blocks(values, out, q5_0),
            BlockType::Q5_1 => blocks(values, out, q5_1),
            BlockType::Q8_0 => blocks(values, out, q8_0),
            BlockType::Q4_K => blocks(values, out, q4_k),
            BlockType::Q5_K => blocks(values, out, q5_k),
            BlockType::Q6_K => blocks(values, out, q6_k),
            _ => return Err(Error::CannotPack { block_type: self }),
        }
        Ok(())
    }
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
    for (value, bytes) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *bytes = convert(*value);
    }
}

fn blocks<B: Block>(values: &[f32], out: &mut [u8], pack: impl Fn(&B::Values) -> B) {
    let values: &[B::Values] = bytemuck::cast_slice(values);
    let out: &mut [B] = bytemuck::cast_slice_mut(out);
    for (values, block) in values.iter().zip(out) {
        *block = pack(values);
    }
}

/// `1 / x`, or 0 for 0: multiplying by it sends an all-zero block to zeros.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value furthest from 0, the first of several.
pub(crate) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, value| if value.abs() > best.abs() { *value } else { best })
}

/// Smallest and largest value.
fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)))
}

/// Quants of a legacy block around zero: the extreme value becomes the lowest quant, -`half`.
fn symmetric(values: &[f32; 32], half: u8) -> (f32, [u8; 32]) {
    let d = extreme(values) / -f32::from(half);
    let id = inverse(d);
    let q = values.map(|value| ((value * id + f32::from(half) + 0.5) as u8).min(2 * half - 1));
    (d, q)
}

/// Quants of a legacy block from its smallest value (0) to its largest (`top`).
fn affine(values: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let (low, high) = range(values);
    let d = (high - low) / f32::from(top);
    let id = inverse(d);
    let q = values.map(|value| (((value - low) * id + 0.5) as u8).min(top));
    (d, low, q)
}

fn q4_0(values: &[f32; 32]) -> Q4_0 {
    let (d, q) = symmetric(values, 8);
    Q4_0 { d: F16::from(d), qs: nibbles(&q) }
}

fn q4_1(values: &[f32; 32]) -> Q4_1 {
    let (d, m, q) = affine(values, 15);
    Q4_1 { d: F16::from(d), m: F16::from(m), qs: nibbles(&q) }
}

fn q5_0(values: &[f32; 32]) -> Q5_0 {
    let (d, q) = symmetric(values, 16);
    Q5_0 { d: F16::from(d), qh: fifth_bits(&q), qs: nibbles(&q) }
}

fn q5_1(values: &[f32; 32]) -> Q5_1 {
    let (d, m, q) = affine(values, 31);
    Q5_1 { d: F16::from(d), m: F16::from(m), qh: fifth_bits(&q), qs: nibbles(&q) }
}

fn q8_0(values: &[f32; 32]) -> Q8_0 {
    let d = extreme(values).abs() / 127.0;
    let id = inverse(d);
    Q8_0 { d: F16::from(d), qs: values.map(|value| (value * id).round() as i8) }
}

/// What Q4_K and Q5_K share: scales, minima and quants (0..=`top`) of eight sub-blocks of 32.
fn affine_k4(values: &[f32; SUPER_BLOCK], top: u8) -> (F16, F16, [u8; 12], [u8; SUPER_BLOCK]) {
    let sub_blocks: [(f32, f32); 8] = std::array::from_fn(|j| {
        let (low, high) = range(&values[32 * j..32 * (j + 1)]);
        let low = low.min(0.0);
        ((high - low).max(0.0) / f32::from(top), -low)
    });
    let (top_scale, top_min) =
        sub_blocks.iter().fold((0.0_f32, 0.0_f32), |(s, m), b| (s.max(b.0), m.max(b.1)));
    let (d, dmin) = (F16::from(top_scale / 63.0), F16::from(top_min / 63.0));
    let (id, idmin) = (inverse(d.get()), inverse(dmin.get()));
    let scales = sub_blocks.map(|(scale, _)| ((scale * id).round() as u8).min(63));
    let mins = sub_blocks.map(|(_, min)| ((min * idmin).round() as u8).min(63));
    let q = std::array::from_fn(|i| {
        let scale = d.get() * f32::from(scales[i / 32]);
        let min = dmin.get() * f32::from(mins[i / 32]);
        (((values[i] + min) * inverse(scale)).round() as u8).min(top)
    });
    (d, dmin, pack_scale_min_k4(&scales, &mins), q)
}

fn q4_k(values: &[f32; SUPER_BLOCK]) -> Q4_K {
    let (d, dmin, scales, q) = affine_k4(values, 15);
    Q4_K { d, dmin, scales, qs: nibbles_k4(&q) }
}

fn q5_k(values: &[f32; SUPER_BLOCK]) -> Q5_K {
    let (d, dmin, scales, q) = affine_k4(values, 31);
    Q5_K { d, dmin, scales, qh: fifth_bits_k5(&q), qs: nibbles_k4(&q) }
}

fn q6_k(values: &[f32; SUPER_BLOCK]) -> Q6_K {
    let steps: [f32; 16] = std::array::from_fn(|j| extreme(&values[16 * j..16 * (j + 1)]) / -32.0);
    let d = F16::from(extreme(&steps) / -128.0);
    let id = inverse(d.get());
    let scales = steps.map(|step| (step * id).round() as i8);
    let q = std::array::from_fn(|i| {
        let step = d.get() * f32::from(scales[i / 16]);
        ((values[i] * inverse(step)).round().clamp(-32.0, 31.0) + 32.0) as u8
    });
    let (ql, qh) = six_bits(&q);
    Q6_K { ql, qh, scales, d }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    /// Largest error of a packed value, as a share of the largest value.
    const BOUNDS: &[(BlockType, f32)] = &[
        (BlockType::F32, 0.0),
        (BlockType::F64, 0.0),
        (BlockType::F16, 1.0 / 2048.0),
        (BlockType::BF16, 1.0 / 256.0),
        (BlockType::Q4_0, 1.0 / 7.9),
        (BlockType::Q4_1, 1.0 / 14.0),
        (BlockType::Q5_0, 1.0 / 15.9),
        (BlockType::Q5_1, 1.0 / 30.0),
        (BlockType::Q8_0, 1.0 / 220.0),
        (BlockType::Q4_K, 1.0 / 10.0),
        (BlockType::Q5_K, 1.0 / 16.0),
        (BlockType::Q6_K, 1.0 / 28.0),
    ];

    #[test]
    fn packed_values_are_near() {
        let values =
            BlockType::F32.unpack_to_vec(&synthetic::random_blocks(BlockType::F32, 4096, 7)).unwrap();
        for (block_type, bound) in BOUNDS {
            let mut packed = vec![0; block_type.row_bytes(values.len()).unwrap()];
            block_type.pack(&values, &mut packed).unwrap();
            let unpacked = block_type.unpack_to_vec(&packed).unwrap();
            for (before, after) in values.chunks(SUPER_BLOCK).zip(unpacked.chunks(SUPER_BLOCK)) {
                let largest = extreme(before).abs();
                for (a, b) in before.iter().zip(after) {
                    assert!(
                        (a - b).abs() <= bound * largest,
                        "{block_type}: {a} became {b} (largest {largest})"
                    );
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        for (block_type, _) in BOUNDS {
            let mut packed = vec![255; block_type.bytes() * 256 / block_type.values()];
            block_type.pack(&[0.0; 256], &mut packed).unwrap();
            assert!(block_type.unpack_to_vec(&packed).unwrap().iter().all(|v| *v == 0.0), "{block_type}");
        }
    }

    #[test]
    fn other_types_are_named() {
        let error = BlockType::IQ2_XS.pack(&[0.0; 256], &mut [0; 74]).unwrap_err();
        assert!(error.to_string().contains("IQ2_XS"), "{error}");
        assert!(BlockType::Q4_0.pack(&[0.0; 32], &mut [0; 17]).is_err());
    }
}
