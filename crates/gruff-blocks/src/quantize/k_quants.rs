//! K-quants: the scales of sub-blocks are searched, then quantized themselves, then the rest is fitted to what became
//! of them.

use super::mean_square;
use super::search::{self, Affine, Minimum, Scale, Steps, nearest, sums};
use crate::arrange::{fifth_bits_k5, nibbles_k4, six_bit_scales, six_bits, third_bits, two_bits};
use crate::block::F16;
use crate::k_quants::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, SUPER_BLOCK, pack_scale_min_k4};

type Values = [f32; SUPER_BLOCK];

/// What an error in each value costs.
///
/// With importance, that times the size of the value in a mild way: large weights matter more than their share, but
/// small ones are not free. Without it, `alone` of the value and the block's root mean square.
fn weights(x: &Values, importance: Option<&Values>, alone: impl Fn(f32, f32) -> f32) -> Values {
    let mean = mean_square(x);
    match importance {
        Some(importance) => std::array::from_fn(|i| importance[i] * (2.0 * mean + x[i] * x[i]).sqrt()),
        None => {
            let rms = mean.sqrt();
            x.map(|x| alone(x, rms))
        }
    }
}

/// A super-block of `COUNT` sub-blocks of `SUB` values with scales and minima.
struct AffineBlock<const COUNT: usize> {
    d: F16,
    dmin: F16,
    scales: [u8; COUNT],
    mins: [u8; COUNT],
    q: [u8; SUPER_BLOCK],
}

/// How finely a type with minima is divided, and how hard it is searched.
struct AffineKind {
    /// The largest quant.
    top: f32,
    /// The largest quantized scale and minimum.
    scale_top: f32,
    /// Steps of the search for a sub-block's scale, in tenths of a quant.
    steps: std::ops::RangeInclusive<i32>,
    /// How often quantized scales are compared with their neighbours.
    rounds: usize,
}

/// Sub-block `j` of the values.
fn part<const SUB: usize>(values: &Values, j: usize) -> &[f32; SUB] {
    &values.as_chunks().0[j]
}

/// Quantizes non-negative scales: the common scale and their integers of `0..=top`.
fn common_scale<const COUNT: usize>(scales: &[Scale; COUNT], top: f32) -> (F16, [f32; COUNT]) {
    let values = scales.map(|scale| scale.value);
    let weights = scales.map(|scale| scale.weight);
    let d = F16::from(search::scale(&values, &weights, (0.0, top), top, Steps::FINE).value);
    (d, integers(&values, d, 0.0, top))
}

/// The integers of `low..=high` that come nearest to `values` under the scale `d`.
fn integers<const COUNT: usize>(values: &[f32; COUNT], d: F16, low: f32, high: f32) -> [f32; COUNT] {
    match d.get() {
        0.0 => [0.0; COUNT],
        d => values.map(|value| nearest(value / d, low, high)),
    }
}

/// The weighted squared error of a sub-block under a scale and a minimum.
#[inline(always)]
fn affine_error<const SUB: usize>(x: &[f32; SUB], w: &[f32; SUB], scale: f32, min: f32, top: f32) -> f32 {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let [error] = sums::<SUB, 1>(|i| {
        let q = nearest((x[i] + min) * inverse, 0.0, top);
        let difference = x[i] + min - scale * q;
        [w[i] * difference * difference]
    });
    error
}

/// Whether one of the eight neighbours of a quantized scale and minimum fits better; the best of all nine.
fn best_neighbour<const SUB: usize>(
    x: &[f32; SUB],
    w: &[f32; SUB],
    (d, dmin): (f32, f32),
    (scale, min): (f32, f32),
    kind: &AffineKind,
) -> (f32, f32) {
    let mut best = (scale, min);
    let mut least = f32::INFINITY;
    for min in [min, min - 1.0, min + 1.0] {
        for scale in [scale, scale - 1.0, scale + 1.0] {
            let inside = |v: f32| v >= 0.0 && v <= kind.scale_top;
            if inside(scale) && inside(min) {
                let error = affine_error(x, w, d * scale, dmin * min, kind.top);
                if error < least {
                    (least, best) = (error, (scale, min));
                }
            }
        }
    }
    best
}

