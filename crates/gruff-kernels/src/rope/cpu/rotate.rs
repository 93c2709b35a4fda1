//! One head, rotated.

use crate::cpu::simd::{LANES, Simd, simd_fn};

#[inline(always)]
fn turn<S: Simd>(s: S, x0: S::F32, x1: S::F32, cos: S::F32, sin: S::F32) -> (S::F32, S::F32) {
    (s.neg_mul_add(x1, sin, s.mul(x0, cos)), s.mul_add(x1, cos, s.mul(x0, sin)))
}

#[inline(always)]
fn halves<S: Simd>(s: S, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head[..2 * cosines.len()].split_at_mut(cosines.len());
    let (low, low_rest) = low.as_chunks_mut::<LANES>();
    let (high, high_rest) = high.as_chunks_mut::<LANES>();
    let (cos, cos_rest) = cosines.as_chunks::<LANES>();
    let (sin, sin_rest) = sines.as_chunks::<LANES>();
    for (((x0, x1), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (y0, y1) = turn(s, s.load(x0), s.load(x1), s.load(cos), s.load(sin));
        s.store(y0, x0);
        s.store(y1, x1);
    }
    if !cos_rest.is_empty() {
        let (x0, x1) = (s.load_part(low_rest), s.load_part(high_rest));
        let (y0, y1) = turn(s, x0, x1, s.load_part(cos_rest), s.load_part(sin_rest));
        s.store_part(y0, low_rest);
        s.store_part(y1, high_rest);
    }
}

#[inline(always)]
fn turn_pairs<S: Simd>(s: S, x: &mut [f32; 2 * LANES], cos: S::F32, sin: S::F32) {
    let (a, b) = x.split_at_mut(LANES);
    let (a, b) = (&mut a.as_chunks_mut::<LANES>().0[0], &mut b.as_chunks_mut::<LANES>().0[0]);
    let (x0, x1) = s.deinterleave(s.load(a), s.load(b));
    let (y0, y1) = turn(s, x0, x1, cos, sin);
    let (y0, y1) = s.interleave(y0, y1);
    s.store(y0, a);
    s.store(y1, b);
}

#[inline(always)]
fn pairs<S: Simd>(s: S, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (pairs, rest) = head[..2 * cosines.len()].as_chunks_mut::<{ 2 * LANES }>();
    let (cos, cos_rest) = cosines.as_chunks::<LANES>();
    let (sin, sin_rest) = sines.as_chunks::<LANES>();
    for ((x, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
        turn_pairs(s, x, s.load(cos), s.load(sin));
    }
    if !rest.is_empty() {
        let mut padded = [0.0; 2 * LANES];
        padded[..rest.len()].copy_from_slice(rest);
        turn_pairs(s, &mut padded, s.load_part(cos_rest), s.load_part(sin_rest));
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}

simd_fn! {
    /// Pairs (j, j + half).
    pub(super) fn rotate_halves = halves(head: &mut [f32], cosines: &[f32], sines: &[f32])
}
simd_fn! {
    /// Pairs (2j, 2j + 1).
    pub(super) fn rotate_pairs = pairs(head: &mut [f32], cosines: &[f32], sines: &[f32])
}
