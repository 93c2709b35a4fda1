//! What the code-book types share: a scale for each sub-block, searched by trying some and taking the nearest entries,
//! then stored as an odd multiple of the super-block's.

use super::search::{Scale, nearest, scale_of_levels};

/// Entries for a sub-block under one scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picks<P> {
    /// Which entries.
    pub(super) picks: P,
    /// `sum(w x g)`, with `g` the entries' levels.
    pub(super) wxg: f32,
    /// `sum(w g g)`.
    pub(super) wgg: f32,
}

impl<P> Picks<P> {
    /// What the entries take off `sum(w x x)` under a scale.
    pub(super) fn gain(&self, scale: f32) -> f32 {
        scale * (2.0 * self.wxg - scale * self.wgg)
    }
}

/// A super-block: the unit of its scales, and for each sub-block the odd multiple of it and the entries.
pub(super) struct OddScales<P, const COUNT: usize> {
    pub(super) unit: f32,
    /// `(multiple - 1) / 2`, as it is stored.
    pub(super) scales: [u8; COUNT],
    pub(super) picks: [P; COUNT],
}

/// Finds scales and entries of a super-block.
///
/// `inverses` are the inverse scales to try for a sub-block, `pick` gives the nearest entries under one. Multiples are
/// odd numbers up to `top`; `wxx` is `sum(w x x)`.
#[inline(always)]
pub(super) fn odd_scales<P: Copy, const COUNT: usize, I: IntoIterator<Item = f32>>(
    top: f32,
    wxx: f32,
    inverses: impl Fn(usize) -> I,
    pick: impl Fn(usize, f32) -> Picks<P>,
) -> OddScales<P, COUNT> {
    let found: [Scale; COUNT] = std::array::from_fn(|j| best_scale(inverses(j), |inverse| pick(j, inverse)));
    let odd = |value: f32| 2.0 * nearest((value - 1.0) / 2.0, 0.0, (top - 1.0) / 2.0) + 1.0;
    let ends = (-6..=6).map(|step| top + 0.25 * step as f32);
    let unit = scale_of_levels(&found.map(|f| f.value), &found.map(|f| f.weight), odd, ends).value;
    let mut multiples = [1.0; COUNT];
    let chosen: [Picks<P>; COUNT] = std::array::from_fn(|j| {
        if unit <= 0.0 {
            return pick(j, 0.0);
        }
        let wanted = odd(found[j].value / unit);
        let mut best = pick(j, 1.0 / (unit * wanted));
        multiples[j] = wanted;
        for other in [wanted - 2.0, wanted + 2.0] {
            if other < 1.0 || other > top {
                continue;
            }
            let picks = pick(j, 1.0 / (unit * other));
            if picks.gain(unit * other) > best.gain(unit * multiples[j]) {
                (best, multiples[j]) = (picks, other);
            }
        }
        best
    });
    // The entries stay; the unit is fitted to them once more.
    let wxg: f32 = chosen.iter().zip(multiples).map(|(picks, multiple)| multiple * picks.wxg).sum();
    let wgg: f32 =
        chosen.iter().zip(multiples).map(|(picks, multiple)| multiple * multiple * picks.wgg).sum();
    // Least squares makes coarse blocks smaller than what they stand for, which models mind more than a little more
    // error: the unit is raised until the size is kept.
    let kept = wxg * wxg / (wgg * wxx);
    let unit = if unit > 0.0 && wxg > 0.0 && kept > 0.0 { wxg / wgg / kept.sqrt() } else { 0.0 };
    OddScales {
        unit,
        scales: multiples.map(|multiple| (multiple / 2.0) as u8),
        picks: chosen.map(|picks| picks.picks),
    }
}

/// The scale whose entries take most off the error; the best is improved by picking again with its own scale.
#[inline(always)]
fn best_scale<P>(inverses: impl IntoIterator<Item = f32>, pick: impl Fn(f32) -> Picks<P>) -> Scale {
    let (mut best, mut score) = (Scale::default(), 0.0);
    let mut consider = |inverse: f32| {
        let Picks { wxg, wgg, .. } = pick(inverse);
        if wgg > 0.0 && wxg > 0.0 && wxg * wxg > score * wgg {
            best = Scale { value: wxg / wgg, weight: wgg };
            score = wxg * best.value;
        }
        best.value
    };
    let mut value = 0.0;
    for inverse in inverses {
        value = consider(inverse);
    }
    if value > 0.0 {
        consider(1.0 / value);
    }
    best
}