/// The common scales that fit best to given integers: two unknowns, all values of the super-block.
fn refit<const SUB: usize, const COUNT: usize>(
    x: &Values,
    w: &Values,
    q: &Values,
    scales: &[f32; COUNT],
    mins: &[f32; COUNT],
) -> Option<(F16, F16)> {
    let [aa, ab, bb, xa, xb] = sums::<SUPER_BLOCK, 5>(|i| {
        let (a, b) = (scales[i / SUB] * q[i], mins[i / SUB]);
        let (wa, wb) = (w[i] * a, w[i] * b);
        [wa * a, wa * b, wb * b, wa * x[i], wb * x[i]]
    });
    // x is about d a - dmin b.
    let determinant = aa * bb - ab * ab;
    let (d, dmin) = if bb == 0.0 && aa > 0.0 {
        (xa / aa, 0.0)
    } else if determinant > 1e-6 * aa * bb {
        ((xa * bb - xb * ab) / determinant, (xa * ab - xb * aa) / determinant)
    } else {
        return None;
    };
    (d > 0.0 && dmin >= 0.0).then(|| (F16::from(d), F16::from(dmin)))
}

/// Quants of all sub-blocks under quantized scales and minima.
fn affine_quants<const SUB: usize, const COUNT: usize>(
    x: &Values,
    (d, dmin): (F16, F16),
    scales: &[f32; COUNT],
    mins: &[f32; COUNT],
    top: f32,
) -> Values {
    let mut q = [0.0; SUPER_BLOCK];
    for (j, q) in q.as_chunks_mut::<SUB>().0.iter_mut().enumerate() {
        let (scale, min) = (d.get() * scales[j], dmin.get() * mins[j]);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (q, x) in q.iter_mut().zip(part::<SUB>(x, j)) {
            *q = nearest((x + min) * inverse, 0.0, top);
        }
    }
    q
}

fn affine_block<const SUB: usize, const COUNT: usize>(
    x: &Values,
    w: &Values,
    kind: &AffineKind,
) -> AffineBlock<COUNT> {
    const { assert!(SUB * COUNT == SUPER_BLOCK) }
    let found: [Affine; COUNT] = std::array::from_fn(|j| {
        search::affine(part::<SUB>(x, j), part::<SUB>(w, j), kind.top, Minimum::Unsigned, kind.steps.clone())
    });
    let (mut d, mut scales) = common_scale(&found.map(|f| f.scale), kind.scale_top);
    let (mut dmin, mut mins) = common_scale(&found.map(|f| f.min), kind.scale_top);
    for _ in 0..kind.rounds {
        for j in 0..COUNT {
            let at = (scales[j], mins[j]);
            (scales[j], mins[j]) =
                best_neighbour(part::<SUB>(x, j), part::<SUB>(w, j), (d.get(), dmin.get()), at, kind);
        }
    }
    let mut q = affine_quants::<SUB, COUNT>(x, (d, dmin), &scales, &mins, kind.top);
    if let Some(refitted) = refit::<SUB, COUNT>(x, w, &q, &scales, &mins) {
        (d, dmin) = refitted;
        q = affine_quants::<SUB, COUNT>(x, (d, dmin), &scales, &mins, kind.top);
    }
    AffineBlock {
        d,
        dmin,
        scales: scales.map(|scale| scale as u8),
        mins: mins.map(|min| min as u8),
        q: q.map(|q| q as u8),
    }
}

pub(super) fn q2_k(x: &Values, importance: Option<&Values>) -> Q2_K {
    let w = weights(x, importance, |x, _| x.abs());
    let kind = AffineKind { top: 3.0, scale_top: 15.0, steps: -5..=10, rounds: 2 };
    let block = affine_block::<16, 16>(x, &w, &kind);
    let scales = std::array::from_fn(|j| block.scales[j] | block.mins[j] << 4);
    Q2_K { scales, qs: two_bits(&block.q), d: block.d, dmin: block.dmin }
}

pub(super) fn q4_k(x: &Values, importance: Option<&Values>) -> Q4_K {
    let w = weights(x, importance, |x, rms| rms + x.abs());
    let kind = AffineKind { top: 15.0, scale_top: 63.0, steps: -10..=10, rounds: 1 };
    let block = affine_block::<32, 8>(x, &w, &kind);
    let scales = pack_scale_min_k4(&block.scales, &block.mins);
    Q4_K { d: block.d, dmin: block.dmin, scales, qs: nibbles_k4(&block.q) }
}

