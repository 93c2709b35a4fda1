//! Rows of logits as probability distributions, in f64.

/// Whether a logit takes part: neither ruled out nor damaged.
pub(super) fn alive(logit: f32) -> bool {
    !logit.is_nan() && logit != f32::NEG_INFINITY
}

/// The largest logit that takes part.
pub(super) fn largest(logits: &[f32]) -> Option<f32> {
    logits.iter().copied().filter(|x| alive(*x)).reduce(f32::max)
}

/// Natural logarithms of the probabilities, minus infinity for what is ruled out. With logits of plus infinity the
/// distribution is all on those.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let Some(most) = largest(logits) else { return vec![f64::NEG_INFINITY; logits.len()] };
    if most == f32::INFINITY {
        let count = logits.iter().filter(|x| **x == f32::INFINITY).count() as f64;
        let log = |x: &f32| if *x == f32::INFINITY { -count.ln() } else { f64::NEG_INFINITY };
        return logits.iter().map(log).collect();
    }
    // The largest is taken off first: next to a huge logit, the logarithm of the sum would be lost.
    let over = |x: f32| f64::from(x) - f64::from(most);
    let sum: f64 = logits.iter().filter(|x| alive(**x)).map(|x| over(*x).exp()).sum();
    let total = sum.ln();
    let log = |x: &f32| if alive(*x) { over(*x) - total } else { f64::NEG_INFINITY };
    logits.iter().map(log).collect()
}

/// Puts all probability on the logits of plus infinity, where there are any: differences to them are no numbers.
pub(crate) fn only_infinite(logits: &mut [f32]) {
    if logits.contains(&f32::INFINITY) {
        for logit in logits {
            *logit = if *logit == f32::INFINITY { 0.0 } else { f32::NEG_INFINITY };
        }
    }
}

/// Indices of what takes part, most likely first, ties by index.
pub(super) fn descending(logits: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| alive(logits[*id as usize])).collect();
    ids.sort_unstable_by(|a, b| order(logits, *a, *b));
    ids
}

fn order(logits: &[f32], a: u32, b: u32) -> std::cmp::Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// How many of the most likely are sorted first, and by how much that grows while it does not suffice.
const FIRST: usize = 512;
const GROWTH: usize = 16;

/// The first indices of [`descending`], as many as `enough` asks for: it is given the sorted beginning (all of it at
/// the end) and says how many are kept, or `None` for more.
pub(super) fn leading(logits: &[f32], mut enough: impl FnMut(&[u32]) -> Option<usize>) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| alive(logits[*id as usize])).collect();
    let mut count = FIRST;
    let mut sorted = 0;
    while count < ids.len() {
        let rest = &mut ids[sorted..];
        rest.select_nth_unstable_by(count - sorted - 1, |a, b| order(logits, *a, *b));
        rest[..count - sorted].sort_unstable_by(|a, b| order(logits, *a, *b));
        sorted = count;
        if let Some(kept) = enough(&ids[..count]) {
            ids.truncate(kept);
            return ids;
        }
        count *= GROWTH;
    }
    ids[sorted..].sort_unstable_by(|a, b| order(logits, *a, *b));
    let kept = enough(&ids).unwrap_or(ids.len());
    ids.truncate(kept);
    ids
}

/// Keeps the logits of `ids` and rules out the others.
pub(super) fn keep_only(logits: &mut [f32], ids: &[u32]) {
    let kept: Vec<f32> = ids.iter().map(|id| logits[*id as usize]).collect();
    logits.fill(f32::NEG_INFINITY);
    for (id, logit) in ids.iter().zip(kept) {
        logits[*id as usize] = logit;
    }
}

/// Rules out what `keep` does not keep.
pub(super) fn retain(logits: &mut [f32], mut keep: impl FnMut(usize, f32) -> bool) {
    for (id, logit) in logits.iter_mut().enumerate() {
        if !keep(id, *logit) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The value of the `count`-th largest logit that takes part (of the last, when there are fewer).
pub(super) fn nth_largest(logits: &[f32], count: usize) -> Option<f32> {
    let mut values: Vec<f32> = logits.iter().copied().filter(|x| alive(*x)).collect();
    let index = count.min(values.len()).checked_sub(1)?;
    Some(*values.select_nth_unstable_by(index, |a, b| b.total_cmp(a)).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_that_of_the_whole_order() {
        let logits: Vec<f32> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 12) as f32).collect();
        let all = descending(&logits);
        for count in [1, 511, 512, 513, 9_000, 20_000] {
            let leading = leading(&logits, |sorted| (sorted.len() >= count).then_some(count));
            assert_eq!(leading, all[..count]);
        }
    }

    #[test]
    fn probabilities_sum_to_one_whatever_is_ruled_out() {
        let rows: [&[f32]; 4] = [
            &[1.0, 2.0, f32::NEG_INFINITY],
            &[f32::NAN, 3.0, 900.0],
            &[f32::INFINITY, f32::INFINITY, 5.0],
            &[-1e30, -1e30],
        ];
        for row in rows {
            let sum: f64 = log_softmax(row).iter().map(|x| x.exp()).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{row:?}: {sum}");
        }
        assert_eq!(log_softmax(&[f32::NEG_INFINITY]), [f64::NEG_INFINITY]);
    }
}
