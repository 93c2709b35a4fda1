//! Rounding of activations to int8: the definition that every device follows.

/// Values that share a scale when activations are rounded to int8.
pub const Q8_BLOCK: usize = 32;

/// The largest magnitude of a rounded value.
const Q8_MAX: f32 = 127.0;

/// Rounds a block of up to [`Q8_BLOCK`] activations to int8 and returns the scale: `x ~ scale * q`.
///
/// With `m` the largest magnitude: `scale = m / 127`, `q = round(x * (127 / m))`, ties to even, all in f32; a
/// block of zeros has scale 0. A block that holds a NaN or an infinity gets scale NaN and zeros, so that the
/// fault shows in the result instead of vanishing.
pub fn round_block(values: &[f32], quants: &mut [i8]) -> f32 {
    debug_assert!(values.len() == quants.len() && values.len() <= Q8_BLOCK);
    let finite = values.iter().all(|value| value.is_finite());
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
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
