//! A pool of threads that share the pieces of one operation and sleep between operations.

use crate::{Error, Result};

/// Threads that compute one operation at a time, the calling thread among them.
pub(crate) struct Pool {
    threads: usize,
}

impl Pool {
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        match threads {
            Some(0) => Err(Error::Option { what: "0 threads cannot compute; ask for at least 1".into() }),
            Some(threads) => Ok(Self { threads }),
            None => Ok(Self { threads: available }),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `piece(i)` once for every i in `0..pieces`, on any thread, in any order, and returns when all
    /// are done.
    pub(crate) fn for_each(&self, pieces: usize, piece: impl Fn(usize) + Sync) {
        (0..pieces).for_each(piece);
    }
}
