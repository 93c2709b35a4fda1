//! The first generation with importance; without it these types are packed by plain rounding, as everyone does.

use super::mean_square;
use super::search::{self, Minimum, Steps, nearest};
use crate::arrange::{fifth_bits, nibbles};
use crate::block::F16;
use crate::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_1};

type Values = [f32; 32];

/// What an error in each value costs.
fn weights(x: &Values, importance: &Values) -> Values {
    let mean = mean_square(x);
    std::array::from_fn(|i| importance[i] * (mean + x[i] * x[i]).sqrt())
}

/// Scale and quants (from 0 up) around zero, `-reach..reach`.
fn symmetric(x: &Values, importance: &Values, reach: f32) -> (F16, [u8; 32]) {
    let range = (-reach, reach - 1.0);
    let d = F16::from(search::scale(x, &weights(x, importance), range, range.0, Steps::FINE).value);
    let inverse = if d.get() == 0.0 { 0.0 } else { 1.0 / d.get() };
    (d, x.map(|x| (nearest(x * inverse, range.0, range.1) + reach) as u8))
}

/// Scale, minimum and quants of `0..=top`.
fn affine(x: &Values, importance: &Values, top: f32) -> (F16, F16, [u8; 32]) {
    let found = search::affine(x, &weights(x, importance), top, Minimum::Signed, -10..=10);
    let (d, m) = (F16::from(found.scale.value), F16::from(-found.min.value));
    let inverse = if d.get() == 0.0 { 0.0 } else { 1.0 / d.get() };
    (d, m, x.map(|x| nearest((x - m.get()) * inverse, 0.0, top) as u8))
}

pub(super) fn q4_0(x: &Values, importance: &Values) -> Q4_0 {
    let (d, q) = symmetric(x, importance, 8.0);
    Q4_0 { d, qs: nibbles(&q) }
}

pub(super) fn q4_1(x: &Values, importance: &Values) -> Q4_1 {
    let (d, m, q) = affine(x, importance, 15.0);
    Q4_1 { d, m, qs: nibbles(&q) }
}

pub(super) fn q5_0(x: &Values, importance: &Values) -> Q5_0 {
    let (d, q) = symmetric(x, importance, 16.0);
    Q5_0 { d, qh: fifth_bits(&q), qs: nibbles(&q) }
}

pub(super) fn q5_1(x: &Values, importance: &Values) -> Q5_1 {
    let (d, m, q) = affine(x, importance, 31.0);
    Q5_1 { d, m, qh: fifth_bits(&q), qs: nibbles(&q) }
}

pub(super) fn q8_1(x: &Values) -> Q8_1 {
    let d = search::extreme(x).abs() / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let qs = x.map(|x| nearest(x * inverse, -127.0, 127.0) as i8);
    let sum: i32 = qs.iter().map(|q| i32::from(*q)).sum();
    Q8_1 { d: F16::from(d), s: F16::from(d * sum as f32), qs }
}
