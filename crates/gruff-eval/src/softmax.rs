//! Log-probabilities of rows of logits.

use std::num::NonZeroUsize;
use std::thread;

/// What turns a row of logits into log-probabilities: `ln p(i) = logits[i] - max - ln_sum`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSoftmax {
    /// The highest logit.
    pub(crate) max: f32,
    /// The first id that has it.
    pub(crate) top: usize,
    /// ln of the sum of `exp(logit - max)`.
    pub(crate) ln_sum: f64,
}

impl LogSoftmax {
    /// `None` when the row is empty or a value is not finite. The sum is in f64.
    pub(crate) fn new(logits: &[f32]) -> Option<Self> {
        let (mut top, mut max) = (0, *logits.first()?);
        for (id, &logit) in logits.iter().enumerate() {
            if logit > max {
                (top, max) = (id, logit);
            }
        }
        let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
        // A NaN anywhere makes the sum NaN; an infinite maximum makes it NaN too.
        sum.is_finite().then(|| Self { max, top, ln_sum: sum.ln() })
    }

    /// ln p of an id with this logit.
    pub(crate) fn log_prob(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.max) - self.ln_sum
    }
}

/// Calls `row(i, logits)` for each row of `width` logits, several at a time, and gives the results in order.
pub(crate) fn map_rows<T: Send>(
    logits: &[f32],
    width: usize,
    row: impl Fn(usize, &[f32]) -> T + Sync,
) -> Vec<T> {
    let rows = logits.len() / width.max(1);
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(rows).max(1);
    let share = rows.div_ceil(threads).max(1);
    let row = &row;
    thread::scope(|scope| {
        let parts: Vec<_> = logits
            .chunks(share * width.max(1))
            .enumerate()
            .map(|(part, logits)| {
                scope.spawn(move || {
                    let rows = logits.chunks_exact(width).enumerate();
                    rows.map(|(i, logits)| row(part * share + i, logits)).collect::<Vec<T>>()
                })
            })
            .collect();
        let results = parts.into_iter().map(|part| match part.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_sum_to_one() {
        let logits = [1.0_f32, 3.0, -2.0, 3.0];
        let softmax = LogSoftmax::new(&logits).unwrap();
        assert_eq!((softmax.top, softmax.max), (1, 3.0));
        let sum: f64 = logits.iter().map(|logit| softmax.log_prob(*logit).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        for bad in
            [&[][..], &[f32::NAN, 1.0], &[1.0, f32::NAN], &[f32::INFINITY, 1.0], &[f32::NEG_INFINITY; 2]]
        {
            assert!(LogSoftmax::new(bad).is_none(), "{bad:?}");
        }
        assert!(LogSoftmax::new(&[f32::NEG_INFINITY, 1.0]).is_some(), "a token may be ruled out");
    }

    #[test]
    fn rows_keep_their_order() {
        for rows in [0, 1, 2, 3, 7, 64] {
            let logits: Vec<f32> = (0..rows * 3).map(|value| value as f32).collect();
            let firsts = map_rows(&logits, 3, |index, row| (index, row[0]));
            let expected: Vec<(usize, f32)> = (0..rows).map(|row| (row, (row * 3) as f32)).collect();
            assert_eq!(firsts, expected);
        }
    }
}
