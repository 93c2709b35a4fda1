//! Memory that is kept for later, and what becomes of it where there is no other.

use super::Inner;
use crate::buffer::Reuse;

/// Memory of a device that is kept for later, though nobody holds it. Giving it back waits for kernels that use it.
pub(crate) trait Spare: Send + Sync {
    /// Gives back scratch memory, and what operations took beside tensors.
    fn forget_scratch(&self);

    /// Gives back the memory of all recordings, which are made anew when their steps come again; `false` where there is
    /// none, or one of them or its result is in use.
    fn forget_recordings(&self) -> bool;

    /// Whether anything can be given back: nothing while this thread makes a recording, which it may be part of.
    fn can_be_given_back(&self) -> bool;
}

/// Takes memory; where there is none, once more when what is kept was given back, recordings last.
pub(crate) fn take_or_make_room<T>(spare: &dyn Spare, take: impl Fn() -> Option<T>) -> Option<T> {
    let again = || {
        if !spare.can_be_given_back() {
            return None;
        }
        // What was given back for steps of other sizes may be in the way.
        spare.forget_scratch();
        take().or_else(|| spare.forget_recordings().then(&take)?)
    };
    take().or_else(again)
}

impl Spare for Inner {
    fn forget_scratch(&self) {
        self.forget_free();
    }

    fn forget_recordings(&self) -> bool {
        self.forget_recorded()
    }

    fn can_be_given_back(&self) -> bool {
        self.backend.scratch_reuse() != Reuse::Recorded
    }
}
