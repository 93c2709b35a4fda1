//! The causal convolution and its SiLU.

use crate::cpu::simd::{LANES, Simd, silu, simd_fn};

/// Weights `[channels, taps]` to `[taps, channels]`.
#[inline(always)]
fn transpose<S: Simd>(s: S, weight: &[f32], taps: usize, out: &mut [f32]) {
    let channels = weight.len() / taps;
    let mut first = 0;
    if taps == 4 {
        for (i, block) in weight.as_chunks::<4>().0.as_chunks::<LANES>().0.iter().enumerate() {
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
fn convolve<S: Simd>(s: S, weight: &[f32], rows: &[&[f32]], out: &mut [f32]) {
    // The loop over taps unrolled where it is the usual one.
    match <&[&[f32]; 4]>::try_from(rows) {
        Ok(rows) => convolve_rows(s, weight, rows, out),
        Err(_) => convolve_rows(s, weight, rows, out),
    }
}

#[inline(always)]
fn convolve_rows<S: Simd>(s: S, weight: &[f32], rows: &[&[f32]], out: &mut [f32]) {
    let channels = out.len();
    let whole = channels / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let mut sum = s.splat(0.0);
        for (tap, row) in rows.iter().enumerate() {
            let weight = weight[tap * channels + first..].first_chunk::<LANES>();
            let (Some(weight), Some(x)) = (weight, row[first..].first_chunk::<LANES>()) else { return };
            sum = s.mul_add(s.load(weight), s.load(x), sum);
        }
        if let Some(target) = out[first..].first_chunk_mut::<LANES>() {
            s.store(silu(s, sum), target);
        }
    }
    let rest = &mut out[whole..];
    if !rest.is_empty() {
        let mut sum = s.splat(0.0);
        for (tap, row) in rows.iter().enumerate() {
            let weight = s.load_part(&weight[tap * channels..][whole..channels]);
            sum = s.mul_add(weight, s.load_part(&row[whole..]), sum);
        }
        s.store_part(silu(s, sum), rest);
    }
}

simd_fn! {
    /// Weights `[channels, taps]` to `[taps, channels]`.
    pub(super) fn transpose_taps = transpose(weight: &[f32], taps: usize, out: &mut [f32])
}
simd_fn! {
    /// One token of the convolution: `rows` are its inputs and those before it, oldest first.
    pub(super) fn convolve_token = convolve(weight: &[f32], rows: &[&[f32]], out: &mut [f32])
}
