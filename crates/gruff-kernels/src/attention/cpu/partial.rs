//! The softmax of some rows over some of their keys, to be merged with that over others.

use crate::cpu::simd::{LANES, Simd, exp};

/// For each row: the largest score, the sum of `exp(score - largest)`, and the values weighted by it.
pub(super) struct Partial<'a> {
    largest: &'a mut [f32],
    sum: &'a mut [f32],
    /// `[rows, width]`, of whole vectors.
    pub(super) sums: &'a mut [f32],
}

/// `e^x` of one value, the bits of the vector function.
#[inline(always)]
pub(super) fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

impl<'a> Partial<'a> {
    pub(super) fn in_memory(memory: &'a mut [f32], rows: usize) -> Self {
        let (largest, rest) = memory.split_at_mut(rows);
        let (sum, sums) = rest.split_at_mut(rows);
        Self { largest, sum, sums }
    }

    /// No keys yet.
    pub(super) fn clear(&mut self) {
        self.largest.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.sums.fill(0.0);
    }

    fn width(&self) -> usize {
        self.sums.len() / self.sum.len()
    }

    /// Largest score, sum and weighted values of a row.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> (&mut f32, &mut f32, &mut [f32]) {
        let width = self.width();
        (&mut self.largest[row], &mut self.sum[row], &mut self.sums[row * width..][..width])
    }

    /// Adds the keys of `next`, which come behind these. Rows that see none there (or none here) are left as
    /// they are (or taken over), so that a row's bits do not depend on the rows beside it.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, s: S, next: &Partial) {
        let width = self.width();
        for row in 0..self.sum.len() {
            if next.sum[row] == 0.0 {
                continue;
            }
            let (largest, sum, sums) = self.row(row);
            let added = &next.sums[row * width..][..width];
            if *sum == 0.0 {
                (*largest, *sum) = (next.largest[row], next.sum[row]);
                sums.copy_from_slice(added);
                continue;
            }
            let most = if next.largest[row] > *largest { next.largest[row] } else { *largest };
            let (ours, theirs) = (exp_of(s, *largest - most), exp_of(s, next.largest[row] - most));
            *largest = most;
            *sum = next.sum[row].mul_add(theirs, *sum * ours);
            let (ours, theirs) = (s.splat(ours), s.splat(theirs));
            let vectors = sums.as_chunks_mut::<LANES>().0.iter_mut().zip(added.as_chunks::<LANES>().0);
            for (vector, added) in vectors {
                s.store(s.mul_add(s.load(added), theirs, s.mul(s.load(vector), ours)), vector);
            }
        }
    }
}
