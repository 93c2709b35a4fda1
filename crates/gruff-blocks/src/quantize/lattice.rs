//! Nearest entries of the code books.
//!
//! A target is first rounded to the nearest level in each coordinate. If that point of the lattice is in the book it is
//! the best entry under any weights. If not, the best is among the entries close to it; these are listed for every point
//! of the lattice when a book is first used, and compared with the weights at hand.

use std::sync::LazyLock;

use crate::codebooks::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID};

/// Entries that are compared for a point that is not in the book.
const NEAR: usize = 16;

/// A code book with the entries near to every point of its lattice.
pub(super) struct Book<const D: usize> {
    /// Halfway between neighbouring levels.
    borders: Vec<f32>,
    /// The entries' levels.
    entries: Vec<[f32; D]>,
    /// For each point, the nearest entries, nearest first.
    near: Vec<[u16; NEAR]>,
    /// For each point, whether it is an entry itself, the first of those near.
    exact: Vec<bool>,
}

pub(super) static IQ1: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ1S_GRID));
pub(super) static IQ2_XXS: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2XXS_GRID));
pub(super) static IQ2_XS: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2XS_GRID));
pub(super) static IQ2_S: LazyLock<Book<8>> = LazyLock::new(|| Book::new(&IQ2S_GRID));
pub(super) static IQ3_XXS: LazyLock<Book<4>> = LazyLock::new(|| Book::new(&IQ3XXS_GRID));
pub(super) static IQ3_S: LazyLock<Book<4>> = LazyLock::new(|| Book::new(&IQ3S_GRID));

impl<const D: usize> Book<D> {
    fn new<T: Copy + Into<f32>>(grid: &[[T; D]]) -> Self {
        let entries: Vec<[f32; D]> = grid.iter().map(|entry| entry.map(Into::into)).collect();
        let mut levels: Vec<f32> = entries.iter().flatten().copied().collect();
        levels.sort_by(f32::total_cmp);
        levels.dedup();
        let borders = levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
        let points = levels.len().pow(D as u32);
        let (mut near, mut exact) = (Vec::with_capacity(points), Vec::with_capacity(points));
        let mut distances: Vec<(f32, u16)> = Vec::with_capacity(entries.len());
        for point in 0..points {
            let mut rest = point;
            let at: [f32; D] = std::array::from_fn(|_| {
                let level = levels[rest % levels.len()];
                rest /= levels.len();
                level
            });
            distances.clear();
            distances.extend((0_u16..).zip(&entries).map(|(number, entry)| {
                let distance = at.iter().zip(entry).map(|(a, b)| (a - b) * (a - b)).sum();
                (distance, number)
            }));
            let order = |a: &(f32, u16), b: &(f32, u16)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            distances.select_nth_unstable_by(NEAR - 1, order);
            distances.truncate(NEAR);
            distances.sort_by(order);
            exact.push(distances[0].0 == 0.0);
            near.push(std::array::from_fn(|i| distances[i].1));
        }
        Book { borders, entries, near, exact }
    }

    /// The levels of an entry.
    #[inline(always)]
    pub(super) fn entry(&self, number: u16) -> &[f32; D] {
        &self.entries[usize::from(number)]
    }

    /// The entry for which `sum(weights (target - entry)^2)` is least.
    #[inline(always)]
    pub(super) fn nearest(&self, target: &[f32; D], weights: &[f32; D]) -> u16 {
        // Coordinates as numbers of levels, counted by the borders below them.
        let mut steps = [0_u32; D];
        for border in &self.borders {
            for (step, value) in steps.iter_mut().zip(target) {
                *step += u32::from(value > border);
            }
        }
        let levels = self.borders.len() + 1;
        let point = steps.iter().rev().fold(0, |point, step| point * levels + *step as usize);
        let near = &self.near[point];
        if self.exact[point] {
            return near[0];
        }
        let (mut best, mut least) = (near[0], f32::INFINITY);
        for number in near {
            let entry = self.entry(*number);
            let mut terms = [0.0; D];
            for i in 0..D {
                let difference = target[i] - entry[i];
                terms[i] = weights[i] * difference * difference;
            }
            // In two halves, so that the sum is not one long chain.
            let (left, right) = terms.split_at(D / 2);
            let distance = left.iter().sum::<f32>() + right.iter().sum::<f32>();
            if distance < least {
                (best, least) = (*number, distance);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best of all entries.
    fn best<const D: usize>(book: &Book<D>, target: &[f32; D], weights: &[f32; D]) -> f32 {
        let entries = 0..book.entries.len() as u16;
        entries.map(|number| distance(book, number, target, weights)).fold(f32::INFINITY, f32::min)
    }

    fn distance<const D: usize>(book: &Book<D>, number: u16, target: &[f32; D], weights: &[f32; D]) -> f32 {
        (0..D).map(|i| weights[i] * (target[i] - book.entry(number)[i]).powi(2)).sum()
    }

    #[test]
    fn entries_are_found_and_others_come_near() {
        let weights = [1.0, 3.0, 0.5, 1.0, 2.0, 1.0, 0.2, 1.0];
        let (mut found, mut possible) = (0.0, 0.0);
        for number in 0..IQ2_XS.entries.len() as u16 {
            let entry = *IQ2_XS.entry(number);
            assert_eq!(IQ2_XS.nearest(&entry, &weights), number);
            let mut moved = entry;
            for (i, value) in moved.iter_mut().enumerate() {
                *value += ((usize::from(number) * 31 + i * 17) % 29) as f32 - 14.0;
            }
            found += distance(&IQ2_XS, IQ2_XS.nearest(&moved, &weights), &moved, &weights);
            possible += best(&IQ2_XS, &moved, &weights);
        }
        assert!(found >= possible && found < 1.02 * possible, "{found} {possible}");
    }
}
