//! Steps that are recorded and replayed, and the memory that their recordings share; kernels that are got ready ahead.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::memory::BORDER;
use super::{Backend, Device, Inner, lock};
use crate::buffer::{Buffer, Memory, Reuse};
use crate::replay::{MOST_SEQUENCES, Recording};
use crate::{Error, Result, Step};

/// Memory that only recordings use, one of them at a time, so that it is as large as the largest of them needs: each lays
/// its intermediate results out from the beginning. Their kernels know its addresses: it is given back, or made larger, only
/// together with all of them.
#[derive(Default)]
pub(super) struct Recorded {
    whole: Option<Memory>,
    bytes: usize,
    /// Of the recording that is being made: how far it reaches, and what is free again below that, by size.
    end: usize,
    pub(super) free: HashMap<usize, Vec<usize>>,
    /// Pieces that are in use.
    pub(super) in_use: usize,
    pub(super) leased: bool,
    /// Counts how often it was given back: recordings from before are void.
    generation: u64,
}

impl Recorded {
    /// Where its memory begins; where nothing ever is, as long as there is none.
    pub(super) fn base(&self) -> u64 {
        const NOWHERE: u64 = 1 << 20;
        self.whole.as_ref().and_then(Memory::address).unwrap_or(NOWHERE)
    }

    /// Where a piece lies in the recording that is being made.
    pub(super) fn lay_out(&mut self, bytes: usize) -> usize {
        self.in_use += 1;
        self.free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
            let offset = self.end;
            self.end += bytes.next_multiple_of(BORDER);
            offset
        })
    }
}

/// The right to record or replay. Handed on to the result, it ends when that is dropped.
pub(crate) struct Lease<'a>(&'a Device);

impl Lease<'_> {
    /// The piece of memory with this address.
    pub(crate) fn take(self, bytes: usize, address: u64) -> Option<Buffer> {
        let mut recorded = lock(&self.0.inner.recorded);
        let begin = recorded.whole.as_ref()?.address()?;
        let offset = usize::try_from(address.checked_sub(begin)?).ok()?;
        if offset.checked_add(bytes)? > recorded.bytes {
            return None;
        }
        let memory = self.0.inner.backend.part(address, bytes)?;
        recorded.in_use += 1;
        drop(recorded);
        let buffer = Buffer::new(self.0, memory, bytes, Reuse::Leased);
        std::mem::forget(self);
        Some(buffer)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        lock(&self.0.inner.recorded).leased = false;
    }
}

impl Device {
    /// Whether steps can be recorded now: while operations are counted, each is launched by itself.
    pub(crate) fn records(&self) -> bool {
        self.inner.backend.records() && !self.inner.profile.is_on()
    }

    /// Of steps of one token a sequence, with up to `most` of them, the largest that is recorded; 0 where none is.
    pub fn recorded_sequences(&self, most: usize) -> usize {
        if self.inner.backend.records() { most.min(MOST_SEQUENCES) } else { 0 }
    }

    /// The right to record or replay; `None` while somebody else has it or holds a recording's result.
    pub(crate) fn lease(&self) -> Option<Lease<'_>> {
        let mut recorded = lock(&self.inner.recorded);
        if recorded.leased || recorded.in_use > 0 {
            return None;
        }
        recorded.leased = true;
        Some(Lease(self))
    }

    /// Which recordings are good, as long as a lease lasts: those that were made in this generation.
    pub(crate) fn recordings_generation(&self) -> u64 {
        lock(&self.inner.recorded).generation
    }

    /// Begins to lay a recording out; for whoever has the lease.
    pub(crate) fn begin_recording(&self) {
        let mut recorded = lock(&self.inner.recorded);
        recorded.end = 0;
        recorded.free.clear();
    }

    /// Whether there was room for the recording that was just laid out; else there is now, and what was recorded before is
    /// void.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn had_room(&self) -> Result<bool> {
        let mut recorded = lock(&self.inner.recorded);
        if recorded.end <= recorded.bytes {
            return Ok(true);
        }
        let bytes = recorded.end;
        self.inner.drop_recordings(&mut recorded);
        let take = || self.inner.backend.allocate_undefined(bytes);
        let whole = take().or_else(|| {
            self.inner.forget_free();
            take()
        });
        recorded.whole = Some(whole.ok_or_else(|| self.out_of_memory(bytes))?);
        recorded.bytes = bytes;
        self.count(bytes);
        Ok(false)
    }

    /// Pieces of recordings' memory that are in use.
    pub(crate) fn recorded_in_use(&self) -> usize {
        lock(&self.inner.recorded).in_use
    }

    /// See [`Backend::record`].
    pub(crate) fn record(
        devices: &[&Device],
        step: &Step,
        pass: &mut dyn FnMut(),
    ) -> Result<Box<dyn Recording>> {
        let backends: Vec<&dyn Backend> = devices.iter().map(|device| device.backend()).collect();
        let Some((first, others)) = backends.split_first() else {
            return Err(Error::Option { what: "a step without a device cannot be recorded".to_owned() });
        };
        first.record(others, step, pass)
    }

    /// Kernels that were loaded so far, on devices that load them when they are needed; else 0.
    pub fn loaded_kernels(&self) -> usize {
        self.inner.backend.loaded_kernels()
    }

    /// Gets the kernels ready that `pass` needs, those that are to be compiled several at a time: its operations are
    /// checked, but none runs and no memory is taken for them; values that it copies out are zeros. Says how many were
    /// compiled. One that cannot be compiled or loaded costs a warning here and is the error of the operation that needs
    /// it. Devices whose kernels are part of the program do nothing.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the device is [`lost`](Self::lost).
    pub fn prepare(&self, mut pass: impl FnMut()) -> Result<usize> {
        self.inner.backend.prepare(&mut pass).unwrap_or(Ok(0))
    }

    /// Whether operations of this thread are rehearsed: nothing is computed.
    pub(crate) fn is_rehearsing(&self) -> bool {
        self.inner.backend.scratch_reuse() == Reuse::Rehearsed
    }
}

impl Inner {
    /// Gives back the memory of all recordings, which are made anew when their steps come again; `false` where there is
    /// none, or one of them or its result is in use.
    pub(super) fn forget_recorded(&self) -> bool {
        let mut recorded = lock(&self.recorded);
        if recorded.leased || recorded.in_use > 0 || recorded.whole.is_none() {
            return false;
        }
        self.drop_recordings(&mut recorded);
        // Under the lock: nobody begins a recording meanwhile.
        self.backend.forget_recordings();
        true
    }

    fn drop_recordings(&self, recorded: &mut Recorded) {
        recorded.generation += 1;
        recorded.whole = None;
        self.allocated.fetch_sub(std::mem::take(&mut recorded.bytes), Ordering::Relaxed);
    }
}
