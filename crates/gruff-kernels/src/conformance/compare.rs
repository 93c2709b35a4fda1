//! How far two results are apart.

use std::fmt;

use super::Output;

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Every value equal.
    Exact,
    /// Squared error over squared reference, all values together.
    Nmse(f64),
    /// Each value's error over the largest magnitude of its row.
    OfLargest(f64),
    /// Each value's error over its own magnitude (over the least normal f32 where that is larger).
    Relative(f64),
    /// Each value's error.
    Absolute(f64),
}

impl Tolerance {
    /// The measure between a result and the reference's, and whether it is within bounds.
    pub fn judge(self, got: &[Output], expected: &[Output]) -> (f64, bool) {
        let same_form = got.len() == expected.len()
            && got.iter().zip(expected).all(|(a, b)| a.values.len() == b.values.len() && a.width == b.width);
        if !same_form {
            return (f64::INFINITY, false);
        }
        let errors = got.iter().zip(expected).map(|(a, b)| self.measure(a, b));
        let worst = errors.fold(0.0, |worst: f64, error| if error > worst { error } else { worst });
        (worst, worst <= self.bound())
    }

    fn bound(self) -> f64 {
        match self {
            Tolerance::Exact => 0.0,
            Tolerance::Nmse(bound)
            | Tolerance::OfLargest(bound)
            | Tolerance::Relative(bound)
            | Tolerance::Absolute(bound) => bound,
        }
    }

    fn measure(self, got: &Output, expected: &Output) -> f64 {
        let rows = || got.values.chunks(got.width).zip(expected.values.chunks(got.width));
        match self {
            Tolerance::Exact => {
                got.values.iter().zip(&expected.values).filter(|(a, b)| difference(**a, **b) != 0.0).count()
                    as f64
            }
            Tolerance::Nmse(_) => {
                let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
                let pairs = got.values.iter().zip(&expected.values);
                let error = squares(&mut pairs.map(|(a, b)| difference(*a, *b)));
                let finite = expected.values.iter().filter(|v| v.is_finite());
                ratio(error, squares(&mut finite.map(|v| f64::from(*v))))
            }
            Tolerance::OfLargest(_) => largest(rows().map(|(a, b)| {
                let magnitude = largest(b.iter().filter(|v| v.is_finite()).map(|v| f64::from(v.abs())));
                largest(a.iter().zip(b).map(|(a, b)| ratio(difference(*a, *b), magnitude)))
            })),
            Tolerance::Relative(_) => largest(got.values.iter().zip(&expected.values).map(|(a, b)| {
                ratio(difference(*a, *b), f64::from(b.abs()).max(f64::from(f32::MIN_POSITIVE)))
            })),
            Tolerance::Absolute(_) => {
                largest(got.values.iter().zip(&expected.values).map(|(a, b)| difference(*a, *b)))
            }
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Exact => write!(f, "exact"),
            Tolerance::Nmse(bound) => write!(f, "nmse {bound:.0e}"),
            Tolerance::OfLargest(bound) => write!(f, "of largest {bound:.0e}"),
            Tolerance::Relative(bound) => write!(f, "relative {bound:.0e}"),
            Tolerance::Absolute(bound) => write!(f, "absolute {bound:.0e}"),
        }
    }
}

/// The first value whose bits differ between two results, for people.
pub(super) fn first_difference(a: &[Output], b: &[Output]) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} results instead of {}", a.len(), b.len()));
    }
    for (a, b) in a.iter().zip(b) {
        if a.values.len() != b.values.len() {
            return Some(format!("{}: {} values instead of {}", a.name, a.values.len(), b.values.len()));
        }
        let differs = |i: &usize| a.values[*i].to_bits() != b.values[*i].to_bits();
        let differing: Vec<usize> = (0..a.values.len()).filter(differs).collect();
        if let Some(i) = differing.first() {
            let (row, column) = (i / a.width, i % a.width);
            let (x, y) = (a.values[*i], b.values[*i]);
            return Some(format!(
                "{}: {} of {} values differ, first [{row}, {column}]: {x:e} and {y:e}",
                a.name,
                differing.len(),
                a.values.len()
            ));
        }
    }
    None
}

/// 0 for equal values, both NaN and equal infinities included; infinite where only one is finite.
fn difference(a: f32, b: f32) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        0.0
    } else if a.is_finite() && b.is_finite() {
        (f64::from(a) - f64::from(b)).abs()
    } else {
        f64::INFINITY
    }
}

fn ratio(error: f64, magnitude: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / magnitude }
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(values: &[f32]) -> Vec<Output> {
        vec![Output { name: "out", width: 2, values: values.to_vec() }]
    }

    #[test]
    fn measures() {
        let expected = output(&[1.0, 100.0, 0.0, f32::NAN]);
        let close = output(&[1.5, 100.0, 0.0, f32::NAN]);
        assert_eq!(Tolerance::Exact.judge(&close, &expected), (1.0, false));
        assert_eq!(Tolerance::OfLargest(0.01).judge(&close, &expected), (0.005, true));
        assert_eq!(Tolerance::Relative(0.1).judge(&close, &expected), (0.5, false));
        assert_eq!(Tolerance::Nmse(1e-3).judge(&close, &expected), (0.25 / 10001.0, true));
        assert!(!Tolerance::Nmse(1.0).judge(&output(&[1.0, 100.0, 0.0, 0.0]), &expected).1);
        assert!(!Tolerance::Nmse(1.0).judge(&output(&[1.0]), &expected).1);
        assert!(first_difference(&close, &expected).is_some_and(|text| text.contains("1 of 4")));
        assert_eq!(first_difference(&expected, &expected), None);
    }
}
