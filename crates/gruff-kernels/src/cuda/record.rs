//! Steps as CUDA graphs: recorded from the stream's launches, replayed with one.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::driver::Context;
use super::error::CudaError;
use super::memory::Pooled;
use super::phase::{self, Guard, Kept, Phase};
use super::step::{Places, Tables};
use crate::replay::Recording;
use crate::{Error, Result, Step};

/// A graph, ready to be launched.
struct Graph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
    places: Places,
    /// Where its kernels look for a step's tables.
    tables: Arc<Pooled>,
    kept: Kept,
}

// SAFETY: a handle into the driver, which takes it from any thread; one replay is put on the stream at a time.
unsafe impl Send for Graph {}

fn refuse<T>(what: &str) -> Result<T> {
    Err(Error::Cuda(CudaError::Recording { what: what.to_owned() }))
}

/// A recording that is being made; ended when dropped.
struct Capture<'a> {
    context: &'a Context,
    open: bool,
}

impl<'a> Capture<'a> {
    fn begin(context: &'a Context) -> Result<Self> {
        // Relaxed: memory may be taken meanwhile, by this thread and others.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        context.call(
            || "recording a step".into(),
            // SAFETY: the stream lives as long as the context, and one recording is made at a time.
            || unsafe { result::stream::begin_capture(context.recorder(), mode) },
        )?;
        Ok(Self { context, open: true })
    }

    fn end(&mut self) -> Result<sys::CUgraph> {
        self.open = false;
        // SAFETY: the capture was begun on it.
        self.context.call(
            || "ending a recording".into(),
            || unsafe { result::stream::end_capture(self.context.recorder()) },
        )
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open
            && let Ok(graph) = self.end()
            && !graph.is_null()
        {
            // SAFETY: nothing was made of it.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
}

impl CudaDevice {
    /// Has later recordings made without early launches where these were what the driver refused.
    fn note_refusal(&self, fault: &Error) {
        self.early.give_up(fault);
    }

    /// Records what `pass` launches for a step.
    pub(super) fn record_step(&self, step: &Step, pass: &mut dyn FnMut()) -> Result<Box<dyn Recording>> {
        let tables = Tables::of(step);
        if !tables.fit() {
            return refuse("its tables are too large");
        }
        let context = self.context();
        let fixed = Arc::new(self.fixed_step(step, tables.places)?);
        let memory = self.fixed_tables()?;
        let mut capture = Capture::begin(context)?;
        let Some(guard) = Guard::begin(context, Phase::Recording) else {
            return refuse("another recording is being made");
        };
        phase::set_step(step.id(), fixed);
        pass();
        let kept = phase::take_kept();
        drop(guard);
        let graph = capture.end().inspect_err(|fault| self.note_refusal(fault))?;
        if graph.is_null() {
            return refuse("the driver gave no graph");
        }
        // SAFETY: the graph was just made.
        let exec = context.call(
            || "making a graph".into(),
            || unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) },
        );
        let exec = exec.inspect_err(|fault| self.note_refusal(fault));
        // SAFETY: what is launched is a copy of it.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(Box::new(Graph {
            context: context.clone(),
            exec: exec?,
            places: tables.places,
            tables: memory,
            kept,
        }))
    }
}

impl Recording for Graph {
    fn replay(&self, step: &Step) -> Result<bool> {
        let tables = Tables::of(step);
        if !tables.fit() || tables.places != self.places || tables.spans > self.kept.spans {
            return Ok(false);
        }
        self.tables.write(0, bytemuck::cast_slice(&tables.words))?;
        self.context.call(
            || "launching a graph".into(),
            // SAFETY: memory that its kernels use lives: weights and caches by the caller, the rest by `kept` and the
            // device's own.
            || unsafe { result::graph::launch(self.exec, self.context.stream()) },
        )?;
        Ok(true)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // It may still run. Nothing can be done about a fault here.
        let _ = self.context.synchronize();
        // SAFETY: made in `record_step`, launched by nobody any more.
        let _ = self
            .context
            .call(|| "giving a graph back".into(), || unsafe { result::graph::exec_destroy(self.exec) });
        self.kept.memory.clear();
    }
}
