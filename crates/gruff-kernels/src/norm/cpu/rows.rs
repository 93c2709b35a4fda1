//! One row of each norm.

use std::cell::Cell;

use crate::cpu::simd::{LANES, Simd, silu, simd_fn};

/// Accumulators of a sum of squares: vector i of a row adds to accumulator `i mod 4`.
const SUMS: usize = 4;

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[Cell<f32>]) -> f32 {
    let mut sums = [s.splat(0.0); SUMS];
    let (vectors, rest) = x.as_chunks::<LANES>();
    let (fours, left) = vectors.as_chunks::<SUMS>();
    for four in fours {
        for i in 0..SUMS {
            let v = s.load_cells(&four[i]);
            sums[i] = s.mul_add(v, v, sums[i]);
        }
    }
    for (i, vector) in left.iter().enumerate() {
        let v = s.load_cells(vector);
        sums[i] = s.mul_add(v, v, sums[i]);
    }
    if !rest.is_empty() {
        let v = s.load_cells_part(rest);
        sums[left.len()] = s.mul_add(v, v, sums[left.len()]);
    }
    s.sum(s.add(s.add(sums[0], sums[2]), s.add(sums[1], sums[3])))
}

/// What becomes of the i-th vector of a row. (A closure would be compiled without the instruction set of the
/// function around it.)
trait Each<S: Simd> {
    fn vector(&self, s: S, x: S::F32, i: usize) -> S::F32;
}

/// `out[i] = f(i-th vector of x, i)`; the last one is padded with zeros.
#[inline(always)]
fn each_vector<S: Simd>(s: S, x: &[Cell<f32>], out: &[Cell<f32>], f: impl Each<S>) {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let (out_vectors, out_rest) = out.as_chunks::<LANES>();
    for (i, (vector, target)) in vectors.iter().zip(out_vectors).enumerate() {
        s.store_cells(f.vector(s, s.load_cells(vector), i), target);
    }
    if !rest.is_empty() {
        s.store_cells_part(f.vector(s, s.load_cells_part(rest), vectors.len()), out_rest);
    }
}

/// `x * factor * weight`.
struct Weighted<'a> {
    factor: f32,
    weight: &'a [f32],
}

impl<S: Simd> Each<S> for Weighted<'_> {
    #[inline(always)]
    fn vector(&self, s: S, x: S::F32, i: usize) -> S::F32 {
        s.mul(s.mul(x, s.splat(self.factor)), vector(s, self.weight, i))
    }
}

/// `silu(gate) * (x * factor * weight)`.
struct Gated<'a> {
    normed: Weighted<'a>,
    gate: &'a [f32],
}

impl<S: Simd> Each<S> for Gated<'_> {
    #[inline(always)]
    fn vector(&self, s: S, x: S::F32, i: usize) -> S::F32 {
        s.mul(silu(s, vector(s, self.gate, i)), self.normed.vector(s, x, i))
    }
}

/// `x + delta`.
struct Sum<'a> {
    delta: &'a [Cell<f32>],
}

impl<S: Simd> Each<S> for Sum<'_> {
    #[inline(always)]
    fn vector(&self, s: S, x: S::F32, i: usize) -> S::F32 {
        let (vectors, rest) = self.delta.as_chunks::<LANES>();
        let delta = match vectors.get(i) {
            Some(vector) => s.load_cells(vector),
            None => s.load_cells_part(rest),
        };
        s.add(x, delta)
    }
}

/// `x * factor`.
struct Scaled {
    factor: f32,
}

impl<S: Simd> Each<S> for Scaled {
    #[inline(always)]
    fn vector(&self, s: S, x: S::F32, _: usize) -> S::F32 {
        s.mul(x, s.splat(self.factor))
    }
}

/// The i-th vector of a row, padded with zeros.
#[inline(always)]
fn vector<S: Simd>(s: S, row: &[f32], i: usize) -> S::F32 {
    let (vectors, rest) = row.as_chunks::<LANES>();
    match vectors.get(i) {
        Some(vector) => s.load(vector),
        None => s.load_part(rest),
    }
}

#[inline(always)]
fn rms_factor<S: Simd>(s: S, x: &[Cell<f32>], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn rms_norm<S: Simd>(s: S, x: &[Cell<f32>], weight: &[f32], eps: f32, out: &[Cell<f32>]) {
    each_vector(s, x, out, Weighted { factor: rms_factor(s, x, eps), weight });
}

#[inline(always)]
fn add_rms_norm<S: Simd>(
    s: S,
    residual: &[Cell<f32>],
    delta: &[Cell<f32>],
    weight: &[f32],
    eps: f32,
    out: &[Cell<f32>],
) {
    each_vector(s, residual, residual, Sum { delta });
    rms_norm(s, residual, weight, eps, out);
}

#[inline(always)]
fn gated_rms_norm<S: Simd>(s: S, x: &[Cell<f32>], weight: &[f32], gate: &[f32], eps: f32, out: &[Cell<f32>]) {
    let normed = Weighted { factor: rms_factor(s, x, eps), weight };
    each_vector(s, x, out, Gated { normed, gate });
}

#[inline(always)]
fn l2_norm<S: Simd>(s: S, x: &[Cell<f32>], eps: f32, scale: f32, out: &[Cell<f32>]) {
    each_vector(s, x, out, Scaled { factor: scale / (sum_of_squares(s, x) + eps).sqrt() });
}

simd_fn! {
    pub(super) fn rms_norm_row = rms_norm(x: &[Cell<f32>], weight: &[f32], eps: f32, out: &[Cell<f32>])
}
simd_fn! {
    pub(super) fn add_rms_norm_row =
        add_rms_norm(residual: &[Cell<f32>], delta: &[Cell<f32>], weight: &[f32], eps: f32, out: &[Cell<f32>])
}
simd_fn! {
    pub(super) fn gated_rms_norm_row =
        gated_rms_norm(x: &[Cell<f32>], weight: &[f32], gate: &[f32], eps: f32, out: &[Cell<f32>])
}
simd_fn! {
    pub(super) fn l2_norm_row = l2_norm(x: &[Cell<f32>], eps: f32, scale: f32, out: &[Cell<f32>])
}
