//! Steps as CUDA graphs: recorded from the streams' launches, replayed with a launch for each stretch of a step that one card
//! computes, and the copies between cards as they are.

use std::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::driver::Context;
use super::error::CudaError;
use super::memory::Pooled;
use super::peer::PeerCopy;
use super::phase::{self, Guard, Kept, Phase};
use super::step::{CudaStep, Places, Tables};
use crate::replay::{Recording, Replayed};
use crate::{Error, Result, Step};

/// What a replay does, in this order.
enum Part<Graph> {
    Graph(Graph),
    Copy(PeerCopy),
}

/// What was recorded of a step.
struct Script {
    /// Dropped first: what runs of them uses the rest.
    parts: Vec<Part<Graph>>,
    places: Places,
    /// Where the kernels of each card look for a step's tables.
    tables: Vec<Arc<Pooled>>,
    kept: Kept,
}

/// A graph, ready to be launched.
struct Graph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}

// SAFETY: a handle into the driver, which takes it from any thread; one replay is put on the stream at a time.
unsafe impl Send for Graph {}

fn refuse<T>(what: &str) -> Result<T> {
    Err(Error::Cuda(CudaError::Recording { what: what.to_owned() }))
}

/// A graph as it was recorded.
struct Captured {
    context: Arc<Context>,
    graph: sys::CUgraph,
}

impl Captured {
    fn is_empty(&self) -> Result<bool> {
        let mut nodes = 0;
        self.context.call(
            || "counting what was recorded".into(),
            // SAFETY: the graph is this one's; one number is written.
            || unsafe { sys::cuGraphGetNodes(self.graph, std::ptr::null_mut(), &mut nodes).result() },
        )?;
        Ok(nodes == 0)
    }

    fn instantiate(self) -> Result<Graph> {
        // SAFETY: the graph is this one's; what is launched is a copy of it.
        let exec = self.context.call(
            || "making a graph".into(),
            || unsafe { result::graph::instantiate(self.graph, sys::CUgraphInstantiate_flags(0)) },
        )?;
        Ok(Graph { context: self.context.clone(), exec })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        let _ = unsafe { result::graph::destroy(self.graph) };
    }
}

/// A recording that is being made of a card's launches; ended when dropped.
struct Capture {
    context: Arc<Context>,
    open: bool,
}

impl Capture {
    fn begin(context: &Arc<Context>) -> Result<Self> {
        let mut capture = Self { context: context.clone(), open: false };
        capture.open()?;
        Ok(capture)
    }

    fn open(&mut self) -> Result<()> {
        // Relaxed: memory may be taken meanwhile, by this thread and others.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.context.call(
            || "recording a step".into(),
            // SAFETY: the stream lives as long as the context, and one recording is made at a time.
            || unsafe { result::stream::begin_capture(self.context.recorder(), mode) },
        )?;
        self.open = true;
        Ok(())
    }

    fn end(&mut self) -> Result<Captured> {
        self.open = false;
        // SAFETY: the capture was begun on it.
        let graph = self.context.call(
            || "ending a recording".into(),
            || unsafe { result::stream::end_capture(self.context.recorder()) },
        )?;
        if graph.is_null() {
            return refuse("the driver gave no graph");
        }
        Ok(Captured { context: self.context.clone(), graph })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            drop(self.end());
        }
    }
}

/// A script that is being made.
#[derive(Default)]
struct Draft {
    captures: Vec<Capture>,
    parts: Vec<Part<Captured>>,
}

thread_local! {
    static DRAFT: RefCell<Draft> = RefCell::default();
}

impl Draft {
    /// Ends what was recorded of a card so far.
    fn end(&mut self, card: usize) -> Result<()> {
        let graph = self.captures[card].end()?;
        if !graph.is_empty()? {
            self.parts.push(Part::Graph(graph));
        }
        Ok(())
    }

    /// Puts a copy behind what was recorded of its two cards.
    fn cross(&mut self, copy: PeerCopy) -> Result<()> {
        for context in [&copy.there, &copy.here] {
            let card = self.captures.iter().position(|capture| Arc::ptr_eq(&capture.context, context));
            let Some(card) = card else { return refuse("another card takes part in it") };
            self.end(card)?;
            self.captures[card].open()?;
        }
        self.parts.push(Part::Copy(copy));
        Ok(())
    }

