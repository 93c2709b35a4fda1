//! One and two bits with one scale: signs, three levels, four levels.

use super::search::{extreme, nearest, scale_of_levels, sums};
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
fn ternary(x: &Values, importance: Option<&Values>) -> (F16, [u8; 256]) {
    let w = even(importance);
    let snap = |value: f32| nearest(value, -1.0, 1.0);
    // Weights that are ternary already have their largest value at 1; others are better served with it further out.
    let ends = [1.0, 1.6, 2.1, 2.8];
    let scale = scale_of_levels(x, &w, snap, ends.into_iter()).value;
    let d = F16::from(scale);
    let inverse = if d.get() == 0.0 || extreme(x) == 0.0 { 0.0 } else { 1.0 / d.get() };
    (d, x.map(|x| (snap(x * inverse) + 1.0) as u8))
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
