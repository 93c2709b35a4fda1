use std::collections::HashSet;
use std::ops::ControlFlow;

use gruff_gguf::{Gguf, TensorInfo};
use serde::Serialize;

use crate::Result;

/// Values unpacked at a time.
const PIECE: usize = 1 << 20;

/// One tensor of two checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorComparison {
    /// Its name.
    pub name: String,
    /// Its shape in the first checkpoint, row length first; `None` where that has no such tensor.
    pub shape: Option<Vec<u64>>,
    /// Its shape in the second.
    pub other_shape: Option<Vec<u64>>,
    /// Its type in the first.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Its type in the second.
    pub other_type: Option<String>,
    /// How its values differ; `None` where there is nothing to compare, or a type that cannot be unpacked.
    pub errors: Option<TensorErrors>,
}

/// How far the values of a tensor are from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TensorErrors {
    /// The largest absolute difference.
    pub max: f64,
    /// Root mean square difference.
    pub rms: f64,
    /// That, relative to the root mean square of the first; 0 where both are 0.
    pub relative: f64,
    /// Cosine of the angle between both; 1 where both are 0.
    pub cosine: f64,
    /// Places where one is a number and the other is not.
    pub not_finite: u64,
}

impl TensorComparison {
    /// Whether both have it, of one shape.
    pub fn matches(&self) -> bool {
        self.shape.is_some() && self.shape == self.other_shape
    }

    /// The relative error, as a number that a tolerance can be held against: infinite for a tensor that one
    /// lacks, that has another shape, or that cannot be compared.
    pub fn relative(&self) -> f64 {
        match self.errors {
            Some(errors) if errors.not_finite == 0 => errors.relative,
            _ => f64::INFINITY,
        }
    }
}

/// Compares every tensor of `a` with that of the same name in `b`, in the order of `a`'s file; those that only
/// `b` has come last. `on_tensor` hears of each (with how many there are) and may end it there.
///
/// # Errors
/// [`crate::Error::Gguf`] when a file has become shorter while it was read.
pub fn compare_tensors(
    a: &Gguf,
    b: &Gguf,
    mut on_tensor: impl FnMut(&TensorComparison, usize) -> ControlFlow<()>,
) -> Result<Vec<TensorComparison>> {
    let known: HashSet<&str> = a.tensors().map(TensorInfo::name).collect();
    let only_b = b.tensors().filter(|tensor| !known.contains(tensor.name()));
    let pairs: Vec<(Option<&TensorInfo>, Option<&TensorInfo>)> = a
        .tensors()
        .map(|tensor| (Some(tensor), b.tensor(tensor.name())))
        .chain(only_b.map(|tensor| (None, Some(tensor))))
        .collect();
    let mut results = Vec::with_capacity(pairs.len());
    for (mine, other) in &pairs {
        let errors = match (mine, other) {
            (Some(mine), Some(other)) if mine.shape() == other.shape() => compare_values(a, mine, b, other)?,
            _ => None,
        };
        let name = mine.or(*other).map_or_else(String::new, |tensor| tensor.name().to_owned());
        let shape = |tensor: &Option<&TensorInfo>| tensor.map(|tensor| tensor.shape().to_vec());
        let comparison = TensorComparison {
            name,
            shape: shape(mine),
            other_shape: shape(other),
            block_type: mine.map(type_of),
            other_type: other.map(type_of),
            errors,
        };
        let stop = on_tensor(&comparison, pairs.len()).is_break();
        results.push(comparison);
        if stop {
            break;
        }
    }
    Ok(results)
}

fn type_of(tensor: &TensorInfo) -> String {
    match tensor.block_type() {
        Ok(block_type) => block_type.to_string(),
        Err(_) => format!("type {}", tensor.type_id()),
    }
}