    /// Ends all that is open and makes the parts ready.
    fn finish(mut self) -> Result<Vec<Part<Graph>>> {
        (0..self.captures.len()).try_for_each(|card| self.end(card))?;
        let parts = self.parts.into_iter().map(|part| match part {
            Part::Graph(captured) => captured.instantiate().map(Part::Graph),
            Part::Copy(copy) => Ok(Part::Copy(copy)),
        });
        parts.collect()
    }
}

/// Notes a copy between two cards that are being recorded.
pub(super) fn cross(copy: PeerCopy) -> Result<()> {
    // Where a card's capture has ended, and no other could be begun, its launches would run.
    DRAFT.with_borrow_mut(|draft| draft.cross(copy)).inspect_err(|_| phase::give_recording_up())
}

/// Ends what is open of a draft when dropped, whatever happened in its pass.
struct Drafting;

impl Drop for Drafting {
    fn drop(&mut self) {
        DRAFT.take();
    }
}

/// Records what `pass` launches on these cards for a step.
pub(super) fn record(
    cards: &[&CudaDevice],
    step: &Step,
    pass: &mut dyn FnMut(),
) -> Result<Box<dyn Recording>> {
    let own = Tables::of(step);
    if !own.fit() {
        return refuse("its tables are too large");
    }
    let contexts: Vec<&Context> = cards.iter().map(|card| &**card.context()).collect();
    let tables = cards.iter().map(|card| card.fixed_tables()).collect::<Result<Vec<_>>>()?;
    let captures = cards.iter().map(|card| Capture::begin(card.context())).collect::<Result<Vec<_>>>()?;
    let Some(guard) = Guard::begin(&contexts, Phase::Recording) else {
        return refuse("another recording is being made");
    };
    for (context, tables) in contexts.iter().zip(&tables) {
        phase::set_step(context, step.id(), Arc::new(CudaStep::fixed(step, own.places, tables)));
    }
    let drafting = Drafting;
    DRAFT.set(Draft { captures, parts: Vec::new() });
    pass();
    let draft = DRAFT.take();
    let kept = phase::take_kept();
    drop((drafting, guard));
    let parts = draft.finish().inspect_err(|fault| {
        for card in cards {
            // Later recordings are made without early launches where these were what the driver refused.
            card.early.give_up(fault);
        }
    })?;
    Ok(Box::new(Script { parts, places: own.places, tables, kept }))
}

impl Recording for Script {
    fn replay(&self, step: &Step) -> Result<Replayed> {
        let tables = Tables::of(step);
        if !tables.fit() || tables.places != self.places || tables.spans > self.kept.spans {
            return Ok(Replayed::Nothing(None));
        }
        let words = bytemuck::cast_slice(&tables.words);
        if let Err(fault) = self.tables.iter().try_for_each(|memory| memory.write(0, words)) {
            return Ok(Replayed::Nothing(Some(fault)));
        }
        for (index, part) in self.parts.iter().enumerate() {
            let done = match part {
                Part::Graph(graph) => graph.launch(),
                // SAFETY: it is between pieces of the memory that the cards' recordings use, which is there (`replay.rs`).
                Part::Copy(copy) => unsafe { copy.run() },
            };
            match done {
                Err(fault) if index == 0 => return Ok(Replayed::Nothing(Some(fault))),
                done => done?,
            }
        }
        Ok(Replayed::Whole)
    }
}

impl Graph {
    fn launch(&self) -> Result<()> {
        self.context.call(
            || "launching a graph".into(),
            // SAFETY: memory that its kernels use lives: weights and caches by the caller, the rest by what the script keeps
            // and the device's own.
            || unsafe { result::graph::launch(self.exec, self.context.stream()) },
        )
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // It may still run. Nothing can be done about a fault here.
        let _ = self.context.synchronize();
        // SAFETY: made in `instantiate`, launched by nobody any more.
        let _ = self
            .context
            .call(|| "giving a graph back".into(), || unsafe { result::graph::exec_destroy(self.exec) });
    }
}
