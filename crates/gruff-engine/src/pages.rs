//! Who owns which KV page and which state slot.

/// A pool of numbered things: KV pages, which several sequences may share, and state slots.
///
/// The lowest free number is given first, so that memory is touched only as far as it is needed.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Numbers given back, descending, so that the lowest is popped first.
    free: Vec<u32>,
    /// How many own each number that was ever given.
    owners: Vec<u32>,
    total: u32,
}

impl Pool {
    pub(crate) fn new(total: usize) -> Self {
        Self { free: Vec::new(), owners: Vec::new(), total: u32::try_from(total).unwrap_or(u32::MAX) }
    }

    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.total as usize - self.owners.len()
    }

    /// Takes `count` numbers, or none at all.
    pub(crate) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.available() {
            return None;
        }
        let from_free = count.min(self.free.len());
        let mut taken = self.free.split_off(self.free.len() - from_free);
        taken.reverse();
        let fresh = self.owners.len() as u32;
        taken.extend(fresh..fresh + (count - from_free) as u32);
        self.owners.resize(self.owners.len() + count - from_free, 0);
        for number in &taken {
            self.owners[*number as usize] = 1;
        }
        Some(taken)
    }

    /// One more owner of each of the numbers.
    pub(crate) fn share(&mut self, numbers: &[u32]) {
        for number in numbers {
            self.owners[*number as usize] += 1;
        }
    }

    /// How many own each number that was ever given.
    pub(crate) fn owners(&self) -> &[u32] {
        &self.owners
    }

    /// Whether a number has several owners.
    pub(crate) fn is_shared(&self, number: u32) -> bool {
        self.owners[number as usize] > 1
    }

    /// One owner less of each of the numbers; those without any are free.
    pub(crate) fn give_back(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            let owners = &mut self.owners[number as usize];
            *owners -= 1;
            if *owners == 0 {
                self.free.push(number);
            }
        }
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

    #[test]
    fn what_is_shared_is_free_when_the_last_owner_gives_it_back() {
        let mut pool = Pool::new(3);
        let pages = pool.take(2).unwrap();
        pool.share(&pages[..1]);
        pool.give_back(pages);
        assert!(!pool.is_shared(0));
        assert_eq!(pool.available(), 2);
        pool.give_back([0]);
        assert_eq!(pool.available(), 3);
    }
}
