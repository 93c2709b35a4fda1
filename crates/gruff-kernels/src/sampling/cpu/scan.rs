//! Passes over a row of logits.

use crate::cpu::simd::{LANES, Simd, exp, simd_fn};

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

/// `exp((x - shift) * factor)`.
#[inline(always)]
fn weight<S: Simd>(s: S, x: S::F32, shift: S::F32, factor: S::F32) -> S::F32 {
    exp(s, s.mul(s.sub(x, shift), factor))
}

#[inline(always)]
fn exps<S: Simd>(s: S, row: &[f32], largest: f32, factor: f32) -> f64 {
    /// Vectors that are summed in f32.
    const VECTORS: usize = 128;
    let (shift, factor) = (s.splat(largest), s.splat(factor));
    let (vectors, rest) = row.as_chunks::<LANES>();
    let mut total = 0.0;
    for part in vectors.chunks(VECTORS) {
        let mut sum = s.splat(0.0);
        for vector in part {
            // The second operand is kept where the first is NaN: NaN weighs nothing.
            let x = s.max(s.load(vector), s.splat(f32::NEG_INFINITY));
            sum = s.add(sum, weight(s, x, shift, factor));
        }
        total += f64::from(s.sum(sum));
    }
    let mut padded = [f32::NEG_INFINITY; LANES];
    for (value, x) in padded.iter_mut().zip(rest) {
        *value = if x.is_nan() { f32::NEG_INFINITY } else { *x };
    }
    total + f64::from(s.sum(weight(s, s.load(&padded), shift, factor)))
}

simd_fn! {
    /// The largest value of each block of [`BLOCK`], NaN aside; minus infinity where there is none.
    pub(super) fn block_maxima = maxima(row: &[f32], out: &mut [f32])
}
simd_fn! {
    /// `sum exp((x - largest) * factor)`, NaN aside.
    pub(super) fn sum_of_exps = exps(row: &[f32], largest: f32, factor: f32) -> f64
}