pub(super) fn q5_k(x: &Values, importance: Option<&Values>) -> Q5_K {
    let w = weights(x, importance, |x, rms| rms + x.abs());
    let kind = AffineKind { top: 31.0, scale_top: 63.0, steps: -6..=10, rounds: 1 };
    let block = affine_block::<32, 8>(x, &w, &kind);
    let scales = pack_scale_min_k4(&block.scales, &block.mins);
    Q5_K { d: block.d, dmin: block.dmin, scales, qh: fifth_bits_k5(&block.q), qs: nibbles_k4(&block.q) }
}

/// A super-block of 16 sub-blocks of 16 values around zero.
struct SymmetricBlock {
    d: F16,
    scales: [i8; 16],
    /// Quants, from 0 up.
    q: [u8; SUPER_BLOCK],
}

/// `reach`: quants are `-reach..reach`; `scale_reach`: quantized scales are `-scale_reach..scale_reach`.
fn symmetric_block(
    x: &Values,
    w: &Values,
    reach: f32,
    scale_reach: f32,
    steps: Steps,
    rounds: usize,
) -> SymmetricBlock {
    let range = (-reach, reach - 1.0);
    let scale_range = (-scale_reach, scale_reach - 1.0);
    let found: [Scale; 16] =
        std::array::from_fn(|j| search::scale(part::<16>(x, j), part::<16>(w, j), range, range.0, steps));
    let values = found.map(|f| f.value);
    let d = search::scale(&values, &found.map(|f| f.weight), scale_range, scale_range.0, Steps::FINE).value;
    let d = F16::from(d);
    let mut scales = integers(&values, d, scale_range.0, scale_range.1);
    let error = |j: usize, scale: f32| {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let (x, w) = (part::<16>(x, j), part::<16>(w, j));
        let [error] = sums::<16, 1>(|i| {
            let difference = x[i] - scale * nearest(x[i] * inverse, range.0, range.1);
            [w[i] * difference * difference]
        });
        error
    };
    for _ in 0..rounds {
        for (j, scale) in scales.iter_mut().enumerate() {
            let mut least = f32::INFINITY;
            for candidate in [*scale, *scale - 1.0, *scale + 1.0] {
                if candidate >= scale_range.0 && candidate <= scale_range.1 {
                    let error = error(j, d.get() * candidate);
                    if error < least {
                        (least, *scale) = (error, candidate);
                    }
                }
            }
        }
    }
    let quants = |d: F16| -> Values {
        let mut q = [0.0; SUPER_BLOCK];
        for (j, q) in q.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d.get() * scales[j];
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            *q = part::<16>(x, j).map(|x| nearest(x * inverse, range.0, range.1));
        }
        q
    };
    let mut q = quants(d);
    let [wxq, wqq] = sums::<SUPER_BLOCK, 2>(|i| {
        let q = scales[i / 16] * q[i];
        [w[i] * q * x[i], w[i] * q * q]
    });
    let refitted = F16::from(if wqq > 0.0 { wxq / wqq } else { 0.0 });
    let d = if refitted.get() == 0.0 { d } else { refitted };
    q = quants(d);
    SymmetricBlock { d, scales: scales.map(|scale| scale as i8), q: q.map(|q| (q + reach) as u8) }
}

pub(super) fn q3_k(x: &Values, importance: Option<&Values>) -> Q3_K {
    let w = weights(x, importance, |x, _| x.abs());
    let steps = if importance.is_some() { Steps::FINE } else { Steps::COARSE };
    let block = symmetric_block(x, &w, 4.0, 32.0, steps, 1);
    let scales = six_bit_scales(&block.scales.map(|scale| (scale + 32) as u8));
    Q3_K { hmask: third_bits(&block.q), qs: two_bits(&block.q), scales, d: block.d }
}

pub(super) fn q6_k(x: &Values, importance: Option<&Values>) -> Q6_K {
    let w = match importance {
        Some(importance) => *importance,
        None => x.map(|x| x * x),
    };
    let block = symmetric_block(x, &w, 32.0, 128.0, Steps::FINE, 0);
    let (ql, qh) = six_bits(&block.q);
    Q6_K { ql, qh, scales: block.scales, d: block.d }
}

pub(super) fn q8_k(x: &Values) -> Q8_K {
    let d = search::extreme(x) / -127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let qs = x.map(|x| nearest(x * inverse, -127.0, 127.0) as i8);
    let bsums = std::array::from_fn(|j| {
        let sum: i16 = qs[16 * j..16 * (j + 1)].iter().map(|q| i16::from(*q)).sum();
        sum.to_le_bytes()
    });
    Q8_K { d: d.to_le_bytes(), qs, bsums }
}
