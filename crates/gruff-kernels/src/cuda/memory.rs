//! Memory of a card: plain allocations, copied in and out on the stream.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use super::driver::Context;
use super::error::CudaError;
use super::phase::{self, Phase};
use super::pinned::Page;
use crate::{Error, Result};

/// Bytes behind every allocation that may be read: more than a group of 256 packed values has.
pub(super) const READ_BEHIND: usize = 512;

/// Bytes of pageable memory up to which a driver takes a copy over without waiting for the stream.
pub(super) const TAKEN_AT_ONCE: usize = 32 << 10;

/// Bytes from which on copies to the host go through page-locked memory, and how many of them at once: to pageable memory a
/// driver copies slowly.
const READ_THROUGH: usize = 64 << 10;
const READ_AT_ONCE: usize = 4 << 20;

/// A piece of a card's memory; given back when dropped.
pub(crate) struct CudaMemory {
    context: Arc<Context>,
    pointer: CUdeviceptr,
    bytes: usize,
    kind: Kind,
}

/// Whose the memory is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    /// Another's, which outlives it.
    Part,
    /// Nobody's: a rehearsal takes none.
    Nowhere,
}

/// What memory of a rehearsal has as its address: nothing is ever there, and it is aligned.
const NOWHERE: CUdeviceptr = 1 << 20;

impl CudaMemory {
    /// Takes memory with undefined content, or `None` when there is none.
    pub(crate) fn take(context: &Arc<Context>, bytes: usize) -> Option<Self> {
        // Kernels read whole words and groups, which may end behind the last value; the driver refuses allocations of nothing.
        let size = bytes.checked_add(READ_BEHIND)?;
        if context.phase() == Phase::Rehearsing {
            return Some(Self { context: context.clone(), pointer: NOWHERE, bytes, kind: Kind::Nowhere });
        }
        // SAFETY: the pointer is given back on drop and used within its bytes.
        let pointer =
            context.call(|| format!("taking {bytes} bytes"), || unsafe { result::malloc_sync(size) }).ok()?;
        Some(Self { context: context.clone(), pointer, bytes, kind: Kind::Own })
    }

    /// A part of memory that lives as long as it does or, where nothing ever touches the part, need not be there.
    pub(crate) fn part(context: &Arc<Context>, pointer: CUdeviceptr, bytes: usize) -> Self {
        Self { context: context.clone(), pointer, bytes, kind: Kind::Part }
    }

    /// Takes zeroed memory.
    pub(crate) fn zeroed(context: &Arc<Context>, bytes: usize) -> Option<Self> {
        let memory = Self::take(context, bytes)?;
        memory.clear(bytes).ok()?;
        Some(memory)
    }

    /// Sets the first bytes to 0, in the stream's order.
    pub(crate) fn clear(&self, bytes: usize) -> Result<()> {
        assert!(bytes <= self.bytes);
        if bytes == 0 || !self.is_touched() {
            return Ok(());
        }
        self.context.clock.touch();
        // SAFETY: within the allocation (asserted).
        self.context.call(
            || format!("clearing {bytes} bytes"),
            || unsafe { result::memset_d8_async(self.pointer, 0, bytes, self.context.kernel_stream()) },
        )
    }

    pub(crate) fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The card's.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether operations of this thread touch the memory: none does in a rehearsal.
    fn is_touched(&self) -> bool {
        self.kind != Kind::Nowhere && self.context.phase() != Phase::Rehearsing
    }

