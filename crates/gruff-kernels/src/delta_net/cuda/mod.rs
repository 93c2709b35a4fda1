//! The family on NVIDIA cards.
//!
//! A token is one row of its chunk's forward substitution. Few tokens of a sequence go one after the other; prompts go
//! a chunk at a time, with the same sums in the same order: on tensor cores (`factors.cu`, `scan.cu`, `token.cu`,
//! `chunk.cuh`), or, for heads of odd widths and cards before 8.0, on plain units (`chunks.cu`, `delta.cu`). Rows that a
//! step keeps are written by `keep.cu`, where the others cannot. Single tokens have all of a net between its projections
//! in one kernel (`net.cu`).

mod net;
mod tensor;

use cudarc::driver::sys::CUdeviceptr;

use super::{DeltaInputs, DeltaNetOps, NetInputs};
use crate::cuda::sources::Source;
use crate::cuda::step::{Plan, chunks};
use crate::cuda::{CudaDevice, Launch, pointer};
use crate::{Activation, CHUNK, Result, StateLayer, Step, StepSequence, Tensor};

pub(crate) use net::NET;
pub(crate) use tensor::{FACTORS, SCAN, TOKEN};

pub(crate) static CONV: Source =
    Source { name: "conv.cu", code: include_str!("conv.cu"), options: &[], variants: &[&[]] };

pub(crate) static DELTA: Source = Source {
    name: "delta.cu",
    code: include_str!("delta.cu"),
    options: &[],
    variants: &[&[("DK", 128), ("DV", 128)], &[("DK", 12), ("DV", 40)]],
};

pub(crate) static CHUNKS: Source = Source {
    name: "chunks.cu",
    code: include_str!("chunks.cu"),
    options: &[],
    variants: &[&[("DK", 128), ("DV", 128)], &[("DK", 12), ("DV", 40)]],
};

pub(crate) static KEEP: Source = Source {
    name: "keep.cu",
    code: include_str!("keep.cu"),
    options: &[],
    variants: &[&[("DK", 128)], &[("DK", 12)]],
};

/// Tokens of a sequence from which on chunks pay.
const FEW: usize = 8;

/// As in the sources.
const CHANNELS: usize = 128;
const CONV_RUN: usize = 16;
const COLUMNS: usize = 32;
const THREADS: usize = 128;
const CHUNK_THREADS: usize = 256;

impl DeltaNetOps for CudaDevice {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let tables = self.step(step)?;
        let (channels, ring) = (layer.shape().conv_channels, layer.shape().conv_rows());
        let blocks = channels.div_ceil(CHANNELS);
        let at_once = step.sequences().iter().all(|sequence| sequence.len == 1);
        // `struct Conv`.
        let conv = [
            pointer(x),
            x.strides()[0] as u64,
            pointer(weight),
            pointer(layer.conv()),
            ring as u64,
            pointer(out),
            out.strides()[0] as u64,
            tables.sequences(),
            tables.owners(),
            channels as u64 | (layer.shape().conv_kernel as u64) << 32,
        ];
        if at_once {
            self.launch(&CONV, &[], "causal_conv")?
                .grid([step.len(), blocks, 1])
                .block(CHANNELS)
                .arg(conv)
                .arg(1)
                .run()?;
        } else {
            self.launch(&CONV, &[], "causal_conv_runs")?
                .grid([step.len().div_ceil(CONV_RUN), blocks, 1])
                .block(CHANNELS)
                .arg(conv)
                .arg(step.len() as i32)
                .run()?;
        }
        if at_once {
            return Ok(());
        }
        self.launch(&CONV, &[], "keep_inputs")?
            .grid([step.sequences().len() * ring, blocks, 1])
            .block(CHANNELS)
            .rows_of(x)
            .arg(layer.conv())
            .arg(ring as i32)
            .arg(tables.sequences())
            .arg(channels as i32)
            .run()
    }

    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        self.launch(&CONV, &[], "delta_gates")?
            .grid([a.len().div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .rows_of(a)
            .rows_of(b)
            .arg(dt_bias)
            .arg(a_neg)
            .rows_of(decay)
            .rows_of(beta)
            .arg(a.shape()[0] as i32)
            .arg(a.shape()[1] as i32)
            .run()
    }

    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        if self.has_tensor_delta(layer.shape()) {
            return self.tensor_delta(step, inputs, layer, out);
        }
        if step.sequences().iter().any(|sequence| sequence.len >= FEW) {
            return self.delta_chunks(step, inputs, layer, out);
        }
        self.delta_rows(step, inputs, layer, out)
    }

    fn fuses_net(&self, step: &Step, layer: &StateLayer) -> bool {
        self.has_net(step, layer.shape())
    }

    fn gated_delta_net(&self, step: &Step, inputs: &NetInputs, layer: &StateLayer) -> Result<Activation> {
        self.net(step, inputs, layer)
    }
}

/// Launches of this family begin with the same operands.
fn operands<'a>(launch: Launch<'a>, inputs: &DeltaInputs, out: &Tensor) -> Launch<'a> {
    let DeltaInputs { queries, keys, values, decay, beta } = *inputs;
    launch.heads_of(queries).heads_of(keys).heads_of(values).rows_of(decay).rows_of(beta).heads_of(out)
}

