//! From `f32` to packed blocks, with the search for good scales that a quantizer of checkpoints makes.
//!
//! Every type is a weighted least-squares problem: find the fields of a block so that `sum(w (x - unpacked)^2)` is
//! small. Without importance the weights come from the values alone (errors in large weights cost more); with it, each
//! column of the matrix has a weight of its own, the mean square of the activations that it is multiplied with.

mod coarse;
mod iq;
mod iq1;
mod iq23;
mod k_quants;
mod lattice;
mod legacy;
mod levels;
mod search;

use std::borrow::Cow;

use crate::{Block, BlockType, Error};

/// Share of the mean importance that every column has at least, so that no value is free.
const LEAST_IMPORTANCE: f32 = 1e-6;

/// The largest number of NVFP4: 6, times the largest UE4M3 scale.
const NVFP4_LARGEST: f32 = 6.0 * 448.0;

impl BlockType {
    /// Whether [`quantize`](Self::quantize) makes blocks of this type: all but the integers.
    pub fn can_quantize(self) -> bool {
        !matches!(self, BlockType::I8 | BlockType::I16 | BlockType::I32 | BlockType::I64)
    }

    /// Packs whole rows of `row` values, searching for the scales that lose least.
    ///
    /// `importance` has a weight for each column of the rows: the mean square of the activations there (an importance
    /// matrix). It must be finite and not negative. `F16`, `BF16`, `Q8_0`, `Q8_1` and `Q8_K` have nothing to
    /// weigh and ignore it. `F32`, `F16`, `BF16`, and without importance `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1` and `Q8_0`, come out as of
    /// [`pack`](Self::pack). Results depend on nothing but the arguments; a row's result on nothing but that row.
    ///
    /// # Errors
    /// [`Error::RowLength`] when a row is not whole blocks, [`Error::Length`] when `out` does not hold exactly the
    /// values, [`Error::NotFinite`] when a value is infinite or not a number, [`Error::TooLarge`] when one is beyond
    /// what the type's scales reach, [`Error::Importance`] when the importance has the wrong length or holds such a
    /// number, [`Error::CannotPack`] for an integer type.
    pub fn quantize(
        self,
        values: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), Error> {
        if row == 0 || !row.is_multiple_of(self.values()) || !values.len().is_multiple_of(row) {
            return Err(Error::RowLength { block_type: self, values: row });
        }
        self.check_lengths(out.len(), values.len())?;
        check_finite(values)?;
        let importance = importance.map(|importance| prepare(importance, row)).transpose()?;
        let importance = importance.as_deref();
        match (self, importance) {
            (BlockType::Q4_0, Some(importance)) => weighted(values, importance, out, legacy::q4_0),
            (BlockType::Q4_1, Some(importance)) => weighted(values, importance, out, legacy::q4_1),
            (BlockType::Q5_0, Some(importance)) => weighted(values, importance, out, legacy::q5_0),
            (BlockType::Q5_1, Some(importance)) => weighted(values, importance, out, legacy::q5_1),
            (BlockType::Q8_1, _) => rows(values, None, out, |x, _| legacy::q8_1(x)),
            (BlockType::Q8_K, _) => rows(values, None, out, |x, _| k_quants::q8_k(x)),
            (BlockType::Q2_K, _) => rows(values, importance, out, k_quants::q2_k),
            (BlockType::Q3_K, _) => rows(values, importance, out, k_quants::q3_k),
            (BlockType::Q4_K, _) => rows(values, importance, out, k_quants::q4_k),
            (BlockType::Q5_K, _) => rows(values, importance, out, k_quants::q5_k),
            (BlockType::Q6_K, _) => rows(values, importance, out, k_quants::q6_k),
            (BlockType::IQ1_S, _) => rows(values, importance, out, iq1::iq1_s),
            (BlockType::IQ1_M, _) => rows(values, importance, out, iq1::iq1_m),
            (BlockType::IQ2_XXS, _) => rows(values, importance, out, iq23::iq2_xxs),
            (BlockType::IQ2_XS, _) => rows(values, importance, out, iq23::iq2_xs),
            (BlockType::IQ2_S, _) => rows(values, importance, out, iq23::iq2_s),
            (BlockType::IQ3_XXS, _) => rows(values, importance, out, iq23::iq3_xxs),
            (BlockType::IQ3_S, _) => rows(values, importance, out, iq23::iq3_s),
            (BlockType::IQ4_NL, _) => rows(values, importance, out, levels::iq4_nl),
            (BlockType::IQ4_XS, _) => rows(values, importance, out, levels::iq4_xs),
            (BlockType::TQ1_0, _) => rows(values, importance, out, coarse::tq1_0),
            (BlockType::TQ2_0, _) => rows(values, importance, out, coarse::tq2_0),
            (BlockType::MXFP4, _) => rows(values, importance, out, levels::mxfp4),
            (BlockType::NVFP4, _) => rows(values, importance, out, levels::nvfp4),
            (BlockType::Q1_0, _) => rows(values, importance, out, coarse::q1_0),
            (BlockType::Q2_0, _) => rows(values, importance, out, coarse::q2_0),
            _ => self.pack(values, out)?,
        }
        self.check_scales(values, out)
    }

