//! Page-locked memory of the host, which a card copies from and to by itself.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::driver::Context;
use crate::Result;

/// A piece of it, and an event that stands behind the last copy from or to it. The context gives it back.
pub(super) struct Page {
    memory: *mut u8,
    bytes: usize,
    event: sys::CUevent,
}

// SAFETY: memory of its own and a handle into the driver, which takes it from any thread.
unsafe impl Send for Page {}

impl Page {
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self> {
        context.call(
            || format!("taking {bytes} bytes of page-locked memory"),
            || {
                // SAFETY: given back by `free`.
                let memory = unsafe { result::malloc_host(bytes, 0) }?.cast::<u8>();
                let kind = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
                match result::event::create(kind) {
                    Ok(event) => {
                        // SAFETY: so many bytes were just taken; they have some content before anybody reads them.
                        unsafe { memory.write_bytes(0, bytes) };
                        Ok(Self { memory, bytes, event })
                    }
                    Err(fault) => {
                        // SAFETY: just taken; nobody knows of it.
                        unsafe { result::free_host(memory.cast()) }?;
                        Err(fault)
                    }
                }
            },
        )
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first bytes. No copy to them may be under way.
    pub(super) fn slice(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: in range, written when it was taken.
        unsafe { std::slice::from_raw_parts(self.memory, bytes) }
    }

    /// As [`slice`](Self::slice), to be written. No copy from them may be under way either.
    pub(super) fn slice_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: in range, written when it was taken.
        unsafe { std::slice::from_raw_parts_mut(self.memory, bytes) }
    }

    /// Waits for the last copy that was noted.
    pub(super) fn arrived(&self, context: &Context) -> Result<()> {
        context.clock.release();
        self.wait(context)
    }

    /// The same where nothing that is held back for its time is in front of the copy.
    pub(super) fn wait(&self, context: &Context) -> Result<()> {
        // SAFETY: the event lives. One that was never put on a stream is over.
        context
            .call(|| "waiting for a copy".into(), || unsafe { sys::cuEventSynchronize(self.event).result() })
    }

    /// Notes that a copy from or to it was put on the stream.
    pub(super) fn note(&self, context: &Context) -> Result<()> {
        // SAFETY: the stream is the context's.
        unsafe { self.note_on(context, context.stream()) }
    }

    /// The same of another stream of the context.
    ///
    /// # Safety
    /// The stream lives, and is the context's.
    pub(super) unsafe fn note_on(&self, context: &Context, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the event lives; the caller says so of the stream.
        let record = || unsafe { result::event::record(self.event, stream) };
        context.call(|| "noting a copy".into(), record)
    }

    /// Gives it back. The context is current.
    ///
    /// # Safety
    /// No copy from or to it is under way, and it is not used any more.
    pub(super) unsafe fn free(&mut self) {
        // Nothing can be done about a fault here: the process ends or the device was lost.
        // SAFETY: made in `new`; the caller promises the rest.
        unsafe {
            let _ = result::event::destroy(self.event);
            let _ = result::free_host(self.memory.cast());
        }
    }
}

/// A [`Page`] that is given back when dropped, behind the last copy.
pub(super) struct Pinned {
    context: Arc<Context>,
    pub(super) page: Page,
}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        Ok(Self { context: context.clone(), page: Page::new(context, bytes)? })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A fault shows in the next operation.
        let _ = self.page.arrived(&self.context);
        // SAFETY: waited for; nobody has it any more. `arrived` has made the context current.
        unsafe { self.page.free() };
    }
}