    /// Copies in, in the stream's order; `bytes` may be reused at once. The caller has checked the range.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        if self.context.phase() == Phase::Recording {
            // A replay would copy what then lies there.
            return Err(not_recorded("values are copied in"));
        }
        self.place(offset, bytes)
    }

    /// As [`write`](Self::write), also while a recording is made, which it is not part of: for what stays the same.
    pub(crate) fn place(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes);
        if bytes.is_empty() || !self.is_touched() {
            return Ok(());
        }
        self.context.clock.touch();
        if bytes.len() > TAKEN_AT_ONCE {
            self.context.clock.release();
        }
        let target = self.pointer + offset as CUdeviceptr;
        // SAFETY: in range (asserted).
        unsafe { self.context.copy_in(target, bytes) }
    }

    /// Waits for the stream and copies out. The caller has checked the range.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes);
        if self.context.phase() == Phase::Recording {
            return Err(not_recorded("values are copied out"));
        }
        if bytes.is_empty() || !self.is_touched() {
            return Ok(());
        }
        self.context.clock.touch();
        self.context.clock.release();
        let source = self.pointer + offset as CUdeviceptr;
        if bytes.len() < READ_THROUGH {
            return self.fetch(source, bytes);
        }
        let mut reading = lock(&self.context.reading);
        if reading.is_none() {
            *reading = Page::new(&self.context, READ_AT_ONCE).ok();
        }
        let Some(page) = &mut *reading else { return self.fetch(source, bytes) };
        for (index, piece) in bytes.chunks_mut(READ_AT_ONCE).enumerate() {
            let source = source + (index * READ_AT_ONCE) as CUdeviceptr;
            self.fetch(source, page.slice_mut(piece.len()))?;
            piece.copy_from_slice(page.slice(piece.len()));
        }
        Ok(())
    }

    /// Copies from an address in the memory, and waits.
    fn fetch(&self, source: CUdeviceptr, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len();
        // SAFETY: in range (asserted by the caller); the copy is waited for before the slice is given back.
        self.context.call(
            || format!("copying {len} bytes out"),
            || unsafe {
                result::memcpy_dtoh_async(bytes, source, self.context.stream())?;
                result::stream::synchronize(self.context.stream())
            },
        )
    }
}

fn not_recorded(what: &str) -> Error {
    Error::Cuda(CudaError::Recording { what: what.to_owned() })
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if self.kind != Kind::Own {
            return;
        }
        if self.context.phase() == Phase::Recording {
            // Replays go on using it.
            let Self { pointer, bytes, kind, .. } = *self;
            return phase::keep(Self { context: self.context.clone(), pointer, bytes, kind });
        }
        self.context.clock.release();
        // Waits for kernels that use it. A fault shows in the next operation.
        // SAFETY: allocated in `take`.
        let _ =
            self.context.call(|| "giving memory back".into(), || unsafe { result::free_sync(self.pointer) });
    }
}

/// Memory for what goes to the card beside tensors (tables of a step, parameters of rows), used again and again: the
/// stream's order keeps a later copy behind the kernels that read the earlier one.
#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<HashMap<usize, Vec<CudaMemory>>>,
}

/// Memory that goes back to its pool when dropped.
pub(crate) struct Pooled {
    pool: Arc<Pool>,
    memory: Option<CudaMemory>,
}

/// Bytes of the piece of a pool that is taken for so many, if that is a number.
pub(super) fn pooled_bytes(bytes: usize) -> Option<usize> {
    const SMALLEST: usize = 4096;
    bytes.max(SMALLEST).checked_next_power_of_two()
}

impl Pool {
    /// Memory of undefined content, or `None` when there is none; then more may be kept than is needed, here for instance.
    pub(crate) fn take(self: &Arc<Self>, context: &Arc<Context>, bytes: usize) -> Option<Pooled> {
        let class = pooled_bytes(bytes)?;
        let rehearsing = context.phase() == Phase::Rehearsing;
        let recycled = if rehearsing { None } else { lock(&self.free).get_mut(&class).and_then(Vec::pop) };
        let memory = match recycled {
            Some(memory) => memory,
            None => CudaMemory::take(context, class)?,
        };
        Some(Pooled { pool: self.clone(), memory: Some(memory) })
    }

    /// Gives back to the card what nobody holds.
    pub(crate) fn forget(&self) {
        let free = std::mem::take(&mut *lock(&self.free));
        drop(free);
    }
}

impl Deref for Pooled {
    type Target = CudaMemory;

    fn deref(&self) -> &CudaMemory {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("memory is taken out only on drop"),
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take().filter(|memory| memory.kind == Kind::Own) {
            lock(&self.pool.free).entry(memory.bytes()).or_default().push(memory);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
