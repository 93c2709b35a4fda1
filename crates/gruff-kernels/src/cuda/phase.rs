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
    static NOW: Cell<Phase> = const { Cell::new(Phase::Running) };
    /// The contexts that the phase is about: other devices' operations run.
    static ABOUT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept::NOTHING) };
    static NEEDS: RefCell<Vec<Need>> = const { RefCell::new(Vec::new()) };
}

/// What a recording needs as long as it is replayed, and what it is good for.
pub(crate) struct Kept {
    /// The tables that the kernels of each card read.
    steps: Vec<Tables>,
    /// Memory that operations gave back and the recording still uses.
    memory: Vec<CudaMemory>,
    /// The most spans of keys, of all sequences, that there is room for.
    pub(crate) spans: usize,
}

/// A card's tables of a step.
struct Tables {
    context: usize,
    /// The number of the step that they were made for.
    id: u64,
    tables: Arc<CudaStep>,
}

impl Kept {
    const NOTHING: Self = Self { steps: Vec::new(), memory: Vec::new(), spans: usize::MAX };
}

fn address(context: &Context) -> usize {
    std::ptr::from_ref(context).addr()
}

impl Context {
    /// The phase of this thread's operations on the device.
    pub(crate) fn phase(&self) -> Phase {
        match NOW.get() {
            Phase::Running => Phase::Running,
            phase if ABOUT.with_borrow(|about| about.contains(&address(self))) => phase,
            _ => Phase::Running,
        }
    }
}

/// Ends the phase when dropped, whatever happens in it.
#[must_use = "the phase ends when this is dropped"]
pub(crate) struct Guard(());

impl Guard {
    /// Begins a phase of this thread's operations on these devices. `None` while another one lasts.
    pub(crate) fn begin(contexts: &[&Context], phase: Phase) -> Option<Self> {
        if NOW.get() != Phase::Running {
            return None;
        }
        ABOUT.set(contexts.iter().map(|context| address(context)).collect());
        NOW.set(phase);
        Some(Self(()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        NOW.set(Phase::Running);
        ABOUT.take();
        NEEDS.take();
        drop(take_kept());
    }
}

/// What is left of a recording that cannot go on is rehearsed: nothing of it may run.
pub(super) fn give_recording_up() {
    NOW.set(Phase::Rehearsing);
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

pub(super) fn set_step(context: &Context, id: u64, tables: Arc<CudaStep>) {
    KEPT.with_borrow_mut(|kept| kept.steps.push(Tables { context: address(context), id, tables }));
}

/// The card's tables of the step that is being recorded.
pub(super) fn step(context: &Context, id: u64) -> Option<Arc<CudaStep>> {
    KEPT.with_borrow(|kept| {
        let mut steps = kept.steps.iter();
        let own = steps.find(|step| step.id == id && step.context == address(context))?;
        Some(own.tables.clone())
    })
}

/// Takes what was kept.
pub(super) fn take_kept() -> Kept {
    KEPT.replace(Kept::NOTHING)
}