/// What the step has of each chunk of the sequences that are `wanted`: sequence, chunk, its first and the end of its rows that
/// are new, four words each.
fn pieces(step: &Step, wanted: impl Fn(&StepSequence) -> bool) -> Vec<i32> {
    let mut words = Vec::new();
    for (index, sequence) in step.sequences().iter().enumerate().filter(|(_, sequence)| wanted(sequence)) {
        let (past, end) = (sequence.past, sequence.past + sequence.len);
        for chunk in chunks(past, sequence.len) {
            let first = past.saturating_sub(chunk * CHUNK);
            let last = (end - chunk * CHUNK).min(CHUNK);
            words.extend([index, chunk, first, last].map(|number| number as i32));
        }
    }
    words
}

/// How many entries a list has, and where it lies; without one, all sequences.
fn entries(step: &Step, list: Option<&Plan>) -> (usize, CUdeviceptr) {
    list.map_or((step.sequences().len(), 0), |list| (list.count, list.pointer()))
}

fn defines(layer: &StateLayer) -> [(&'static str, i64); 2] {
    [("DK", layer.shape().key_dim as i64), ("DV", layer.shape().value_dim as i64)]
}

impl CudaDevice {
    /// A token after the other.
    fn delta_rows(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        // Rows may be written while other blocks begin, unless they take the place of rows that those read.
        let keep = step.sequences().iter().all(|sequence| sequence.past % CHUNK + sequence.len <= rows);
        let sums = self.temporary(if keep { 0 } else { 4 * step.len() * shape.value_heads })?;
        let padded = shape.key_dim.next_multiple_of(4);
        let shared =
            padded * COLUMNS + CHUNK * (padded + 4) + CHUNK * COLUMNS + 2 * padded + 3 * CHUNK + 8 * COLUMNS;
        let launch = self
            .launch(&DELTA, &defines(layer), "gated_delta")?
            .grid([step.sequences().len(), shape.value_heads, shape.value_dim.div_ceil(COLUMNS)])
            .block(THREADS)
            .shared(4 * shared);
        operands(launch, inputs, out)
            .arg(layer.matrix())
            .arg(layer.keys())
            .arg(layer.updates())
            .arg(layer.decays())
            .arg(sums.pointer())
            .arg(tables.sequences())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .arg(shape.matrices() as i32)
            .arg(i32::from(keep))
            .run()?;
        if keep { Ok(()) } else { self.keep_rows(step, inputs.keys, layer, sums.pointer(), None) }
    }

    /// A chunk after the other.
    fn delta_chunks(
        &self,
        step: &Step,
        inputs: &DeltaInputs,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        let plan = tables.plan(self, ("delta pieces", [0; 4]), 4, || (pieces(step, |_| true), 0))?;
        let padded = shape.key_dim.next_multiple_of(4);
        let dots = self.temporary(4 * plan.count * shape.key_heads * 2 * CHUNK * CHUNK)?;
        let sums = self.temporary(4 * step.len() * shape.value_heads)?;
        let DeltaInputs { queries, keys, .. } = *inputs;
        self.launch(&CHUNKS, &defines(layer), "chunk_dots")?
            .grid([plan.count, shape.key_heads, 1])
            .block(CHUNK_THREADS)
            .shared(4 * 2 * CHUNK * (padded + 4))
            .heads_of(queries)
            .heads_of(keys)
            .arg(layer.keys())
            .arg(tables.sequences())
            .arg(plan.pointer())
            .arg(dots.pointer())
            .arg(shape.key_heads as i32)
            .arg(rows as i32)
            .run()?;
        let shared =
            padded * COLUMNS + CHUNK * (padded + 4) + 3 * CHUNK * COLUMNS + CHUNK * CHUNK + 3 * CHUNK;
        let launch = self
            .launch(&CHUNKS, &defines(layer), "chunk_scan")?
            .grid([step.sequences().len(), shape.value_heads, shape.value_dim.div_ceil(COLUMNS)])
            .block(CHUNK_THREADS)
            .shared(4 * shared);
        operands(launch, inputs, out)
            .arg(layer.matrix())
            .arg(layer.keys())
            .arg(layer.updates())
            .arg(layer.decays())
            .arg(sums.pointer())
            .arg(tables.sequences())
            .arg(plan.pointer())
            .arg(dots.pointer())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .arg(shape.matrices() as i32)
            .run()?;
        self.keep_rows(step, keys, layer, sums.pointer(), None)
    }

    /// Keys and decay sums of the last tokens of sequences, of those that are listed or all, into their rings.
    fn keep_rows(
        &self,
        step: &Step,
        keys: &Tensor,
        layer: &StateLayer,
        sums: CUdeviceptr,
        list: Option<&Plan>,
    ) -> Result<()> {
        let (entries, list_at) = entries(step, list);
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        self.launch(&KEEP, &[("DK", shape.key_dim as i64)], "keep_rows")?
            .grid([entries * rows, shape.value_heads, 1])
            .block(32)
            .heads_of(keys)
            .arg(layer.keys())
            .arg(sums)
            .arg(layer.decays())
            .arg(tables.sequences())
            .arg(list_at)
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .run()
    }
}