/// `None` for a type that this build cannot unpack.
fn compare_values(a: &Gguf, mine: &TensorInfo, b: &Gguf, other: &TensorInfo) -> Result<Option<TensorErrors>> {
    let (Ok(type_a), Ok(type_b)) = (mine.block_type(), other.block_type()) else { return Ok(None) };
    let (data_a, data_b) = (a.data(mine)?, b.data(other)?);
    // Rows are within a mapped file, so their lengths fit.
    let (row, rows) = (mine.row_len() as usize, mine.rows() as usize);
    let (Ok(bytes_a), Ok(bytes_b)) = (type_a.row_bytes(row), type_b.row_bytes(row)) else { return Ok(None) };
    let at_once = (PIECE / row).max(1);
    let mut sums = Sums::default();
    let (mut values_a, mut values_b) = (Vec::new(), Vec::new());
    for first in (0..rows).step_by(at_once) {
        let last = (first + at_once).min(rows);
        values_a.resize((last - first) * row, 0.0);
        values_b.resize((last - first) * row, 0.0);
        let unpacked = [
            type_a.unpack(&data_a[first * bytes_a..last * bytes_a], &mut values_a),
            type_b.unpack(&data_b[first * bytes_b..last * bytes_b], &mut values_b),
        ];
        if unpacked.iter().any(std::result::Result::is_err) {
            return Ok(None);
        }
        values_a.iter().zip(&values_b).for_each(|(a, b)| sums.add(*a, *b));
    }
    Ok(Some(sums.finish()))
}

#[derive(Default)]
struct Sums {
    count: u64,
    not_finite: u64,
    max: f64,
    difference2: f64,
    a2: f64,
    b2: f64,
    ab: f64,
}

impl Sums {
    fn add(&mut self, a: f32, b: f32) {
        self.count += 1;
        if !a.is_finite() || !b.is_finite() {
            // The same infinity, or NaN on both sides, is no difference.
            self.not_finite += u64::from(a != b && !(a.is_nan() && b.is_nan()));
            return;
        }
        let (a, b) = (f64::from(a), f64::from(b));
        let difference = (a - b).abs();
        self.max = self.max.max(difference);
        self.difference2 += difference * difference;
        self.a2 += a * a;
        self.b2 += b * b;
        self.ab += a * b;
    }

    fn finish(self) -> TensorErrors {
        let Self { count, not_finite, max, difference2, a2, b2, ab } = self;
        let relative = match (difference2 == 0.0, a2 == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => (difference2 / a2).sqrt(),
        };
        let lengths = (a2 * b2).sqrt();
        let cosine = if lengths > 0.0 { ab / lengths } else { f64::from(u8::from(a2 == b2)) };
        TensorErrors { max, rms: (difference2 / count.max(1) as f64).sqrt(), relative, cosine, not_finite }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(a: &[f32], b: &[f32]) -> TensorErrors {
        let mut sums = Sums::default();
        a.iter().zip(b).for_each(|(a, b)| sums.add(*a, *b));
        sums.finish()
    }

    #[test]
    fn errors_follow_their_definitions() {
        let TensorErrors { max, rms, relative, cosine, not_finite } = errors(&[3.0, 4.0], &[3.0, 3.0]);
        assert_eq!((max, not_finite), (1.0, 0));
        assert!((rms - 0.5_f64.sqrt()).abs() < 1e-12 && (relative - 0.2).abs() < 1e-12);
        assert!((cosine - 21.0 / (25.0_f64 * 18.0).sqrt()).abs() < 1e-12);
        let zeros = errors(&[0.0, 0.0], &[0.0, 0.0]);
        assert_eq!((zeros.relative, zeros.cosine), (0.0, 1.0));
        let from_zero = errors(&[0.0], &[1.0]);
        assert_eq!((from_zero.relative, from_zero.cosine), (f64::INFINITY, 0.0));
        let odd = errors(&[f32::NAN, f32::INFINITY, 1.0, 2.0], &[f32::NAN, f32::INFINITY, f32::NAN, 2.0]);
        assert_eq!((odd.not_finite, odd.max), (1, 0.0));
    }
}
