//! Weights on their way to the card: several threads copy a file's map into page-locked memory, piece by piece, from where the
//! card fetches one piece while the next one is copied.
//!
//! The driver's own way for pageable memory does the same with one thread, which is slower than the bus.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use super::driver::Context;
use super::memory::CudaMemory;
use super::phase::Phase;
use super::pinned::Pinned;
use crate::Result;

/// Bytes of a piece.
const PIECE: usize = 4 << 20;

/// Bytes from which on it pays to wake threads.
const LEAST: usize = 1 << 20;

/// Threads at most: as many as memory needs to be faster than the bus.
const THREADS: usize = 6;

/// What one thread copies through: one piece is fetched while the other is filled.
struct Lane {
    pieces: [Pinned; 2],
    next: usize,
}

impl Lane {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { pieces: [Pinned::new(context, PIECE)?, Pinned::new(context, PIECE)?], next: 0 })
    }

    /// Copies to the card's memory from `target` on, behind what is on the stream.
    fn send(&mut self, context: &Context, target: CUdeviceptr, bytes: &[u8]) -> Result<()> {
        let page = &mut self.pieces[self.next].page;
        self.next = (self.next + 1) % 2;
        page.arrived(context)?;
        page.slice_mut(bytes.len()).copy_from_slice(bytes);
        let (from, len) = (page.slice(bytes.len()), bytes.len());
        context.call(
            || format!("copying {len} bytes in"),
            // SAFETY: the caller has checked the range; the page stays as it is until the event behind the copy.
            || unsafe { result::memcpy_htod_async(target, from, context.stream()) },
        )?;
        page.note(context)
    }
}

/// Memory to copy through, used again and again while a model is loaded.
#[derive(Default)]
pub(super) struct Uploads {
    free: Mutex<Vec<Lane>>,
}

impl Uploads {
    /// Fills the card's memory, in the stream's order; `bytes` may go as soon as this returns.
    pub(super) fn fill(&self, context: &Arc<Context>, memory: &CudaMemory, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= memory.bytes());
        if bytes.len() < LEAST || context.phase() != Phase::Running {
            return memory.write(0, bytes);
        }
        let Ok(own) = self.lane(context) else {
            // No page-locked memory: the driver has some of its own.
            return memory.write(0, bytes);
        };
        let next = AtomicUsize::new(0);
        let faults = Mutex::new(None);
        let work = |mut lane: Lane| {
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed).saturating_mul(PIECE);
                let Some(rest) = bytes.get(first..).filter(|rest| !rest.is_empty()) else { break };
                let target = memory.pointer() + first as CUdeviceptr;
                if let Err(fault) = lane.send(context, target, &rest[..rest.len().min(PIECE)]) {
                    lock(&faults).get_or_insert(fault);
                    return;
                }
            }
            lock(&self.free).push(lane);
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = THREADS.min(cores).min(bytes.len().div_ceil(PIECE));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Whoever finds no page-locked memory leaves the work to the others.
                scope.spawn(|| self.lane(context).ok().map(work));
            }
            work(own);
        });
        let fault = faults.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        fault.map_or(Ok(()), Err)
    }

    fn lane(&self, context: &Arc<Context>) -> Result<Lane> {
        let known = lock(&self.free).pop();
        known.map_or_else(|| Lane::new(context), Ok)
    }

    /// Gives the memory back.
    pub(super) fn forget(&self) {
        let lanes = std::mem::take(&mut *lock(&self.free));
        drop(lanes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
