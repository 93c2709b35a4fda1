//! Who owns which KV page and which state slot.

/// A pool of numbered things, each owned by at most one sequence: KV pages, state slots.
///
/// The lowest free number is given first, so that memory is touched only as far as it is needed.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Numbers given back, descending, so that the lowest is popped first.
    free: Vec<u32>,
    /// Numbers from here on were never given.
    fresh: u32,
    total: u32,
}

impl Pool {
    pub(crate) fn new(total: usize) -> Self {
        Self { free: Vec::new(), fresh: 0, total: u32::try_from(total).unwrap_or(u32::MAX) }
    }

    pub(crate) fn available(&self) -> usize {
        self.free.len() + (self.total - self.fresh) as usize
    }

    /// Takes `count` numbers, or none at all.
    pub(crate) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.available() {
            return None;
        }
        let from_free = count.min(self.free.len());
        let mut taken = self.free.split_off(self.free.len() - from_free);
        taken.reverse();
        let fresh = (count - from_free) as u32;
        taken.extend(self.fresh..self.fresh + fresh);
        self.fresh += fresh;
        Some(taken)
    }

    pub(crate) fn give_back(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.free.extend(numbers);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_lowest_first() {
        let mut pool = Pool::new(4);
        assert_eq!(pool.take(3), Some(vec![0, 1, 2]));
        assert_eq!(pool.take(2), None);
        assert_eq!(pool.available(), 1);
        pool.give_back([2, 0]);
        assert_eq!(pool.take(2), Some(vec![0, 2]));
        assert_eq!(pool.take(1), Some(vec![3]));
        assert_eq!(pool.take(0), Some(vec![]));
        assert_eq!(pool.available(), 0);
    }
}
