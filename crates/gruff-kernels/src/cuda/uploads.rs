//! Weights on their way to the card: several threads copy a file's map into page-locked memory, piece by piece, from where the
//! card fetches one piece while the next one is copied.
//!
//! The driver's own way for pageable memory does the same with one thread, which is slower than the bus. Packed matrices are laid out
//! in strips on the way.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use super::driver::Context;
use super::memory::CudaMemory;
use super::phase::Phase;
use super::pinned::Pinned;
use super::strips::{STRIP, Strips};
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

    /// Copies `len` bytes that `fill` writes to the card's memory from `target` on, behind what is on the stream.
    fn send(
        &mut self,
        context: &Context,
        target: CUdeviceptr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let page = &mut self.pieces[self.next].page;
        self.next = (self.next + 1) % 2;
        page.arrived(context)?;
        fill(page.slice_mut(len));
        let from = page.slice(len);
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
        let place = |piece: usize| piece * PIECE..((piece + 1) * PIECE).min(bytes.len());
        self.pieces(context, memory, bytes.len().div_ceil(PIECE), place, |piece, to| {
            to.copy_from_slice(&bytes[place(piece)]);
        })
    }

    /// Fills it with matrices of `rows` rows, one after the other as in a file, in strips.
    pub(super) fn lay_out(
        &self,
        context: &Arc<Context>,
        memory: &CudaMemory,
        packed: &[u8],
        strips: &Strips,
        rows: usize,
    ) -> Result<()> {
        let (row_bytes, strip_bytes) = (strips.row_bytes(), strips.strip_bytes());
        if packed.is_empty() {
            return Ok(());
        }
        let (matrix, each) = (rows * row_bytes, rows.div_ceil(STRIP));
        let count = packed.len() / matrix * each;
        let at_once = (PIECE / strip_bytes).max(1);
        let place =
            |piece: usize| piece * at_once * strip_bytes..((piece + 1) * at_once).min(count) * strip_bytes;
        let fill = |piece: usize, to: &mut [u8]| {
            for (index, to) in to.chunks_exact_mut(strip_bytes).enumerate() {
                let strip = piece * at_once + index;
                let (begin, first) = (strip / each * matrix, strip % each * STRIP);
                let end = (first + STRIP).min(rows);
                strips.lay_out(&packed[begin + first * row_bytes..begin + end * row_bytes], to);
            }
        };
        self.pieces(context, memory, count.div_ceil(at_once), place, fill)
    }

    /// Fills pieces of it, which `place` says where they are.
    fn pieces(
        &self,
        context: &Arc<Context>,
        memory: &CudaMemory,
        count: usize,
        place: impl Fn(usize) -> Range<usize> + Sync,
        fill: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<()> {
        let fits = (0..count).all(|piece| place(piece).len() <= PIECE);
        let bytes = count.checked_sub(1).map_or(0, |last| place(last).end);
        assert!(bytes <= memory.bytes());
        let own = if bytes < LEAST || !fits || context.phase() != Phase::Running {
            None
        } else {
            self.lane(context).ok()
        };
        let Some(own) = own else {
            // Little, or no page-locked memory: the driver has some of its own.
            let mut piece_bytes = Vec::new();
            return (0..count).try_for_each(|piece| {
                let place = place(piece);
                piece_bytes.resize(place.len(), 0);
                fill(piece, &mut piece_bytes);
                memory.write(place.start, &piece_bytes)
            });
        };
        let next = AtomicUsize::new(0);
        let faults = Mutex::new(None);
        let work = |mut lane: Lane| {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= count {
                    break;
                }
                let place = place(piece);
                let target = memory.pointer() + place.start as CUdeviceptr;
                if let Err(fault) = lane.send(context, target, place.len(), |to| fill(piece, to)) {
                    lock(&faults).get_or_insert(fault);
                    return;
                }
            }
            lock(&self.free).push(lane);
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = THREADS.min(cores).min(count);
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
