//! Copies to the card that nobody waits for. Small ones a driver takes over at once; others from ordinary memory it may make
//! when all that is on the stream has run, and the host, which should be a step ahead of the card, would begin each step
//! behind its end. They go through page-locked memory: tables of steps of many sequences with many pages, say.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::Context;
use super::memory::TAKEN_AT_ONCE;
use crate::Result;

/// Bytes of a place: what the tables of 64 sequences of 32,768 tokens take. Larger copies are of weights and the like.
const PLACE: usize = 256 << 10;

/// Places at most: how many copies may be under way.
const MOST: usize = 16;

/// A copy's page-locked memory.
struct Place {
    memory: *mut c_void,
    /// Behind the copy.
    event: sys::CUevent,
}

/// The places, in the order of their copies.
#[derive(Default)]
pub(super) struct Staging(Mutex<VecDeque<Place>>);

// SAFETY: memory that only the holder of the lock writes to, and handles into the driver, which takes them from any thread.
unsafe impl Send for Staging {}
// SAFETY: as above.
unsafe impl Sync for Staging {}

impl Context {
    /// Copies in, in the stream's order; `bytes` may be reused at once.
    ///
    /// # Safety
    /// So many bytes from `target` on are memory of the card.
    pub(super) unsafe fn copy_in(&self, target: CUdeviceptr, bytes: &[u8]) -> Result<()> {
        let what = || format!("copying {} bytes in", bytes.len());
        let mut places = lock(&self.staging);
        let place =
            if (TAKEN_AT_ONCE + 1..=PLACE).contains(&bytes.len()) { self.place(&mut places)? } else { None };
        let Some(place) = place else {
            drop(places);
            // SAFETY: in range, as the caller says. Host memory is pageable, so the driver has taken it over when the
            // call returns.
            return self.call(what, || unsafe { result::memcpy_htod_async(target, bytes, self.stream()) });
        };
        let memory = place.memory.cast::<u8>();
        // SAFETY: a place has that many bytes, and its last copy is complete.
        let staged = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
            std::slice::from_raw_parts(memory, bytes.len())
        };
        let copied = self.call(
            what,
            // SAFETY: in range, as the caller says; the place is not used again before the event.
            || unsafe {
                result::memcpy_htod_async(target, staged, self.stream())?;
                result::event::record(place.event, self.stream())
            },
        );
        places.push_back(place);
        if copied.is_err() {
            // There may be no event behind the copy.
            let _ = self.synchronize();
        }
        copied
    }

    /// A place whose copy is complete: the oldest, or a new one. `None` where no memory can be page-locked.
    fn place(&self, places: &mut VecDeque<Place>) -> Result<Option<Place>> {
        let Some(oldest) = places.front() else { return Ok(self.new_place()) };
        let done = self.call(
            || "asking for a copy".into(),
            // SAFETY: made in `new_place`.
            || unsafe { sys::cuEventQuery(oldest.event).result() },
        );
        if done.is_err() {
            if places.len() < MOST
                && let Some(new) = self.new_place()
            {
                return Ok(Some(new));
            }
            self.clock.release();
            self.call(
                || "waiting for a copy".into(),
                // SAFETY: as above.
                || unsafe { sys::cuEventSynchronize(oldest.event).result() },
            )?;
        }
        Ok(places.pop_front())
    }

    fn new_place(&self) -> Option<Place> {
        let made = self.call(
            || format!("taking {PLACE} bytes of page-locked memory"),
            || {
                let event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?;
                // SAFETY: given back in `drop_staging`.
                match unsafe { result::malloc_host(PLACE, 0) } {
                    Ok(memory) => Ok(Place { memory, event }),
                    Err(fault) => {
                        // SAFETY: just made.
                        unsafe { result::event::destroy(event) }?;
                        Err(fault)
                    }
                }
            },
        );
        made.ok()
    }

    /// Gives all places back; nothing is on the stream any more.
    pub(super) fn drop_staging(&self) {
        for place in lock(&self.staging).drain(..) {
            // Nothing can be done about a fault here: the process ends or the device was lost.
            // SAFETY: made in `new_place`; their copies are complete.
            let _ = unsafe { result::event::destroy(place.event) };
            // SAFETY: as above.
            let _ = unsafe { result::free_host(place.memory) };
        }
    }
}

fn lock(staging: &Staging) -> MutexGuard<'_, VecDeque<Place>> {
    staging.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
