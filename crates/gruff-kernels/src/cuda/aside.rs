//! Large copies to the host that nobody waits for: by a thread, on a stream of their own, so that neither the host's next step
//! nor the card's waits for the bus. They go through two pages of page-locked memory in turn; more of it than that takes long
//! to get.

use std::sync::{Arc, TryLockError};
use std::thread::{Builder, JoinHandle};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::Context;
use super::error::CudaError;
use super::phase::Phase;
use super::pinned::Page;
use super::pointer;
use crate::later::Coming;
use crate::{Error, Result, Tensor};

/// Bytes of a page.
const PAGE: usize = 4 << 20;

/// The stream of such copies and their pages.
pub(super) struct Aside {
    stream: sys::CUstream,
    /// Two.
    pages: Vec<Page>,
}

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Aside {}

impl Aside {
    fn new(context: &Context) -> Result<Self> {
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = context.call(|| "making a stream".into(), || result::stream::create(kind))?;
        let mut aside = Self { stream, pages: Vec::new() };
        for _ in 0..2 {
            match Page::new(context, PAGE) {
                Ok(page) => aside.pages.push(page),
                Err(fault) => {
                    aside.destroy();
                    return Err(fault);
                }
            }
        }
        Ok(aside)
    }

    /// Gives everything back; the context is current.
    pub(super) fn destroy(&mut self) {
        // Nothing can be done about a fault here: the process ends or the device was lost.
        // SAFETY: made in `new`; whoever copies has waited for the end.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::destroy(self.stream);
            self.pages.iter_mut().for_each(|page| page.free());
        }
    }

    /// Copies out what `mark` stands behind.
    fn copy(
        &mut self,
        context: &Context,
        mark: &Mark,
        source: CUdeviceptr,
        count: usize,
    ) -> Result<Vec<f32>> {
        let stream = self.stream;
        // SAFETY: the event was recorded, and lives as the stream does.
        let wait = || unsafe {
            result::stream::wait_event(stream, mark.event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        };
        context.call(|| "waiting for what is to be copied".into(), wait)?;
        let bytes = 4 * count;
        let pieces = bytes.div_ceil(PAGE);
        let length = |piece: usize| PAGE.min(bytes - piece * PAGE);
        let mut values = Vec::with_capacity(count);
        for step in 0..=pieces {
            // One piece is on its way while the one before is taken over.
            if step < pieces {
                let (page, from) = (&mut self.pages[step % 2], source + (step * PAGE) as CUdeviceptr);
                let target = page.slice_mut(length(step));
                context.call(
                    || format!("copying {} bytes out", length(step)),
                    // SAFETY: the tensor has that many bytes and lives until this returns; the page's last copy is complete.
                    || unsafe { result::memcpy_dtoh_async(target, from, stream) },
                )?;
                // SAFETY: the stream is the context's.
                unsafe { page.note_on(context, stream) }?;
            }
            if let Some(piece) = step.checked_sub(1) {
                let page = &self.pages[piece % 2];
                page.wait(context)?;
                let bytes = page.slice(length(piece)).as_chunks().0;
                values.extend(bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
        }
        Ok(values)
    }
}

/// A place on the stream.
struct Mark {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Mark {}

impl Mark {
    /// Behind all that was launched.
    fn here(context: &Arc<Context>) -> Result<Self> {
        let kind = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        let event = context.call(|| "making an event".into(), || result::event::create(kind))?;
        let mark = Self { context: context.clone(), event };
        // SAFETY: event and stream live.
        let record = || unsafe { result::event::record(event, context.stream()) };
        context.call(|| "marking what is to be copied".into(), record)?;
        Ok(mark)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // Nothing can be done about a fault here.
        // SAFETY: made in `here`; nobody waits for it any more.
        let destroy = || unsafe { result::event::destroy(self.event) };
        let _ = self.context.call(|| "giving an event back".into(), destroy);
    }
}

/// A thread that copies.
struct Copier {
    context: Arc<Context>,
    thread: JoinHandle<Result<Vec<f32>>>,
}

impl Coming<f32> for Copier {
    fn wait(self: Box<Self>) -> Result<Vec<f32>> {
        let ended = |_| {
            Err(Error::Cuda(CudaError::Call {
                call: "copying values out".to_owned(),
                device: format!("cuda:{} ({})", self.context.card.ordinal, self.context.card.name),
                fault: "its thread has ended".to_owned(),
            }))
        };
        self.thread.join().unwrap_or_else(ended)
    }
}

/// Whether there is what such copies are made with; where no memory can be page-locked there is not.
fn is_ready(context: &Context) -> bool {
    let mut aside = match context.aside.try_lock() {
        Ok(aside) => aside,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Somebody copies.
        Err(TryLockError::WouldBlock) => return true,
    };
    if aside.is_none() {
        *aside = Aside::new(context).ok();
    }
    aside.is_some()
}

/// Has a tensor without gaps copied out behind what is on the stream; `None` where that is to be done at once.
pub(super) fn copy(context: &Arc<Context>, tensor: &Tensor) -> Result<Option<Box<dyn Coming<f32>>>> {
    if context.phase() != Phase::Running || tensor.is_empty() {
        return Ok(None);
    }
    if !is_ready(context) {
        return Ok(None);
    }
    context.clock.touch();
    context.clock.release();
    let mark = Mark::here(context)?;
    let (own, tensor) = (context.clone(), tensor.clone());
    let work = move || {
        let context = own;
        let mut aside = context.aside.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(aside) = &mut *aside else { return Ok(Vec::new()) };
        let copied = aside.copy(&context, &mark, pointer(&tensor), tensor.len());
        if copied.is_err() {
            // A copy may still be on its way to a page.
            let stream = aside.stream;
            // SAFETY: it lives.
            let _ =
                context.call(|| "ending a copy".into(), || unsafe { result::stream::synchronize(stream) });
        }
        copied
    };
    let thread = Builder::new().name("gruff-copy".into()).spawn(work).ok();
    Ok(thread.map(|thread| Box::new(Copier { context: context.clone(), thread }) as _))
}
