//! Where the threads of ranks wait for each other: what one of them does for all is done when all have come, or not at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::{Error, Result};

/// Looks at the round before a thread sleeps: ranks come within microseconds of each other, which waking takes longer than.
const LOOKS: usize = 4_000;

/// A place for so many ranks, again and again.
pub(super) struct Meeting<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// The round of the state, to be looked at without its lock.
    round: AtomicUsize,
}

struct State<T> {
    /// What those have brought who are waiting.
    brought: Vec<Option<T>>,
    /// Counts what was done.
    round: usize,
    /// The rank that failed first, and why: nobody waits for it any more.
    failed: Option<(usize, String)>,
    /// A rank that is through with its part.
    done: Option<usize>,
}

impl<T> Meeting<T> {
    pub(super) fn of(ranks: usize) -> Self {
        let brought = (0..ranks).map(|_| None).collect();
        let state = Mutex::new(State { brought, round: 0, failed: None, done: None });
        Self { state, changed: Condvar::new(), round: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Forgets that somebody failed or was through. Nobody is waiting.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        (state.failed, state.done) = (None, None);
        state.brought.iter_mut().for_each(|brought| *brought = None);
    }

    /// Says that a rank does not come any more.
    pub(super) fn fail(&self, rank: usize, why: String) {
        self.lock().failed.get_or_insert((rank, why));
        self.changed.notify_all();
    }

    /// Says that a rank is through with its part: who waits for it, or comes later, has another part.
    pub(super) fn end(&self, rank: usize) {
        self.lock().done.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// The rank that failed first.
    pub(super) fn failed(&self) -> Option<usize> {
        self.lock().failed.as_ref().map(|(rank, _)| *rank)
    }

    /// Waits until every rank has come. The last one does `act` with what all have brought, in the order of ranks.
    ///
    /// # Errors
    /// Those of `act`, for the one that does it; [`Error::Rank`] for all others when that or a rank fails.
    pub(super) fn meet(&self, rank: usize, own: T, act: impl FnOnce(Vec<T>) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        state.check()?;
        state.brought[rank] = Some(own);
        if state.brought.iter().all(Option::is_some) {
            let all = state.brought.iter_mut().filter_map(Option::take).collect();
            let result = act(all);
            if let Err(error) = &result {
                state.failed.get_or_insert((rank, error.to_string()));
            }
            state.round = state.round.wrapping_add(1);
            self.round.store(state.round, Ordering::Release);
            drop(state);
            self.changed.notify_all();
            return result;
        }
        let mine = state.round;
        drop(state);
        for _ in 0..LOOKS {
            if self.round.load(Ordering::Acquire) != mine {
                break;
            }
            std::hint::spin_loop();
        }
        let mut state = self.lock();
        while state.round == mine && state.check().is_ok() {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        if state.round != mine && state.failed.is_none() {
            return Ok(());
        }
        state.check()
    }
}

impl<T> State<T> {
    /// Whether all may still come.
    fn check(&self) -> Result<()> {
        if let Some((rank, why)) = &self.failed {
            return Err(Error::Rank { rank: *rank, why: why.clone() });
        }
        match self.done {
            Some(rank) => Err(Error::Rank { rank, why: "it has done less than the others".to_owned() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_come_acts_for_all_and_a_failure_wakes_who_waits() {
        let meeting = Meeting::of(3);
        let sums = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (meeting, sums) = (&meeting, &sums);
                scope.spawn(move || {
                    for round in 0..200 {
                        let act = |all: Vec<usize>| {
                            sums.lock().unwrap().push(all);
                            Ok(())
                        };
                        meeting.meet(rank, round * 10 + rank, act).unwrap();
                    }
                });
            }
        });
        let expected: Vec<Vec<usize>> =
            (0..200).map(|round| (0..3).map(|rank| round * 10 + rank).collect()).collect();
        assert_eq!(sums.into_inner().unwrap(), expected);

        std::thread::scope(|scope| {
            let waiting = [0, 1].map(|rank| {
                scope.spawn({
                    let meeting = &meeting;
                    move || meeting.meet(rank, rank, |_| Ok(()))
                })
            });
            meeting.fail(2, "it broke".to_owned());
            for waiting in waiting {
                let error = waiting.join().unwrap().unwrap_err();
                assert!(matches!(&error, Error::Rank { rank: 2, why } if why == "it broke"), "{error}");
            }
        });
        assert_eq!(meeting.failed(), Some(2));
        meeting.begin();
        assert_eq!(meeting.failed(), None);

        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| meeting.meet(0, 0, |_| Ok(())));
            meeting.end(1);
            assert!(waiting.join().unwrap().unwrap_err().to_string().contains("less than the others"));
        });
        assert!(meeting.meet(2, 0, |_| Ok(())).is_err(), "it comes too late");
    }
}
