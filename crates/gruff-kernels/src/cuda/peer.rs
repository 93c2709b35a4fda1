//! Copies between cards, or within one: on the stream of the one that reads on, behind what the other one has launched. Neither is waited
//! for by the host. Where cards do not reach each other's memory the driver copies through the host's.

use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::Context;
use super::memory::CudaMemory;
use super::phase::Phase;
use super::{pointer, record};
use crate::buffer::Memory;
use crate::{Result, Tensor};

/// Marks a place on a card's stream for another card's to wait for.
#[derive(Default)]
pub(super) struct Meeting(OnceLock<Event>);

struct Event(sys::CUevent);

// SAFETY: a handle into the driver, which takes it from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Meeting {
    /// The event, of the context that is current.
    fn event(&self) -> Result<sys::CUevent, DriverError> {
        if let Some(event) = self.0.get() {
            return Ok(event.0);
        }
        let event = Event(result::event::create(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?);
        Ok(self.0.get_or_init(|| event).0)
    }

    /// Gives the event back; its context is current.
    pub(super) fn destroy(&mut self) {
        if let Some(Event(event)) = self.0.take() {
            // Nothing can be done about a fault here: the process ends or the device was lost.
            // SAFETY: made in `event`; nobody uses it any more.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// The card's memory behind a tensor of any device.
fn memory(tensor: &Tensor) -> Option<&CudaMemory> {
    match tensor.buffer().memory() {
        Memory::Cuda(memory) => Some(memory),
        Memory::Cpu(_) | Memory::Reference(_) => None,
    }
}

/// Copies `from` of this or another card to `to` of the card `here`, or notes that a replay does; `None` where `from` is on no
/// card, or one of the two is rehearsed, or recorded without another.
pub(super) fn copy(here: &Arc<Context>, from: &Tensor, to: &Tensor) -> Option<Result<()>> {
    let there = memory(from)?.context();
    let within = Arc::ptr_eq(here, there);
    let (source, target, bytes) = (pointer(from), pointer(to), from.span_bytes());
    let between = || PeerCopy { here: here.clone(), there: there.clone(), source, target, bytes };
    match (here.phase(), there.phase()) {
        (Phase::Running, Phase::Running) if within => Some(copy_within(here, from, to)),
        // SAFETY: both tensors have that many bytes (checked by the caller) and live until the copy is queued; their memory is
        // used again behind it only.
        (Phase::Running, Phase::Running) => Some(unsafe { between().run() }),
        (Phase::Recording, Phase::Recording) if !within => Some(record::cross(between())),
        _ => None,
    }
}

fn copy_within(here: &Context, from: &Tensor, to: &Tensor) -> Result<()> {
    let bytes = from.span_bytes();
    here.clock.touch();
    here.call(
        || format!("copying {bytes} bytes"),
        // SAFETY: both tensors have that many bytes and do not overlap (checked by the caller); the stream's order keeps their
        // memory until the copy is made.
        || unsafe { result::memcpy_dtod_async(pointer(to), pointer(from), bytes, here.stream()) },
    )
}

/// A copy of bytes from one card to another.
pub(super) struct PeerCopy {
    pub(super) here: Arc<Context>,
    pub(super) there: Arc<Context>,
    source: CUdeviceptr,
    target: CUdeviceptr,
    bytes: usize,
}

impl PeerCopy {
    /// Puts it on the streams, which wait for each other: what is put on either of them behind it may use the memory again.
    ///
    /// # Safety
    /// Both pieces of memory are there until then.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let Self { here, there, source, target, bytes } = self;
        let record = |context: &Context| -> Result<sys::CUevent, DriverError> {
            let event = context.meeting().event()?;
            // SAFETY: the event and the stream are this context's, which is current.
            unsafe { result::event::record(event, context.stream()) }?;
            Ok(event)
        };
        let wait = |context: &Context, event: sys::CUevent| {
            // SAFETY: the event was recorded; events live as long as their contexts.
            unsafe {
                result::stream::wait_event(
                    context.stream(),
                    event,
                    sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
                )
            }
        };
        for context in [here, there] {
            // One waits for the other: neither is to be held back for its profile.
            context.clock.touch();
            context.clock.release();
        }
        let made = there.call(|| "marking what another card waits for".into(), || record(there))?;
        here.call(|| "waiting for another card".into(), || wait(here, made))?;
        here.waited();
        let copied = here.call(
            || format!("copying {bytes} bytes from another card"),
            || {
                // SAFETY: the memory is there, as the caller says.
                unsafe {
                    let (own, other) = (here.handle(), there.handle());
                    sys::cuMemcpyPeerAsync(*target, own, *source, other, *bytes, here.stream()).result()?;
                }
                record(here)
            },
        )?;
        // What was copied may be written again once it was read.
        there.call(|| "waiting for another card's copy".into(), || wait(there, copied))
    }
}
