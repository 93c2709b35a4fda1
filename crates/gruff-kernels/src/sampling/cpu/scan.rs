//! Passes over a row of logits.

use crate::cpu::simd::{LANES, Simd, simd_fn};

/// Values of a block whose largest is kept.
pub(super) const BLOCK: usize = 64;

#[inline(always)]
fn maxima<S: Simd>(s: S, row: &[f32], out: &mut [f32]) {
    let (blocks, rest) = row.as_chunks::<BLOCK>();
    for (block, largest) in blocks.iter().zip(out.iter_mut()) {
        // The second operand is kept where the first is NaN.
        let mut most = [s.splat(f32::NEG_INFINITY); 2];
        for pair in block.as_chunks::<LANES>().0.as_chunks::<2>().0 {
            most[0] = s.max(s.load(&pair[0]), most[0]);
            most[1] = s.max(s.load(&pair[1]), most[1]);
        }
        *largest = s.max_lane(s.max(most[0], most[1]));
    }
    if !rest.is_empty() {
        let most = rest.iter().fold(f32::NEG_INFINITY, |most, x| if *x > most { *x } else { most });
        out[blocks.len()] = most;
    }
}

/// `exp(x)` for x at most 0, to the last bit or two; 0 below -708, where results would be denormal. Branches only in
/// the form of selections, so that a loop over it becomes vector code.
#[inline(always)]
pub(super) fn exp_negative(x: f64) -> f64 {
    /// Adding it rounds to a whole number, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// ln 2 in two parts, the first of few enough bits that multiples of it are exact.
    const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    /// 1/n! for n = 13, 12, ..., 2.
    const TAYLOR: [f64; 12] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
    ];
    const LEAST: f64 = -708.0;
    let clamped = if x > LEAST { x } else { LEAST };
    let shifted = clamped * std::f64::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = (clamped - whole * LN2[0]) - whole * LN2[1];
    // Not fused: portable code would call a function for each.
    let mut sum = TAYLOR[0];
    for term in &TAYLOR[1..] {
        sum = sum * rest + *term;
    }
    let sum = sum * (rest * rest) + rest + 1.0;
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x >= LEAST { sum * scale } else { 0.0 }
}

/// How likely a logit is, compared to the most likely one: `exp((x - largest) / temperature)`. NaN weighs nothing.
#[derive(Clone, Copy)]
pub(super) struct Likelihood {
    pub(super) largest: f32,
    pub(super) temperature: f32,
}

impl Likelihood {
    #[inline(always)]
    pub(super) fn of(self, x: f32) -> f64 {
        exp_negative((f64::from(x) - f64::from(self.largest)) / f64::from(self.temperature))
    }
}

#[inline(always)]
fn weights<S: Simd>(_: S, row: &[f32], likelihood: Likelihood, out: &mut [f64]) -> f64 {
    /// Sums that do not wait for each other.
    const SUMS: usize = 8;
    let mut sums = [0.0; SUMS];
    for (values, weights) in row.chunks(SUMS).zip(out.chunks_mut(SUMS)) {
        for ((x, weight), sum) in values.iter().zip(weights).zip(&mut sums) {
            *weight = likelihood.of(*x);
            *sum += *weight;
        }
    }
    sums.into_iter().sum()
}

simd_fn! {
    /// The largest value of each block of [`BLOCK`], NaN aside; minus infinity where there is none.
    pub(super) fn block_maxima = maxima(row: &[f32], out: &mut [f32])
}
simd_fn! {
    /// The weight of each value of a row, and their sum.
    pub(super) fn weigh = weights(row: &[f32], likelihood: Likelihood, out: &mut [f64]) -> f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn exponentials_are_as_good_as_the_librarys() {
        for i in 0..200_000 {
            let x = -f64::from(i) * 0.0037;
            let (ours, exact) = (exp_negative(x), x.exp());
            let tolerance = if x < -708.0 { 1e-300 } else { exact * 4.0 * f64::EPSILON };
            assert!((ours - exact).abs() <= tolerance, "exp({x}): {ours} instead of {exact}");
        }
        assert_eq!(exp_negative(0.0), 1.0);
        assert_eq!(exp_negative(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp_negative(f64::NAN), 0.0);
    }

    #[test]
    fn every_instruction_set_weighs_alike() {
        let row: Vec<f32> = (0..1001).map(|i| if i == 7 { f32::NAN } else { -(i as f32) * 0.03 }).collect();
        let likelihood = Likelihood { largest: 0.0, temperature: 0.7 };
        let of = |isa| {
            let mut out = vec![0.0; row.len()];
            (weigh(isa, &row, likelihood, &mut out).to_bits(), out)
        };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            assert_eq!(of(isa), of(Isa::Scalar), "{isa}");
        }
    }
}
