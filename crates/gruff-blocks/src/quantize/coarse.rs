//! One and two bits with one scale: signs, three levels, four levels.

use super::search::{NOTHING, extreme, nearest, scale_of_levels, sums};
use crate::arrange::two_bits;
use crate::binary::{Q1_0, Q2_0};
use crate::block::F16;
use crate::ternary::{TQ1_0, TQ2_0};

type Values = [f32; 256];

/// Importance, or all values alike.
fn even<const N: usize>(importance: Option<&[f32; N]>) -> [f32; N] {
    importance.copied().unwrap_or([1.0; N])
}

pub(super) fn q1_0(x: &[f32; 128], importance: Option<&[f32; 128]>) -> Q1_0 {
    let w = even(importance);
    let [wx, sum] = sums::<128, 2>(|i| [w[i] * x[i].abs(), w[i]]);
    let qs = std::array::from_fn(|k| (0..8).fold(0, |bits, i| bits | u8::from(x[8 * k + i] >= 0.0) << i));
    Q1_0 { d: F16::from(wx / sum), qs }
}

pub(super) fn q2_0(x: &[f32; 64], importance: Option<&[f32; 64]>) -> Q2_0 {
    let w = even(importance);
    let snap = |value: f32| nearest(value, -1.0, 2.0);
    // The largest value at 2, or further out, or at -1.
    let ends = [1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, -1.0, -1.3, -1.7, -2.0];
    let d = F16::from(scale_of_levels(x, &w, snap, ends.into_iter()).value);
    let inverse = if d.get() == 0.0 { 0.0 } else { 1.0 / d.get() };
    let code = |i: usize| (snap(x[i] * inverse) + 1.0) as u8;
    let qs = std::array::from_fn(|k| (0..4).fold(0, |bits, n| bits | code(4 * k + n) << (2 * n)));
    Q2_0 { d, qs }
}

/// Scale and codes (0, 1, 2 for -1, 0, 1).
///
/// Which values become 0 is one number, the cut; the scale is then the weighted mean of the magnitudes above it, and the
/// best cut for a scale is its half.
fn ternary(x: &Values, importance: Option<&Values>) -> (F16, [u8; 256]) {
    let w = even(importance);
    let mut magnitudes = [0.0; 256];
    let mut weighed = [0.0; 256];
    for i in 0..256 {
        magnitudes[i] = x[i].abs();
        weighed[i] = w[i] * magnitudes[i];
    }
    let largest = extreme(x).abs();
    let (mut scale, mut score) = (0.0, 0.0);
    let mut consider = |cut: f32| {
        let [sum, weight] = sums::<256, 2>(|i| {
            // A mask instead of a branch: this is the loop that takes the time.
            let above = u32::from(magnitudes[i] > cut).wrapping_neg();
            [weighed[i], w[i]].map(|value| f32::from_bits(value.to_bits() & above))
        });
        // What the candidate takes off the error is sum^2 / weight.
        if weight > 0.0 && sum * sum > score * weight {
            scale = sum / weight;
            score = sum * scale;
        }
        scale
    };
    // Weights that are ternary already have their largest value at 1; others are better served with it further out.
    let mut best = 0.0;
    for end in [1.0, 1.6, 2.1, 2.8] {
        best = consider(0.5 / end * largest);
    }
    let scale = if largest < NOTHING { 0.0 } else { consider(0.5 * best) };
    let d = F16::from(scale);
    let cut = if d.get() == 0.0 { f32::INFINITY } else { 0.5 * d.get() };
    let mut codes = [0; 256];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = 1 + u8::from(*x > cut) - u8::from(*x < -cut);
    }
    (d, codes)
}

/// Digits as a byte, the most significant first: the fraction that [`trit`](crate::ternary::trit) takes apart, rounded
/// up so that no digit is lost.
fn digits(codes: impl Iterator<Item = u8>) -> u8 {
    let (number, count) =
        codes.fold((0_u16, 0), |(number, count), code| (3 * number + u16::from(code), count + 1));
    let number = number * 3_u16.pow(5 - count);
    (number * 256).div_ceil(243) as u8
}

pub(super) fn tq1_0(x: &Values, importance: Option<&Values>) -> TQ1_0 {
    let (d, q) = ternary(x, importance);
    let qs = std::array::from_fn(|k| match k {
        0..32 => digits((0..5).map(|n| q[32 * n + k])),
        _ => digits((0..5).map(|n| q[160 + 16 * n + k - 32])),
    });
    let qh = std::array::from_fn(|k| digits((0..4).map(|n| q[240 + 4 * n + k])));
    TQ1_0 { qs, qh, d }
}

pub(super) fn tq2_0(x: &Values, importance: Option<&Values>) -> TQ2_0 {
    let (d, q) = ternary(x, importance);
    TQ2_0 { qs: two_bits(&q), d }
}
