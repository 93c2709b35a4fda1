//! Functions of eight lanes: polynomials fitted for the smallest largest relative error, the same bits on
//! every instruction set. Errors are at most 2 units in the last place (4 for compositions); the tests say so.

use super::Simd;

/// `e^x`: 0 and infinity where f32 ends, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // Below LEAST the result is 0, above MOST infinity, both through the scaling at the end.
    const LEAST: f32 = -104.0;
    const MOST: f32 = 89.0;
    // ln 2 in two parts, so that `x - n ln 2` is exact for |n| < 2^11 (Cody and Waite).
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2.
    const P: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_5];
    // NaN passes: min and max return their second operand for it.
    let x = s.max(s.splat(LEAST), s.min(s.splat(MOST), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.neg_mul_add(n, s.splat(LN2_LOW), s.neg_mul_add(n, s.splat(LN2_HIGH), x));
    let tail = polynomial(s, &P, r);
    let series = s.add(s.splat(1.0), s.mul_add(s.mul(r, r), tail, r));
    // In two factors, since n reaches beyond the exponents of normal numbers on both sides.
    let first = s.round(s.mul(n, s.splat(0.5)));
    let rest = s.sub(n, first);
    s.mul(s.mul(series, s.exp2_whole(first)), s.exp2_whole(rest))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// `ln(1 + e^-x)` for x >= 0.
#[inline(always)]
pub(crate) fn log1p_exp_neg<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // ln(1 + t) = 2 artanh(r) with r = t / (2 + t) <= 1/3; (2 artanh(r) / r - 2) / r^2 as a polynomial of r^2.
    const P: [f32; 4] = [0.666_664_1, 0.400_217_7, 0.279_978_63, 0.280_312_8];
    let t = exp(s, s.sub(s.splat(0.0), x));
    let two = s.splat(2.0);
    let r = s.div(t, s.add(two, t));
    let z = s.mul(r, r);
    s.mul(r, s.mul_add(z, polynomial(s, &P, z), two))
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F32) -> S::F32 {
    s.add(s.max(s.splat(0.0), x), log1p_exp_neg(s, s.abs(x)))
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // (tanh(x) / x - 1) / x^2 as a polynomial of x^2, below the point from which 1 - 2 / (e^2x + 1) loses
    // nothing.
    const SMALL: f32 = 0.625;
    const P: [f32; 5] = [-0.333_332_84, 0.133_314_9, -0.053_743_497, 0.020_650_579, -0.005_717_036];
    let z = s.mul(x, x);
    let small = s.mul_add(s.mul(x, z), polynomial(s, &P, z), x);
    let magnitude = s.abs(x);
    let one = s.splat(1.0);
    let tail = s.div(s.splat(2.0), s.add(exp(s, s.add(magnitude, magnitude)), one));
    let large = s.copysign(s.sub(one, tail), x);
    s.select_lt(magnitude, s.splat(SMALL), small, large)
}

/// `p[0] + p[1] x + ...`.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, p: &[f32; N], x: S::F32) -> S::F32 {
    let mut sum = s.splat(p[N - 1]);
    for coefficient in p[..N - 1].iter().rev() {
        sum = s.mul_add(sum, x, s.splat(*coefficient));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::cpu::simd::{LANES, simd_fn};

    macro_rules! functions {
        ($($name:ident = $generic:ident),*) => {
            $(
                #[inline(always)]
                fn $generic<S: Simd>(s: S, x: &[f32; LANES]) -> [f32; LANES] {
                    let mut out = [0.0; LANES];
                    s.store($name(s, s.load(x)), &mut out);
                    out
                }
            )*
            mod of {
                use super::*;
                $(simd_fn! { pub(super) fn $name = $generic(x: &[f32; LANES]) -> [f32; LANES] })*
            }
        };
    }
    functions!(
        exp = exp_lanes,
        sigmoid = sigmoid_lanes,
        silu = silu_lanes,
        softplus = softplus_lanes,
        tanh = tanh_lanes
    );

    type Function = fn(Isa, &[f32; LANES]) -> [f32; LANES];
    type Truth = fn(f64) -> f64;

    /// Name, function, truth, largest error in units in the last place.
    const FUNCTIONS: [(&str, Function, Truth, f64); 5] = [
        ("exp", of::exp, f64::exp, 1.5),
        ("sigmoid", of::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.0),
        ("silu", of::silu, |x| x / (1.0 + (-x).exp()), 3.0),
        ("softplus", of::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), 3.0),
        ("tanh", of::tanh, f64::tanh, 2.0),
    ];

    fn ulp(x: f64) -> f64 {
        let x = (x.abs() as f32).max(f32::MIN_POSITIVE);
        f64::from(f32::from_bits(x.to_bits() + 1) - x)
    }

    #[test]
    fn are_close_to_the_truth_and_equal_on_every_instruction_set() {
        // Every exponent with many mantissas, both signs.
        let values: Vec<f32> = (0u32..1 << 17)
            .map(|i| f32::from_bits(i << 15 | (i.wrapping_mul(0x9e37_79b9) & 0x7fff)))
            .filter(|x| x.is_finite() && x.abs() < 87.0)
            .collect();
        for (name, function, truth, bound) in FUNCTIONS {
            let mut worst = 0f64;
            for lanes in values.as_chunks::<LANES>().0 {
                let got = function(Isa::Scalar, lanes);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                    let bits = function(isa, lanes).map(f32::to_bits);
                    assert_eq!(bits, got.map(f32::to_bits), "{name} on {isa}");
                }
                for (x, y) in lanes.iter().zip(got) {
                    let expected = truth(f64::from(*x));
                    let error = (f64::from(y) - expected).abs() / ulp(expected);
                    assert!(error <= bound, "{name}({x}) = {y}, not {expected}: {error} ulp");
                    worst = worst.max(error);
                }
            }
            println!("{name}: {worst:.2} ulp");
        }
    }

    #[test]
    fn limits() {
        let edges = [f32::NEG_INFINITY, -200.0, -104.5, 89.5, 200.0, f32::INFINITY, f32::NAN, 0.0];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let [a, b, c, d, e, f, nan, zero] = of::exp(isa, &edges);
            assert_eq!(
                [a, b, c, d, e, f, zero],
                [0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY, 1.0]
            );
            assert!(nan.is_nan());
            let [a, .., d, e, f, nan, zero] = of::tanh(isa, &edges);
            assert_eq!([a, d, e, f, zero], [-1.0, 1.0, 1.0, 1.0, 0.0]);
            assert!(nan.is_nan());
            let [a, .., f, nan, zero] = of::sigmoid(isa, &edges);
            assert_eq!([a, f, zero], [0.0, 1.0, 0.5]);
            assert!(nan.is_nan());
            let [_, b, .., e, f, nan, _] = of::softplus(isa, &edges);
            assert_eq!([b, e, f], [0.0, 200.0, f32::INFINITY]);
            assert!(nan.is_nan());
        }
    }
}
