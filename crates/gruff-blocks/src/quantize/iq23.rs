//! IQ2 and IQ3: magnitudes from code books, signs beside them.

use super::iq::{OddScales, Picks, odd_scales};
use super::lattice::{self, Book};
use super::mean_square;
use super::search::{NOTHING, sums};
use crate::block::{F16, U16};
use crate::iq::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

type Values = [f32; 256];

/// Where the largest magnitude of a sub-block is put, as a share of the largest level. With three levels cutting off
/// the largest values costs models more than the error tells; with eight there is less to choose.
const NARROW: [f32; 7] = [0.84, 0.89, 0.94, 1.0, 1.04, 1.08, 1.12];
const WIDE: [f32; 7] = [0.78, 0.86, 0.93, 1.0, 1.07, 1.15, 1.25];

/// What scales are multiplied by after the search, for the types whose entries are furthest from the values.
///
/// Least squares shortens what it fits: the part of a value that no entry follows is missing from the scale. Over the
/// hundreds of rounded products behind a logit that adds up, and models are nearer to themselves, in KL divergence,
/// with the scale for which `sum(w x unpacked)` is `sum(w x x)` again. The factors are that ratio's mean over trained
/// matrices, less where the divergence asked for less; finer types gain nothing from one.
const LIFT_XXS: f32 = 1.012;
const LIFT_XS: f32 = 1.03;
const LIFT_S: f32 = 1.015;

/// How signs are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signs {
    /// A bit for each value.
    Free,
    /// Seven bits for eight values: the number of negative ones is even.
    Even,
}

/// A super-block's magnitudes, signs and weights.
struct Parts {
    /// Magnitudes; a value that got the wrong sign is negative here.
    x: Values,
    w: Values,
    /// For each eight values, a bit for each: set means negative.
    signs: [u8; 32],
}

fn parts(x: &Values, importance: Option<&Values>, kind: Signs) -> Parts {
    let mean = mean_square(x);
    let w: Values = std::array::from_fn(|i| {
        importance.map_or(1.0, |importance| importance[i]) * (mean + x[i] * x[i]).sqrt()
    });
    let mut magnitudes = x.map(f32::abs);
    let signs = std::array::from_fn(|k| {
        let mut signs = (0..8).fold(0, |signs: u8, i| signs | u8::from(x[8 * k + i] < 0.0) << i);
        if kind == Signs::Even && signs.count_ones() % 2 == 1 {
            // The value whose wrong sign costs least gets it.
            let cost = |i: usize| w[8 * k + i] * x[8 * k + i] * x[8 * k + i];
            let cheapest = (1..8).fold(0, |best, i| if cost(i) < cost(best) { i } else { best });
            signs ^= 1 << cheapest;
            magnitudes[8 * k + cheapest] *= -1.0;
        }
        signs
    });
    Parts { x: magnitudes, w, signs }
}

/// Finds scales and entries: sub-blocks of `SUB` values, `GROUPS` entries of `D` values each.
fn search<const D: usize, const SUB: usize, const GROUPS: usize, const COUNT: usize>(
    book: &Book<D>,
    parts: &Parts,
    largest: f32,
    ends: &'static [f32; 7],
) -> OddScales<[u16; GROUPS], COUNT> {
    const { assert!(D * GROUPS == SUB && SUB * COUNT == 256) }
    let (x, w) = (parts.x.as_chunks::<D>().0, parts.w.as_chunks::<D>().0);
    let inverses = |j: usize| {
        let values = &parts.x[SUB * j..SUB * (j + 1)];
        let most = values.iter().fold(0.0, |most: f32, value| most.max(*value));
        let ends = if most < NOTHING { &[][..] } else { &ends[..] };
        ends.iter().map(move |end| end * largest / most)
    };
    let pick = |j: usize, inverse: f32| {
        let (mut wxg, mut wgg) = ([0.0; D], [0.0; D]);
        let picks = std::array::from_fn(|group| {
            let (x, w) = (&x[GROUPS * j + group], &w[GROUPS * j + group]);
            let number = book.nearest(&x.map(|x| x * inverse), w);
            let entry = book.entry(number);
            for i in 0..D {
                let weighed = w[i] * entry[i];
                wxg[i] += weighed * x[i];
                wgg[i] += weighed * entry[i];
            }
            number
        });
        Picks { picks, wxg: wxg.iter().sum(), wgg: wgg.iter().sum() }
    };
    let [wxx] = sums::<256, 1>(|i| [parts.w[i] * parts.x[i] * parts.x[i]]);
    odd_scales(31.0, wxx, inverses, pick)
}

