//! The causal convolution and its SiLU.

use crate::cpu::simd::{LANES, Simd, silu, simd_fn};

/// Taps of every model there is: unrolled, and the only number whose weights are turned in registers.
const USUAL: usize = 4;

/// Weights of some channels.
#[derive(Clone, Copy)]
pub(super) enum Taps<'a> {
    /// `[channels, taps]`, as they lie in the file.
    Stored(&'a [f32]),
    /// `[taps, channels]`.
    Turned(&'a [f32]),
}

/// Weights `[channels, taps]` to `[taps, channels]`.
#[inline(always)]
fn transpose<S: Simd>(s: S, weight: &[f32], taps: usize, out: &mut [f32]) {
    let channels = weight.len() / taps;
    let mut first = 0;
    if taps == USUAL {
        for (i, block) in weight.as_chunks::<USUAL>().0.as_chunks::<LANES>().0.iter().enumerate() {
            for (tap, vector) in s.load_transposed(block).into_iter().enumerate() {
                let target = &mut out[tap * channels + i * LANES..];
                if let Some(target) = target.first_chunk_mut::<LANES>() {
                    s.store(vector, target);
                }
            }
        }
        first = channels / LANES * LANES;
    }
    for channel in first..channels {
        for tap in 0..taps {
            out[tap * channels + channel] = weight[channel * taps + tap];
        }
    }
}

/// One token: `out = silu(sum_tap weight[tap] * rows[tap])`, rows of one length.
#[inline(always)]
fn convolve<S: Simd>(s: S, taps: Taps, rows: &[&[f32]], out: &mut [f32]) {
    let whole = out.len() / LANES * LANES;
    match (taps, <&[&[f32]; USUAL]>::try_from(rows)) {
        (Taps::Stored(weight), Ok(rows)) => {
            let blocks = weight.as_chunks::<USUAL>().0.as_chunks::<LANES>().0;
            let vectors = |row: usize| rows[row].as_chunks::<LANES>().0;
            let (a, b, c, d) = (vectors(0), vectors(1), vectors(2), vectors(3));
            let inputs = a.iter().zip(b).zip(c).zip(d);
            for ((block, (((a, b), c), d)), out) in blocks.iter().zip(inputs).zip(out.as_chunks_mut().0) {
                s.store(one_vector(s, s.load_transposed(block), [a, b, c, d]), out);
            }
        }
        (Taps::Turned(weight), Ok(rows)) => {
            let channels = out.len();
            let of_tap = |tap: usize| weight[tap * channels..][..channels].as_chunks::<LANES>().0;
            let vectors = |row: usize| rows[row].as_chunks::<LANES>().0;
            let (a, b, c, d) = (vectors(0), vectors(1), vectors(2), vectors(3));
            let weights = of_tap(0).iter().zip(of_tap(1)).zip(of_tap(2)).zip(of_tap(3));
            let inputs = a.iter().zip(b).zip(c).zip(d);
            for (((((w, x), y), z), (((a, b), c), d)), out) in weights.zip(inputs).zip(out.as_chunks_mut().0)
            {
                let weights = [s.load(w), s.load(x), s.load(y), s.load(z)];
                s.store(one_vector(s, weights, [a, b, c, d]), out);
            }
        }
        (taps, Err(_)) => return plainly(s, taps, rows, 0, out),
    }
    if whole < out.len() {
        plainly(s, taps, rows, whole, out);
    }
}

/// Eight channels of the usual number of taps.
#[inline(always)]
fn one_vector<S: Simd>(s: S, weights: [S::F32; USUAL], x: [&[f32; LANES]; USUAL]) -> S::F32 {
    let mut sum = s.splat(0.0);
    for tap in 0..USUAL {
        sum = s.mul_add(weights[tap], s.load(x[tap]), sum);
    }
    silu(s, sum)
}

/// Any number of taps, the channels from `first` on.
#[inline(always)]
fn plainly<S: Simd>(s: S, taps: Taps, rows: &[&[f32]], first: usize, out: &mut [f32]) {
    let channels = out.len();
    for first in (first..channels).step_by(LANES) {
        let part = first..(first + LANES).min(channels);
        let mut sum = s.splat(0.0);
        for (tap, row) in rows.iter().enumerate() {
            let mut weight = [0.0; LANES];
            for (weight, channel) in weight.iter_mut().zip(part.clone()) {
                *weight = match taps {
                    Taps::Stored(all) => all[channel * rows.len() + tap],
                    Taps::Turned(all) => all[tap * channels + channel],
                };
            }
            sum = s.mul_add(s.load(&weight), s.load_part(&row[part.clone()]), sum);
        }
        s.store_part(silu(s, sum), &mut out[part]);
    }
}

simd_fn! {
    /// Weights `[channels, taps]` to `[taps, channels]`.
    pub(super) fn transpose_taps = transpose(weight: &[f32], taps: usize, out: &mut [f32])
}
simd_fn! {
    /// One token of the convolution: `rows` are its inputs and those before it, oldest first.
    pub(super) fn convolve_token = convolve(taps: Taps, rows: &[&[f32]], out: &mut [f32])
}
