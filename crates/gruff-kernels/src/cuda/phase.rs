//! What becomes of a thread's operations: they run, they are recorded to be replayed, or they only tell which kernels
//! they would run (a rehearsal).

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::driver::Context;
use super::kernels::Need;
use super::memory::CudaMemory;
use super::step::CudaStep;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Recording,
    Rehearsing,
}

thread_local! {
    /// The phase, and the context that it is about: other devices' operations run.
    static NOW: Cell<(Phase, usize)> = const { Cell::new((Phase::Running, 0)) };
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { step: None, memory: Vec::new(), spans: usize::MAX }) };
    static NEEDS: RefCell<Vec<Need>> = const { RefCell::new(Vec::new()) };
}

/// What a recording needs as long as it is replayed, and what it is good for.
pub(crate) struct Kept {
    /// The tables that its kernels read, and the number of the step that they were made for.
    pub(crate) step: Option<(u64, Arc<CudaStep>)>,
    /// Memory that operations gave back and the recording still uses.
    pub(crate) memory: Vec<CudaMemory>,
    /// The most spans of keys, of all sequences, that there is room for.
    pub(crate) spans: usize,
}

fn address(context: &Context) -> usize {
    std::ptr::from_ref(context).addr()
}

impl Context {
    /// The phase of this thread's operations on the device.
    pub(crate) fn phase(&self) -> Phase {
        let (phase, whose) = NOW.get();
        if whose == address(self) { phase } else { Phase::Running }
    }
}

/// Ends the phase when dropped, whatever happens in it.
#[must_use = "the phase ends when this is dropped"]
pub(crate) struct Guard(());

impl Guard {
    /// Begins a phase of this thread. `None` while another one lasts.
    pub(crate) fn begin(context: &Context, phase: Phase) -> Option<Self> {
        if NOW.get().0 != Phase::Running {
            return None;
        }
        NOW.set((phase, address(context)));
        Some(Self(()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        NOW.set((Phase::Running, 0));
        NEEDS.take();
        drop(take_kept());
    }
}

/// Notes a kernel that a rehearsal came to.
pub(super) fn need(need: Need) {
    NEEDS.with_borrow_mut(|needs| {
        if !needs.contains(&need) {
            needs.push(need);
        }
    });
}

/// The kernels that the rehearsal came to, in order.
pub(super) fn needs() -> Vec<Need> {
    NEEDS.take()
}

/// Keeps memory for the recording that is being made.
pub(super) fn keep(memory: CudaMemory) {
    KEPT.with_borrow_mut(|kept| kept.memory.push(memory));
}

/// The recording is good for steps with up to so many spans.
pub(crate) fn limit_spans(spans: usize) {
    KEPT.with_borrow_mut(|kept| kept.spans = kept.spans.min(spans));
}

pub(super) fn set_step(id: u64, step: Arc<CudaStep>) {
    KEPT.with_borrow_mut(|kept| kept.step = Some((id, step)));
}

/// The tables of the step that is being recorded.
pub(super) fn step(id: u64) -> Option<Arc<CudaStep>> {
    KEPT.with_borrow(|kept| kept.step.as_ref().filter(|(own, _)| *own == id).map(|(_, step)| step.clone()))
}

/// Takes what was kept.
pub(super) fn take_kept() -> Kept {
    KEPT.with_borrow_mut(|kept| {
        std::mem::replace(kept, Kept { step: None, memory: Vec::new(), spans: usize::MAX })
    })
}