/// Two 4-bit scales a byte, the first in the low half.
fn half_bytes<const N: usize>(scales: &[u8]) -> [u8; N] {
    std::array::from_fn(|k| scales[2 * k] | scales[2 * k + 1] << 4)
}

/// Four sign patterns of seven bits below a 4-bit scale.
fn signs_and_scale(signs: &[u8], scale: u8) -> [u8; 4] {
    let patterns = (0..4).fold(0, |word: u32, k| word | u32::from(signs[k] & 127) << (7 * k));
    (patterns | u32::from(scale) << 28).to_le_bytes()
}

pub(super) fn iq2_xxs(x: &Values, importance: Option<&Values>) -> IQ2_XXS {
    let parts = parts(x, importance, Signs::Even);
    let found: OddScales<[u16; 4], 8> = search::<8, 32, 4, 8>(&lattice::IQ2_XXS, &parts, 43.0, &NARROW);
    let qs = std::array::from_fn(|j| {
        let [a, b, c, d] = found.picks[j].map(|pick| pick as u8);
        let [e, f, g, h] = signs_and_scale(&parts.signs[4 * j..4 * (j + 1)], found.scales[j]);
        [a, b, c, d, e, f, g, h]
    });
    IQ2_XXS { d: F16::from(8.0 * LIFT_XXS * found.unit), qs }
}

pub(super) fn iq2_xs(x: &Values, importance: Option<&Values>) -> IQ2_XS {
    let parts = parts(x, importance, Signs::Even);
    let found: OddScales<[u16; 2], 16> = search::<8, 16, 2, 16>(&lattice::IQ2_XS, &parts, 43.0, &NARROW);
    let qs = std::array::from_fn(|k| {
        let word = found.picks[k / 2][k % 2] | u16::from(parts.signs[k] & 127) << 9;
        U16(word.to_le_bytes())
    });
    IQ2_XS { d: F16::from(8.0 * LIFT_XS * found.unit), qs, scales: half_bytes(&found.scales) }
}

pub(super) fn iq2_s(x: &Values, importance: Option<&Values>) -> IQ2_S {
    let parts = parts(x, importance, Signs::Free);
    let found: OddScales<[u16; 2], 16> = search::<8, 16, 2, 16>(&lattice::IQ2_S, &parts, 43.0, &WIDE);
    let pick = |k: usize| found.picks[k / 2][k % 2];
    IQ2_S {
        d: F16::from(8.0 * LIFT_S * found.unit),
        qs: std::array::from_fn(|k| pick(k) as u8),
        signs: parts.signs,
        qh: std::array::from_fn(|j| {
            (0..4).fold(0, |bits, k| bits | ((pick(4 * j + k) >> 8) as u8) << (2 * k))
        }),
        scales: half_bytes(&found.scales),
    }
}

pub(super) fn iq3_xxs(x: &Values, importance: Option<&Values>) -> IQ3_XXS {
    let parts = parts(x, importance, Signs::Even);
    let found: OddScales<[u16; 8], 8> = search::<4, 32, 8, 8>(&lattice::IQ3_XXS, &parts, 62.0, &WIDE);
    IQ3_XXS {
        d: F16::from(4.0 * found.unit),
        qs: std::array::from_fn(|k| found.picks[k / 8][k % 8] as u8),
        scales_and_signs: std::array::from_fn(|j| {
            signs_and_scale(&parts.signs[4 * j..4 * (j + 1)], found.scales[j])
        }),
    }
}

pub(super) fn iq3_s(x: &Values, importance: Option<&Values>) -> IQ3_S {
    let parts = parts(x, importance, Signs::Free);
    let found: OddScales<[u16; 8], 8> = search::<4, 32, 8, 8>(&lattice::IQ3_S, &parts, 15.0, &WIDE);
    IQ3_S {
        d: F16::from(found.unit),
        qs: std::array::from_fn(|k| found.picks[k / 8][k % 8] as u8),
        qh: std::array::from_fn(|j| (0..8).fold(0, |bits, k| bits | ((found.picks[j][k] >> 8) as u8) << k)),
        signs: parts.signs,
        scales: half_bytes(&found.scales),
    }
}
