//! Rounding of activations to int8: the definition that every device follows.

/// Values that share a scale when activations are rounded to int8.
pub const Q8_BLOCK: usize = 32;

/// Values that kernels keep together: a K-quant's super-block.
pub(crate) const Q8_GROUP: usize = 256;

/// How far a block's largest magnitude may stand above the row: its square over the row's mean square.
const LOUD: f32 = 16.0;

/// The largest magnitude of a rounded value.
const Q8_MAX: f32 = 127.0;

/// The bar of [`is_loud`] for the blocks of a row: 16 times its mean square.
///
/// Squares are added in f32, value k to sum `k mod 8` in order of k, and the sums in their order.
pub fn loud_bar(row: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (eights, rest) = row.as_chunks::<8>();
    for eight in eights {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += value * value;
    }
    LOUD * (sums.iter().sum::<f32>() / row.len() as f32)
}

/// Whether a block needs a second term, by its largest magnitude: its square is above the row's bar.
pub fn is_loud(largest: f32, bar: f32) -> bool {
    // A row with a NaN or an infinity, or whose squares overflow, has a bar that nothing is above.
    largest * largest > bar
}

/// Rounds a row of activations: calls `term(first, scale, quants)` for each block of up to [`Q8_BLOCK`] values, whose
/// first is value `first` of the row, and if the block is loud a second time, with what the first rounding left. The
/// value is the sum of the terms, `scale * quant` each.
pub fn round_row(row: &[f32], mut term: impl FnMut(usize, f32, &[i8])) {
    let bar = loud_bar(row);
    for (index, values) in row.chunks(Q8_BLOCK).enumerate() {
        let mut round = |values: &[f32]| {
            let mut quants = [0; Q8_BLOCK];
            let quants = &mut quants[..values.len()];
            let scale = round_block(values, quants);
            term(index * Q8_BLOCK, scale, quants);
        };
        round(values);
        let largest = magnitude(values);
        if is_loud(largest, bar) {
            let mut rest = [0f32; Q8_BLOCK];
            let rest = &mut rest[..values.len()];
            remainder(values, largest, rest);
            round(rest);
        }
    }
}

/// The largest magnitude.
pub(crate) fn magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |largest, value| largest.max(value.abs()))
}

/// What [`round_block`] leaves of a block whose largest magnitude is `largest`: `value - scale * quant`, a product and
/// a difference in f32.
#[inline(always)]
pub(crate) fn remainder(values: &[f32], largest: f32, out: &mut [f32]) {
    let (inverse, scale) = (Q8_MAX / largest, largest / Q8_MAX);
    let (inverse, scale) = if inverse.is_finite() { (inverse, scale) } else { (0.0, 0.0) };
    for (out, value) in out.iter_mut().zip(values) {
        *out = value - scale * (value * inverse).round_ties_even();
    }
}

/// Rounds a block of up to [`Q8_BLOCK`] activations to int8 and returns the scale: `x ~ scale * q`.
///
/// With `m` the largest magnitude: `scale = m / 127`, `q = round(x * (127 / m))`, ties to even, all in f32; a
/// block of zeros has scale 0. A block that holds a NaN or an infinity gets scale NaN and zeros, so that the
/// fault shows in the result instead of vanishing.
pub fn round_block(values: &[f32], quants: &mut [i8]) -> f32 {
    debug_assert!(values.len() == quants.len() && values.len() <= Q8_BLOCK);
    let finite = values.iter().all(|value| value.is_finite());
    let largest = magnitude(values);
    if !finite || largest == 0.0 {
        quants.fill(0);
        return if finite { 0.0 } else { f32::NAN };
    }
    let inverse = Q8_MAX / largest;
    if !inverse.is_finite() {
        // Subnormal magnitudes: nothing a product could resolve.
        quants.fill(0);
        return 0.0;
    }
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = (value * inverse).round_ties_even() as i8;
    }
    largest / Q8_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even_and_keeps_the_largest() {
        let values = [127.0, -127.0, 0.5, 1.5, 2.5, -0.5, 0.0, 126.6];
        let mut quants = [0; 8];
        assert_eq!(round_block(&values, &mut quants), 1.0);
        assert_eq!(quants, [127, -127, 0, 2, 2, 0, 0, 127]);
    }

    /// The row that the terms add up to, and how many terms there are.
    fn sum_of_terms(row: &[f32]) -> (Vec<f32>, usize) {
        let (mut out, mut terms) = (vec![0f32; row.len()], 0);
        round_row(row, |first, scale, quants| {
            terms += 1;
            out[first..].iter_mut().zip(quants).for_each(|(out, quant)| *out += scale * f32::from(*quant));
        });
        (out, terms)
    }

    fn error(row: &[f32]) -> f32 {
        let (rounded, _) = sum_of_terms(row);
        row.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn a_loud_block_has_a_second_term() {
        let quiet: Vec<f32> = (0..600).map(|i| (i as f32 * 0.37).sin()).collect();
        assert_eq!(sum_of_terms(&quiet).1, 600_usize.div_ceil(32));
        let mut loud = quiet.clone();
        loud[300] = 60.0;
        assert_eq!(sum_of_terms(&loud).1, 600_usize.div_ceil(32) + 1);
        assert!(error(&loud) < 2.0 * error(&quiet), "{} {}", error(&loud), error(&quiet));
        // Without it a value of that block would be off by up to half of 60 / 127.
        let mut last = quiet.clone();
        last[599] = -90.0;
        assert_eq!(sum_of_terms(&last).1, 600_usize.div_ceil(32) + 1);
    }

    #[test]
    fn faults_and_overflow_are_not_loud() {
        for fault in [f32::NAN, f32::INFINITY, 1e30] {
            let mut row = vec![0.5; 256];
            row[7] = fault;
            assert_eq!(sum_of_terms(&row).1, 8);
        }
        assert_eq!(sum_of_terms(&[0.0; 256]).1, 8);
        assert_eq!(sum_of_terms(&[]).1, 0);
    }

    #[test]
    fn zeros_subnormals_and_faults() {
        let mut quants = [1; 4];
        assert_eq!(round_block(&[0.0; 4], &mut quants), 0.0);
        assert_eq!(quants, [0; 4]);
        assert_eq!(round_block(&[1e-40; 4], &mut quants), 0.0);
        assert!(round_block(&[1.0, f32::NAN, 0.0, 0.0], &mut quants).is_nan());
        assert!(round_block(&[1.0, f32::INFINITY, 0.0, 0.0], &mut quants).is_nan());
    }
}
