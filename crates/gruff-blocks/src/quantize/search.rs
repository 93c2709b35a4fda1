//! Weighted least squares with integers: the scale (and minimum) under which rounded values are nearest to the given
//! ones.
//!
//! For a given inverse scale the integers follow by rounding, and for given integers the best scale follows in closed
//! form; what is left is a one-dimensional search over the inverse scale. Loops are written over fixed-size arrays with
//! a row of partial sums, so that they become vector code although the order of additions is fixed.

/// Partial sums that are kept side by side.
const LANES: usize = 8;

/// Blocks whose largest magnitude is below this are taken for zero: their inverse scale would overflow.
pub(super) const NOTHING: f32 = 1e-15;

/// The nearest integer, ties to even. Only for magnitudes below 2^22.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no room for a fraction, in any vector instruction set.
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// `value` held within `low..=high`, by two comparisons that vector units have.
#[inline(always)]
pub(super) fn hold(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// The integer of `low..=high` nearest to `value`.
#[inline(always)]
pub(super) fn nearest(value: f32, low: f32, high: f32) -> f32 {
    round(hold(value, low, high))
}

/// Sums `K` terms over `0..N` at once.
#[inline(always)]
pub(super) fn sums<const N: usize, const K: usize>(terms: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    let mut partial = [[0.0_f32; LANES]; K];
    for chunk in 0..N / LANES {
        for lane in 0..LANES {
            let terms = terms(LANES * chunk + lane);
            for (partial, term) in partial.iter_mut().zip(terms) {
                partial[lane] += term;
            }
        }
    }
    partial.map(|lanes| lanes.iter().sum())
}

/// A scale, and what an error in it costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    /// `x` is about `value * q`.
    pub(super) value: f32,
    /// `sum(w q q)`: the weighted squared error grows by this times the squared error of the scale.
    pub(super) weight: f32,
}

/// Smallest and largest value.
#[inline(always)]
fn range<const N: usize>(values: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for chunk in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            low[lane] = if chunk[lane] < low[lane] { chunk[lane] } else { low[lane] };
            high[lane] = if chunk[lane] > high[lane] { chunk[lane] } else { high[lane] };
        }
    }
    (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// The value furthest from zero.
#[inline(always)]
pub(super) fn extreme<const N: usize>(values: &[f32; N]) -> f32 {
    let (low, high) = range(values);
    if -low > high { low } else { high }
}

/// Where candidates lie around the obvious scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// How many above, and how many below.
    pub(super) each_way: i32,
    /// How far apart, in integers at the end of the range.
    pub(super) width: f32,
}

impl Steps {
    /// Thorough.
    pub(super) const FINE: Steps = Steps { each_way: 9, width: 0.1 };
    /// A quarter of the work.
    pub(super) const COARSE: Steps = Steps { each_way: 2, width: 0.4 };
}

/// Finds the scale that minimises `sum(w (x - scale q)^2)` with integers `q` in `low..=high`.
///
/// The extreme value is put at `end` (the end of the range that reaches further from zero) and at `steps` around it. The
/// best of these is improved by rounding again with its own scale.
pub(super) fn scale<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    (low, high): (f32, f32),
    end: f32,
    steps: Steps,
) -> Scale {
    let ends = (-steps.each_way..=steps.each_way).map(|step| end + steps.width * step as f32);
    scale_of_levels(x, w, |value| nearest(value, low, high), ends)
}

/// Finds the scale that minimises `sum(w (x - scale level)^2)`, where `snap` gives the level nearest to a number, by
/// putting the extreme value at each of `ends`.
#[inline(always)]
pub(super) fn scale_of_levels<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    snap: impl Fn(f32) -> f32,
    ends: impl Iterator<Item = f32>,
) -> Scale {
    let extreme = extreme(x);
    if extreme.abs() < NOTHING {
        return Scale::default();
    }
    let (mut best, mut score) = (Scale::default(), 0.0);
    let mut consider = |inverse: f32| {
        let [wxq, wqq] = sums::<N, 2>(|i| {
            let level = snap(x[i] * inverse);
            let weighed = w[i] * level;
            [weighed * x[i], weighed * level]
        });
        // What the candidate takes off the error is wxq^2 / wqq.
        if wqq > 0.0 && wxq * wxq > score * wqq {
            best = Scale { value: wxq / wqq, weight: wqq };
            score = wxq * best.value;
        }
        best.value
    };
    let mut value = 0.0;
    for end in ends {
        value = consider(end / extreme);
    }
    if value != 0.0 {
        consider(1.0 / value);
    }
    best
}

