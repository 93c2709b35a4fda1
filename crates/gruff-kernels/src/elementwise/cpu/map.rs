//! Formulas that work value by value.

use std::cell::Cell;

use crate::cpu::simd::{LANES, Simd, sigmoid, silu, simd_fn, tanh};

/// A function of N values.
pub(crate) trait Map<const N: usize>: Copy + Send + Sync {
    /// How long one value takes, compared to reading it.
    const COST: usize;

    fn lanes<S: Simd>(self, s: S, x: [S::F32; N]) -> S::F32;
}

/// `x + y`.
#[derive(Clone, Copy)]
pub(crate) struct Add;

impl Map<2> for Add {
    const COST: usize = 1;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [x, y]: [S::F32; 2]) -> S::F32 {
        s.add(x, y)
    }
}

/// `silu(gate) * up`.
#[derive(Clone, Copy)]
pub(crate) struct SiluMul;

impl Map<2> for SiluMul {
    const COST: usize = 4;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        s.mul(silu(s, gate), up)
    }
}

/// `gelu(gate) * up`, GELU by its tanh approximation.
#[derive(Clone, Copy)]
pub(crate) struct GeluMul;

impl Map<2> for GeluMul {
    const COST: usize = 4;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        // (1 + tanh(y)) / 2 = sigmoid(2 y), which does not cancel for negative y; 2 y = gate (A + B gate^2).
        const A: f32 = 1.595_769_2;
        const B: f32 = 0.071_354_81;
        let doubled = s.mul(gate, s.mul_add(s.mul(gate, gate), s.splat(B), s.splat(A)));
        s.mul(s.mul(gate, sigmoid(s, doubled)), up)
    }
}

/// `x * sigmoid(gate)`.
#[derive(Clone, Copy)]
pub(crate) struct SigmoidMul;

impl Map<2> for SigmoidMul {
    const COST: usize = 4;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [x, gate]: [S::F32; 2]) -> S::F32 {
        s.mul(x, sigmoid(s, gate))
    }
}

/// `x * factor`.
#[derive(Clone, Copy)]
pub(crate) struct Scale(pub(crate) f32);

impl Map<1> for Scale {
    const COST: usize = 1;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        s.mul(x, s.splat(self.0))
    }
}

/// `cap * tanh(x / cap)`.
#[derive(Clone, Copy)]
pub(crate) struct Cap(pub(crate) f32);

impl Map<1> for Cap {
    const COST: usize = 4;

    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        let cap = s.splat(self.0);
        s.mul(cap, tanh(s, s.div(x, cap)))
    }
}

#[inline(always)]
fn map_lanes<S: Simd, const N: usize, M: Map<N>>(s: S, f: M, inputs: [&[Cell<f32>]; N], out: &[Cell<f32>]) {
    let whole = out.len() / LANES;
    let blocks = inputs.map(|x| &x.as_chunks::<LANES>().0[..whole]);
    let (out_blocks, out_rest) = out.as_chunks::<LANES>();
    for (i, block) in out_blocks.iter().enumerate() {
        let mut x = [s.splat(0.0); N];
        for n in 0..N {
            x[n] = s.load_cells(&blocks[n][i]);
        }
        s.store_cells(f.lanes(s, x), block);
    }
    if !out_rest.is_empty() {
        let mut x = [s.splat(0.0); N];
        for n in 0..N {
            x[n] = s.load_cells_part(&inputs[n][whole * LANES..]);
        }
        s.store_cells_part(f.lanes(s, x), out_rest);
    }
}

simd_fn! {
    /// `out = f(inputs)`, all of one length.
    pub(crate) fn map = map_lanes [const N: usize, M: Map<N>](f: M, inputs: [&[Cell<f32>]; N], out: &[Cell<f32>])
}

#[inline(always)]
fn sigmoid_lane<S: Simd>(s: S, x: f32) -> f32 {
    let mut out = [0.0; LANES];
    s.store(sigmoid(s, s.splat(x)), &mut out);
    out[0]
}

simd_fn! {
    /// The sigmoid of one value, the same bits as [`SigmoidMul`]'s.
    pub(crate) fn sigmoid_of = sigmoid_lane(x: f32) -> f32
}
