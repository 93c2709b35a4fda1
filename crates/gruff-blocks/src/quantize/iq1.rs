//! IQ1: eight values of -1, 0 or 1 from a code book, all a little above or all a little below.

use super::iq::{OddScales, Picks, odd_scales};
use super::lattice::{self, Book};
use super::mean_square;
use super::search::{NOTHING, sums};
use crate::block::{F16, U16};
use crate::iq::{IQ1_DELTA, IQ1_M, IQ1_S};

type Values = [f32; 256];

/// Scales to try, as shares of a sub-block's root mean square.
const SCALES: [f32; 6] = [0.8, 1.0, 1.2, 1.4, 1.65, 2.0];

/// What the scale of `IQ1_S` is multiplied by after a search that keeps the size of a block. How much of that size a
/// model wants back differs: by KL divergence a hybrid model of 9 million parameters is best off at 1, SmolLM2 at 0.9
/// or below. This costs neither much.
const LIFT_IQ1_S: f32 = 0.95;

/// An entry and whether its values are shifted down.
type Pick = (u16, bool);

/// The book, shared by all threads, and a super-block's values and weights in groups of eight.
struct Search<'a> {
    book: &'a Book<8>,
    x: &'a [[f32; 8]],
    w: &'a [[f32; 8]],
}

impl Search<'_> {
    /// The best entry for group `k` under one shift.
    #[inline(always)]
    fn group(&self, k: usize, inverse: f32, down: bool) -> Picks<Pick> {
        let shift = if down { -IQ1_DELTA } else { IQ1_DELTA };
        let (x, w) = (&self.x[k], &self.w[k]);
        let number = self.book.nearest(&x.map(|x| x * inverse - shift), w);
        let entry = self.book.entry(number);
        let (mut wxg, mut wgg) = ([0.0; 8], [0.0; 8]);
        for i in 0..8 {
            let level = entry[i] + shift;
            let weighed = w[i] * level;
            wxg[i] = weighed * x[i];
            wgg[i] = weighed * level;
        }
        Picks { picks: (number, down), wxg: wxg.iter().sum(), wgg: wgg.iter().sum() }
    }
}

/// Inverse scales to try for `SUB` values.
fn inverses<const SUB: usize>(x: &Values, j: usize) -> impl Iterator<Item = f32> + use<SUB> {
    let sub_block: &[f32; SUB] = &x.as_chunks().0[j];
    let rms = mean_square(sub_block).sqrt();
    let scales = if rms < NOTHING { &[][..] } else { &SCALES[..] };
    scales.iter().map(move |scale| 1.0 / (scale * rms))
}

fn weights(x: &Values, importance: Option<&Values>) -> Values {
    let mean = 2.0 * mean_square(x);
    std::array::from_fn(|i| importance.map_or(1.0, |importance| importance[i]) * (mean + x[i] * x[i]).sqrt())
}

/// `sum(w x x)`.
fn size(x: &Values, w: &Values) -> f32 {
    let [size] = sums::<256, 1>(|i| [w[i] * x[i] * x[i]]);
    size
}

/// The sum of two groups' picks.
fn join<A, B, P>(a: Picks<A>, b: Picks<B>, picks: impl Fn(A, B) -> P) -> Picks<P> {
    Picks { wxg: a.wxg + b.wxg, wgg: a.wgg + b.wgg, picks: picks(a.picks, b.picks) }
}

pub(super) fn iq1_s(x: &Values, importance: Option<&Values>) -> IQ1_S {
    let w = weights(x, importance);
    let search = Search { book: &lattice::IQ1, x: x.as_chunks().0, w: w.as_chunks().0 };
    // One shift for the four groups of a sub-block.
    let pick = |j: usize, inverse: f32| -> Picks<([u16; 4], bool)> {
        let shifted = |down: bool| {
            let mut all = Picks { picks: ([0; 4], down), wxg: 0.0, wgg: 0.0 };
            for k in 0..4 {
                let group = search.group(4 * j + k, inverse, down);
                all.picks.0[k] = group.picks.0;
                all.wxg += group.wxg;
                all.wgg += group.wgg;
            }
            all
        };
        let (up, down) = (shifted(false), shifted(true));
        let scale = if inverse > 0.0 { 1.0 / inverse } else { 0.0 };
        if down.gain(scale) > up.gain(scale) { down } else { up }
    };
    let found: OddScales<([u16; 4], bool), 8> = odd_scales(15.0, size(x, &w), |j| inverses::<32>(x, j), pick);
    IQ1_S {
        d: F16::from(LIFT_IQ1_S * found.unit),
        qs: std::array::from_fn(|k| found.picks[k / 4].0[k % 4] as u8),
        qh: std::array::from_fn(|j| {
            let (entries, down) = found.picks[j];
            let high = (0..4).fold(0, |word, k| word | (entries[k] >> 8) << (3 * k));
            U16((high | u16::from(found.scales[j]) << 12 | u16::from(down) << 15).to_le_bytes())
        }),
    }
}

pub(super) fn iq1_m(x: &Values, importance: Option<&Values>) -> IQ1_M {
    let w = weights(x, importance);
    let search = Search { book: &lattice::IQ1, x: x.as_chunks().0, w: w.as_chunks().0 };
    // Each group has a shift of its own.
    let pick = |j: usize, inverse: f32| -> Picks<[Pick; 2]> {
        let scale = if inverse > 0.0 { 1.0 / inverse } else { 0.0 };
        let group = |k: usize| {
            let (up, down) = (search.group(k, inverse, false), search.group(k, inverse, true));
            if down.gain(scale) > up.gain(scale) { down } else { up }
        };
        join(group(2 * j), group(2 * j + 1), |a, b| [a, b])
    };
    let found: OddScales<[Pick; 2], 16> = odd_scales(15.0, size(x, &w), |j| inverses::<16>(x, j), pick);
    let pick = |k: usize| found.picks[k / 2][k % 2];
    let half = |k: usize| (pick(k).0 >> 8) as u8 | u8::from(pick(k).1) << 3;
    let d = u16::from_le_bytes(F16::from(found.unit).0);
    IQ1_M {
        qs: std::array::from_fn(|k| pick(k).0 as u8),
        qh: std::array::from_fn(|k| half(2 * k) | half(2 * k + 1) << 4),
        scales: std::array::from_fn(|n| {
            let scales = (0..4).fold(0, |word, k| word | u16::from(found.scales[4 * n + k]) << (3 * k));
            U16((scales | (d >> (4 * n) & 15) << 12).to_le_bytes())
        }),
    }
}
