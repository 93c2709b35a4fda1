//! Softmax and choice of experts for one token.

use super::super::Routing;
use crate::cpu::simd::{LANES, Simd, exp, simd_fn};

#[inline(always)]
fn exps_lanes<S: Simd>(s: S, logits: &[f32], largest: f32, out: &mut [f32]) -> f32 {
    let largest = s.splat(largest);
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let (out_blocks, out_rest) = out.as_chunks_mut::<LANES>();
    let mut sums = s.splat(0.0);
    for (block, out) in blocks.iter().zip(out_blocks) {
        let exps = exp(s, s.sub(s.load(block), largest));
        s.store(exps, out);
        sums = s.add(sums, exps);
    }
    let exps = exp(s, s.sub(s.load_part(rest), largest));
    s.store_part(exps, &mut out_rest[..rest.len()]);
    s.sum(sums) + out_rest.iter().sum::<f32>()
}

simd_fn! {
    /// Writes `exp(logits - largest)` and returns the sum.
    fn exps = exps_lanes(logits: &[f32], largest: f32, out: &mut [f32]) -> f32
}

/// Chooses `routing.used` experts; `scratch` is as long as the logits.
pub(super) fn token(
    isa: crate::Isa,
    logits: &[f32],
    routing: &Routing,
    scratch: &mut [f32],
    ids: &mut [i32],
    weights: &mut [f32],
) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = exps(isa, logits, largest, scratch);
    for (j, (id, weight)) in ids.iter_mut().zip(weights.iter_mut()).enumerate() {
        let expert = best(logits, scratch).unwrap_or(j);
        *id = expert as i32;
        *weight = scratch[expert];
        scratch[expert] = TAKEN;
    }
    let sum = if routing.renormalize { weights.iter().sum() } else { total };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * routing.scale);
}

/// What the place of an expert holds once it is taken; probabilities are not negative.
const TAKEN: f32 = -1.0;

/// The expert with the largest logit among those not taken, the lowest of equals.
fn best(logits: &[f32], left: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (expert, (logit, left)) in logits.iter().zip(left).enumerate() {
        // A logit that is no number is taken last, but taken.
        if *left != TAKEN && best.is_none_or(|best| *logit > logits[best] || logits[best].is_nan()) {
            best = Some(expert);
        }
    }
    best
}
