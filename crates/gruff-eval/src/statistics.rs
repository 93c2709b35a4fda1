//! Means with their errors.

use serde::Serialize;

/// A mean and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// One standard error of it; 0 where too few values say nothing about it.
    pub error: f64,
}

/// Sums that a mean and its error follow from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) sum: f64,
    pub(crate) sum2: f64,
}

impl Moments {
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.sum2 += value * value;
    }

    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// The mean with its standard error, sqrt(variance / (n - 1)).
    pub(crate) fn estimate(&self) -> Estimate {
        let mean = self.mean();
        let variance = self.sum2 / self.count.max(1) as f64 - mean * mean;
        let error =
            if self.count > 1 && variance > 0.0 { (variance / (self.count - 1) as f64).sqrt() } else { 0.0 };
        Estimate { value: mean, error }
    }

    /// e to the mean, with its error to first order.
    pub(crate) fn exp(&self) -> Estimate {
        let Estimate { value, error } = self.estimate();
        Estimate { value: value.exp(), error: value.exp() * error }
    }
}

/// A share of `hits` in `count` with its standard error, sqrt(p (1 - p) / (n - 1)).
pub(crate) fn share(hits: u64, count: u64) -> Estimate {
    if count == 0 {
        return Estimate::default();
    }
    let value = hits as f64 / count as f64;
    let error = if count > 1 { (value * (1.0 - value) / (count - 1) as f64).sqrt() } else { 0.0 };
    Estimate { value, error }
}

/// The value below which `fraction` of `sorted` lies, interpolated between neighbours; 0 without values.
pub(crate) fn percentile(sorted: &[f32], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = fraction.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (place as usize, place.fract());
    let value = |index: usize| f64::from(sorted[index.min(last)]);
    (1.0 - part) * value(below) + part * value(below + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_errors() {
        let mut moments = Moments::default();
        assert_eq!(moments.estimate(), Estimate::default());
        for value in [1.0, 2.0, 3.0, 4.0] {
            moments.add(value);
        }
        let Estimate { value, error } = moments.estimate();
        // variance 1.25, over n - 1 = 3
        assert!((value - 2.5).abs() < 1e-12 && (error - (1.25_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!((moments.exp().error - 2.5_f64.exp() * error).abs() < 1e-9);
        assert_eq!(share(1, 2), Estimate { value: 0.5, error: 0.5 });
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        let sorted = [0.0, 10.0, 20.0, 30.0, 40.0];
        for (fraction, expected) in [(0.0, 0.0), (0.5, 20.0), (0.1, 4.0), (1.0, 40.0), (2.0, 40.0)] {
            assert!((percentile(&sorted, fraction) - expected).abs() < 1e-9, "{fraction}");
        }
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(percentile(&[3.0], 0.99), 3.0);
    }
}
