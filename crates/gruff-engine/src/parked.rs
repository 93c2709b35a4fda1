//! What finished sequences leave in the caches, to be continued: the next turn of a conversation begins where
//! the last one ended.

use gruff_kernels::PAGE_LEN;
use gruff_models::LoraScales;

/// A finished sequence that still owns its pages and slot.
#[derive(Debug)]
pub(crate) struct Parked {
    /// The tokens that the caches hold.
    pub(crate) tokens: Vec<u32>,
    /// KV pages, in order.
    pub(crate) pages: Vec<u32>,
    /// State slot.
    pub(crate) slot: u32,
    /// Tokens that ever went through the slot, dropped ones included.
    pub(crate) head: usize,
    /// Scales of adapters that they were computed with.
    pub(crate) adapters: Option<LoraScales>,
}

/// How far back a sequence can be cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewind {
    /// `None`: to any length (keys and values only). Otherwise the most tokens that can be dropped
    /// (recurrent state).
    pub(crate) most: Option<usize>,
}

impl Rewind {
    /// Tokens of `parked` that `prompt` can continue from; 0 when it is of no use. At least one token of the
    /// prompt is left to compute, since its logits are wanted.
    fn usable(self, parked: &Parked, prompt: &[u32]) -> usize {
        let common = parked.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let usable = common.min(prompt.len().saturating_sub(1));
        match self.most {
            Some(most) if parked.head.saturating_sub(usable) > most => 0,
            _ => usable,
        }
    }
}

/// The parked sequences, least recently used first.
#[derive(Debug, Default)]
pub(crate) struct ParkingLot {
    parked: Vec<Parked>,
}

impl ParkingLot {
    pub(crate) fn park(&mut self, parked: Parked) {
        self.parked.push(parked);
    }

    /// Takes out the sequence that saves `prompt` the most tokens, with how many. It was computed with the same
    /// adapters.
    pub(crate) fn best(
        &mut self,
        prompt: &[u32],
        adapters: Option<&LoraScales>,
        rewind: Rewind,
    ) -> Option<(Parked, usize)> {
        let (index, usable) = self
            .parked
            .iter()
            .enumerate()
            .filter(|(_, parked)| parked.adapters.as_ref() == adapters)
            .map(|(index, parked)| (index, rewind.usable(parked, prompt)))
            .max_by_key(|(_, usable)| *usable)?;
        // Less than a page is not worth taking a conversation's cache away.
        (usable >= PAGE_LEN.min(prompt.len().saturating_sub(1)) && usable > 0)
            .then(|| (self.parked.remove(index), usable))
    }

    /// Gives up the least recently used.
    pub(crate) fn evict(&mut self) -> Option<Parked> {
        (!self.parked.is_empty()).then(|| self.parked.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(tokens: &[u32]) -> Parked {
        Parked { tokens: tokens.to_vec(), pages: Vec::new(), slot: 0, head: tokens.len(), adapters: None }
    }

    #[test]
    fn any_rewind_uses_the_common_prefix() {
        let rewind = Rewind { most: None };
        assert_eq!(rewind.usable(&parked(&[1, 2, 3, 4]), &[1, 2, 9]), 2);
        assert_eq!(rewind.usable(&parked(&[1, 2, 3]), &[1, 2, 3]), 2);
        assert_eq!(rewind.usable(&parked(&[1, 2, 3]), &[5]), 0);
    }

    #[test]
    fn recurrent_state_goes_back_only_so_far() {
        let rewind = Rewind { most: Some(1) };
        assert_eq!(rewind.usable(&parked(&[1, 2, 3]), &[1, 2, 3, 4]), 3);
        assert_eq!(rewind.usable(&parked(&[1, 2, 3]), &[1, 2, 9, 4]), 2);
        assert_eq!(rewind.usable(&parked(&[1, 2, 3]), &[1, 9, 9, 4]), 0);
        assert_eq!(Rewind { most: Some(0) }.usable(&parked(&[1, 2, 3]), &[1, 2, 3]), 0);
    }

    #[test]
    fn the_longest_saving_is_taken_and_the_oldest_given_up() {
        let mut lot = ParkingLot::default();
        lot.park(parked(&[7; 40]));
        lot.park(parked(&[1; 50]));
        lot.park(parked(&[1; 60]));
        let (best, usable) = lot.best(&[1; 80], None, Rewind { most: None }).unwrap();
        assert_eq!((best.tokens.len(), usable), (60, 60));
        assert_eq!(lot.evict().unwrap().tokens[0], 7);
        assert!(lot.best(&[2; 80], None, Rewind { most: None }).is_none());
    }
    #[test]
    fn other_adapters_compute_other_caches() {
        let scales = |scale: f32| Some(LoraScales::from([("a".to_owned(), scale)]));
        let mut lot = ParkingLot::default();
        lot.park(Parked { adapters: scales(1.0), ..parked(&[1; 60]) });
        lot.park(Parked { adapters: scales(0.5), ..parked(&[1; 50]) });
        let rewind = Rewind { most: None };
        assert!(lot.best(&[1; 80], None, rewind).is_none());
        assert_eq!(lot.best(&[1; 80], scales(0.5).as_ref(), rewind).unwrap().1, 50);
        assert!(lot.best(&[1; 80], scales(0.5).as_ref(), rewind).is_none());
    }
}
