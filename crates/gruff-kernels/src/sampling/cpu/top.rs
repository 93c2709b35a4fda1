//! The largest values of a row.

use super::scan::{BLOCK, block_maxima};
use crate::Isa;

/// A row and the largest value of each of its blocks.
pub(super) struct Blocks<'a> {
    row: &'a [f32],
    maxima: &'a [f32],
}

impl<'a> Blocks<'a> {
    /// Values of scratch for a row of this length.
    pub(super) fn scratch(len: usize) -> usize {
        len.div_ceil(BLOCK)
    }

    pub(super) fn of(isa: Isa, row: &'a [f32], scratch: &'a mut [f32]) -> Self {
        let maxima = &mut scratch[..Self::scratch(row.len())];
        block_maxima(isa, row, maxima);
        Self { row, maxima }
    }

    pub(super) fn row(&self) -> &'a [f32] {
        self.row
    }

    /// The first index of the largest value; `None` without one above minus infinity.
    pub(super) fn largest(&self) -> Option<usize> {
        let most = self.maxima.iter().fold(f32::NEG_INFINITY, |most, x| if *x > most { *x } else { most });
        if most == f32::NEG_INFINITY {
            return None;
        }
        let block = self.maxima.iter().position(|x| *x == most)?;
        let within = self.row[block * BLOCK..].iter().position(|x| *x == most)?;
        Some(block * BLOCK + within)
    }

    /// The indices of the `count` largest values and of those equal to the last of them, in descending order
    /// of value and ascending order of index. NaN is not among them.
    pub(super) fn top(&self, count: usize) -> Vec<u32> {
        let bound = self.bound(count);
        let mut ids: Vec<u32> = Vec::with_capacity(2 * count.min(self.row.len()));
        for (index, block) in self.row.chunks(BLOCK).enumerate() {
            if self.maxima[index] >= bound {
                let above = block.iter().zip((index * BLOCK) as u32..).filter(|(x, _)| **x >= bound);
                ids.extend(above.map(|(_, id)| id));
            }
        }
        let value = |id: &u32| self.row[*id as usize];
        let order = |a: &u32, b: &u32| value(b).total_cmp(&value(a)).then(a.cmp(b));
        if count < ids.len() {
            let (_, last, _) = ids.select_nth_unstable_by(count - 1, order);
            let least = value(last);
            ids.retain(|id| value(id) >= least);
        }
        ids.sort_unstable_by(order);
        ids
    }

    /// A value that at least `count` values reach: the `count`-th largest of the blocks' largest ones.
    fn bound(&self, count: usize) -> f32 {
        if count >= self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        let mut maxima = self.maxima.to_vec();
        *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Values;

    #[test]
    fn top_equals_a_full_sort() {
        let mut values = Values::new(1);
        for len in [1, 5, 63, 64, 65, 1000, 5000] {
            // Coarse values, so that there are ties; some NaN and infinities.
            let row: Vec<f32> = (0..len)
                .map(|_| match values.below(50) {
                    0 => f32::NAN,
                    1 => f32::NEG_INFINITY,
                    _ => (values.unit() * 40.0).round() as f32,
                })
                .collect();
            let mut sorted: Vec<u32> = (0..len as u32).filter(|i| !row[*i as usize].is_nan()).collect();
            sorted.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
            let mut scratch = vec![0.0; Blocks::scratch(len)];
            let blocks = Blocks::of(Isa::Avx2, &row, &mut scratch);
            for count in [1, 2, 7, 40, 900, 5000] {
                let least = sorted.get(count - 1).map_or(f32::NEG_INFINITY, |id| row[*id as usize]);
                let expected: Vec<u32> =
                    sorted.iter().copied().filter(|id| row[*id as usize] >= least).collect();
                assert_eq!(blocks.top(count), expected, "top {count} of {len}");
            }
            let finite = sorted.first().filter(|id| row[**id as usize] > f32::NEG_INFINITY);
            assert_eq!(blocks.largest(), finite.map(|id| *id as usize));
        }
    }
}