    /// Refuses blocks whose scale overflowed. Only values beyond 1000 can be the cause: scales hold 65504.
    fn check_scales(self, values: &[f32], out: &[u8]) -> Result<(), Error> {
        const HARMLESS: f32 = 1000.0;
        let mut unpacked = vec![0.0; self.values()];
        for (at, (values, block)) in
            values.chunks_exact(self.values()).zip(out.chunks_exact(self.bytes())).enumerate()
        {
            let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
            if largest <= HARMLESS {
                continue;
            }
            self.unpack(block, &mut unpacked)?;
            // Sums of squares overflow before scales do: then nothing is left of the block.
            let lost = unpacked.iter().all(|value| *value == 0.0);
            let saturated = self == BlockType::NVFP4 && largest > NVFP4_LARGEST;
            if lost || saturated || !all_finite(&unpacked) {
                let value = largest.to_string();
                return Err(Error::TooLarge { block_type: self, at: at * self.values(), value });
            }
        }
        Ok(())
    }
}

/// Checks that every value is a finite number.
///
/// # Errors
/// [`Error::NotFinite`] names the first that is not.
pub fn check_finite(values: &[f32]) -> Result<(), Error> {
    if all_finite(values) {
        return Ok(());
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::NotFinite { at, value: values[at].to_string() }),
        None => Ok(()),
    }
}

fn all_finite(values: &[f32]) -> bool {
    // Without branches: a value times zero is zero, or not a number.
    let (lanes, rest) = values.as_chunks::<8>();
    let mut zeros = [0.0_f32; 8];
    for values in lanes {
        for (zero, value) in zeros.iter_mut().zip(values) {
            *zero += value * 0.0;
        }
    }
    zeros.iter().chain(rest).all(|value| value.is_finite())
}

/// Checks an importance row and lifts its zeros.
fn prepare(importance: &[f32], row: usize) -> Result<Cow<'_, [f32]>, Error> {
    if importance.len() != row {
        let fault = format!("has {} columns where rows have {row}", importance.len());
        return Err(Error::Importance { fault });
    }
    if let Some(at) = importance.iter().position(|value| !value.is_finite() || *value < 0.0) {
        let fault = format!("is {} in column {at}", importance[at]);
        return Err(Error::Importance { fault });
    }
    let mean = importance.iter().map(|value| f64::from(*value)).sum::<f64>() / row as f64;
    let least = mean as f32 * LEAST_IMPORTANCE;
    if least <= 0.0 {
        // Nothing was ever multiplied with these rows: all columns alike.
        return Ok(Cow::Owned(vec![1.0; row]));
    }
    if importance.iter().all(|value| *value >= least) {
        return Ok(Cow::Borrowed(importance));
    }
    Ok(Cow::Owned(importance.iter().map(|value| value.max(least)).collect()))
}

/// Packs each block of each row with the importance of its columns, if there is any.
fn rows<B: Block>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    quantize: impl Fn(&B::Values, Option<&B::Values>) -> B,
) {
    match importance {
        Some(importance) => weighted(values, importance, out, |x, importance| quantize(x, Some(importance))),
        None => {
            let values: &[B::Values] = bytemuck::cast_slice(values);
            let out: &mut [B] = bytemuck::cast_slice_mut(out);
            for (x, block) in values.iter().zip(out) {
                *block = quantize(x, None);
            }
        }
    }
}

/// Packs each block of each row with the importance of its columns.
fn weighted<B: Block>(
    values: &[f32],
    importance: &[f32],
    out: &mut [u8],
    quantize: impl Fn(&B::Values, &B::Values) -> B,
) {
    let values: &[B::Values] = bytemuck::cast_slice(values);
    let importance: &[B::Values] = bytemuck::cast_slice(importance);
    let out: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, importance), block) in values.iter().zip(importance.iter().cycle()).zip(out) {
        *block = quantize(x, importance);
    }
}

/// The mean of the squares.
fn mean_square<const N: usize>(values: &[f32; N]) -> f32 {
    let [sum] = search::sums::<N, 1>(|i| [values[i] * values[i]]);
    sum / N as f32
}

#[cfg(test)]
mod tests;