/// A scale and a minimum: `x` is about `scale * q - min`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Affine {
    /// What a step of the integers is worth.
    pub(super) scale: Scale,
    /// What is taken off, and the sum of the weights.
    pub(super) min: Scale,
}

/// Whether the smallest value of a block may be stored when it is above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Minimum {
    /// Minima are unsigned: blocks of positive values begin at zero.
    Unsigned,
    /// Minima have a sign.
    Signed,
}

/// Finds scale and minimum that minimise `sum(w (x - scale q + min)^2)` with integers `q` in `0..=top`.
///
/// The range of the values is laid over `top + step` integers for each of `steps`, in tenths.
pub(super) fn affine<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    top: f32,
    minimum: Minimum,
    steps: std::ops::RangeInclusive<i32>,
) -> Affine {
    let (mut low, high) = range(x);
    if minimum == Minimum::Unsigned {
        low = low.min(0.0);
    }
    let [sum_w, sum_wx] = sums::<N, 2>(|i| [w[i], w[i] * x[i]]);
    let range = high - low;
    if range < NOTHING {
        return Affine { scale: Scale::default(), min: Scale { value: -low, weight: sum_w } };
    }
    let mut best = Affine {
        scale: Scale { value: range / top, weight: 0.0 },
        min: Scale { value: -low, weight: sum_w },
    };
    let mut score = f32::NEG_INFINITY;
    let mut consider = |inverse: f32, low: f32| {
        let [wq, wqq, wxq] = sums::<N, 3>(|i| {
            let q = nearest((x[i] - low) * inverse, 0.0, top);
            let wq = w[i] * q;
            [wq, wq * q, wq * x[i]]
        });
        let determinant = sum_w * wqq - wq * wq;
        if determinant <= 0.0 {
            return best;
        }
        let mut scale = (sum_w * wxq - sum_wx * wq) / determinant;
        let mut offset = (wqq * sum_wx - wq * wxq) / determinant;
        if minimum == Minimum::Unsigned && offset > 0.0 {
            (scale, offset) = (wxq / wqq, 0.0);
        }
        // What the candidate takes off sum(w x x).
        let gain = scale * wxq + offset * sum_wx;
        if gain > score && scale > 0.0 {
            score = gain;
            best.scale = Scale { value: scale, weight: wqq };
            best.min.value = -offset;
        }
        best
    };
    let mut found = Affine::default();
    for step in steps {
        found = consider((top + 0.1 * step as f32) / range, low);
    }
    consider(1.0 / found.scale.value, -found.min.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest() {
        for (value, expected) in [(0.4, 0.0), (0.6, 1.0), (-0.6, -1.0), (1.5, 2.0), (2.5, 2.0), (-7.2, -7.0)]
        {
            assert_eq!(round(value), expected);
        }
        assert_eq!(nearest(1e30, -8.0, 7.0), 7.0);
        assert_eq!(nearest(-1e30, -8.0, 7.0), -8.0);
    }

    #[test]
    fn what_fits_a_scale_is_found() {
        let q: [f32; 16] = std::array::from_fn(|i| i as f32 - 8.0);
        let found = scale(&q.map(|q| -0.37 * q), &[1.0; 16], (-8.0, 7.0), -8.0, Steps::FINE);
        assert!((found.value + 0.37).abs() < 1e-6, "{found:?}");
        let q: [f32; 16] = std::array::from_fn(|i| (i * 7 % 16) as f32);
        let found = affine(&q.map(|q| 0.25 * q - 1.5), &[1.0; 16], 15.0, Minimum::Unsigned, -10..=10);
        assert!((found.scale.value - 0.25).abs() < 1e-5 && (found.min.value - 1.5).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn weights_decide_what_is_fitted() {
        let mut x = [1.0_f32; 16];
        x[0] = 3.4;
        let rest_error = |first: f32| {
            let mut w = [1.0; 16];
            w[0] = first;
            let found = scale(&x, &w, (-4.0, 3.0), -4.0, Steps::FINE).value;
            (1.0 - found * nearest(1.0 / found, -4.0, 3.0)).abs()
        };
        assert!(
            rest_error(0.0) < 1e-6 && rest_error(1000.0) > 0.05,
            "{} {}",
            rest_error(0.0),
            rest_error(1000.0)
        );
    }
}
