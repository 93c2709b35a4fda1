//! The delta rule on tensor cores: `factors.cu` and `scan.cu` for sequences of many tokens, `token.cu` for those of few.

use super::{COLUMNS, FEW, entries, operands, pieces};
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::cuda::step::{Plan, chunks};
use crate::delta_net::DeltaInputs;
use crate::device::Backend;
use crate::{CHUNK, Result, StateLayer, StateShape, Step, StepSequence, Tensor, Without};
use std::sync::Arc;

pub(crate) static SCAN: Source = Source {
    name: "scan.cu",
    code: include_str!("scan.cu"),
    options: &[],
    variants: &[
        &[("DK", 128), ("DV", 128), ("COLUMNS", 32), ("STAGES", 2), ("STAGED", 1)],
        &[("DK", 128), ("DV", 128), ("COLUMNS", 32), ("STAGES", 2), ("STAGED", 0)],
        &[("DK", 128), ("DV", 128), ("COLUMNS", 16), ("STAGES", 1), ("STAGED", 0)],
        &[("DK", 16), ("DV", 48), ("COLUMNS", 32), ("STAGES", 2), ("STAGED", 1)],
        &[("DK", 16), ("DV", 48), ("COLUMNS", 16), ("STAGES", 1), ("STAGED", 0)],
    ],
};

pub(crate) static FACTORS: Source = Source {
    name: "factors.cu",
    code: include_str!("factors.cu"),
    options: &[],
    variants: &[
        &[("DK", 128), ("STAGED", 1)],
        &[("DK", 128), ("STAGED", 0)],
        &[("DK", 16), ("STAGED", 1)],
        &[("DK", 16), ("STAGED", 0)],
    ],
};

pub(crate) static TOKEN: Source = Source {
    name: "token.cu",
    code: include_str!("token.cu"),
    options: &[],
    variants: &[&[("DK", 128), ("DV", 128)], &[("DK", 16), ("DV", 48)]],
};

/// The lowest compute capability with products of bfloat16.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// As in the sources.
const SCAN_THREADS: usize = 256;
const TOKEN_THREADS: usize = 128;
const BLOCK: usize = 16;

/// The sequences of a step that one kernel takes.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    Few,
    Many,
}

impl Which {
    fn has(self, sequence: &StepSequence) -> bool {
        (sequence.len >= FEW) == (self == Self::Many)
    }
}

/// Bytes of what `factors.cu` leaves of a chunk for a value head: 16 blocks of 16 x 16 factors in two terms, those on the diagonal in
/// f32, and three values a token.
const FACTOR_BYTES: usize = 16 * 4 * BLOCK * BLOCK + 4 * (CHUNK * BLOCK + 3 * CHUNK);

/// What a block of `scan` has of a sequence.
#[derive(Clone, Copy)]
struct Form {
    /// Columns of S.
    columns: usize,
    /// Chunks whose keys and factors are in shared memory.
    stages: usize,
    /// Whether their queries are there too.
    staged: bool,
}

impl Form {
    /// In the order of what they cost.
    const ALL: [Self; 3] = [
        Self { columns: 32, stages: 2, staged: true },
        Self { columns: 32, stages: 2, staged: false },
        Self { columns: 16, stages: 1, staged: false },
    ];

    /// The first that the card's shared memory holds.
    fn fitting(shape: &StateShape, shared: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.shared_bytes(shape) <= shared)
    }

    fn shared_bytes(self, shape: &StateShape) -> usize {
        let rows = if self.staged { 4 * CHUNK } else { 2 * CHUNK };
        let stages = self.stages * (rows * pitch_of(shape.key_dim) + FACTOR_BYTES);
        let terms = 2 * (shape.key_dim + CHUNK) * pitch_of(self.columns);
        stages + terms + 4 * (CHUNK * self.columns + BLOCK * (self.columns + 8))
    }
}

/// Bytes of a row of so many bfloat16 in shared memory.
fn pitch_of(values: usize) -> usize {
    2 * values + 16
}

fn factors_bytes(shape: &StateShape) -> usize {
    let rows = 4 * 2 * CHUNK * (shape.key_dim + 4);
    rows.max(FACTOR_BYTES) + 4 * CHUNK * (shape.value_heads / shape.key_heads.max(1))
}

fn token_bytes(shape: &StateShape) -> usize {
    let rows = CHUNK * (shape.key_dim + 4 + COLUMNS + 2) + shape.key_dim;
    2 * CHUNK * pitch_of(COLUMNS) + 4 * (rows + pairs_floats(shape.key_dim) + pairs_floats(CHUNK))
}

/// Floats that two rows of so many values take as `two_rows` of `row.cuh` reads them.
pub(super) fn pairs_floats(values: usize) -> usize {
    2 * 2 * (values / 2 + 4)
}

impl CudaDevice {
    /// Whether tensor cores take layers of these sizes, prompts and single tokens alike, since their bits agree.
    pub(super) fn has_tensor_delta(&self, shape: &StateShape) -> bool {
        self.card().capability >= LEAST_CAPABILITY
            && shape.key_dim.is_multiple_of(16)
            && shape.value_dim.is_multiple_of(16)
            && shape.key_dim <= 128
            && Form::fitting(shape, self.card().shared_bytes).is_some()
            && factors_bytes(shape).max(token_bytes(shape)) <= self.card().shared_bytes
            && !self.lacks(Without::DeltaNet)
    }

    /// Entries of the sequences that one kernel takes: sequence, its first piece; `None` where few tokens come of every
    /// sequence.
    fn delta_list(&self, step: &Step, which: Which) -> Result<Option<Arc<Plan>>> {
        let tables = self.step(step)?;
        if which == Which::Few && step.sequences().iter().all(|sequence| which.has(sequence)) {
            return Ok(None);
        }
        let list =
            tables.plan(self, ("delta list", [usize::from(which == Which::Many), 0, 0, 0]), 2, || {
                let (mut words, mut piece) = (Vec::new(), 0);
                for (index, sequence) in step.sequences().iter().enumerate().filter(|(_, s)| which.has(s)) {
                    words.extend([index as i32, piece as i32]);
                    piece += chunks(sequence.past, sequence.len).len();
                }
                (words, 0)
            })?;
        Ok(Some(list))
    }

    pub(super) fn tensor_delta(
        &self,
        step: &Step,
        inputs: &DeltaInputs,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        if step.sequences().iter().any(|sequence| Which::Few.has(sequence)) {
            self.delta_tokens(step, inputs, layer, out)?;
        }
        if step.sequences().iter().any(|sequence| Which::Many.has(sequence)) {
            self.delta_scan(step, inputs, layer, out)?;
        }
        Ok(())
    }

    /// A token after the other.
    fn delta_tokens(
        &self,
        step: &Step,
        inputs: &DeltaInputs,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        let list = self.delta_list(step, Which::Few)?;
        let (entries, list_at) = entries(step, list.as_deref());
        // Rows may be written while other blocks begin, unless they take the place of rows that those read.
        let few = || step.sequences().iter().filter(|sequence| Which::Few.has(sequence));
        let keep = few().all(|sequence| sequence.past % CHUNK + sequence.len <= rows);
        let sums = self.temporary(if keep { 0 } else { 4 * step.len() * shape.value_heads })?;
        let launch = self
            .launch(&TOKEN, &super::defines(layer), "token")?
            .grid([entries, shape.value_heads, shape.value_dim.div_ceil(COLUMNS)])
            .block(TOKEN_THREADS)
            .shared(token_bytes(&shape));
        operands(launch, inputs, out)
            .arg(layer.matrix())
            .arg(layer.keys())
            .arg(layer.updates())
            .arg(layer.decays())
            .arg(sums.pointer())
            .arg(tables.sequences())
            .arg(list_at)
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .arg(shape.matrices() as i32)
            .arg(i32::from(keep))
            .run()?;
        if keep { Ok(()) } else { self.keep_rows(step, inputs.keys, layer, sums.pointer(), list.as_deref()) }
    }

    /// A chunk after the other.
    fn delta_scan(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
        let tables = self.step(step)?;
        let shape = *layer.shape();
        let rows = shape.rows();
        let list = self.delta_list(step, Which::Many)?;
        let (entries, list_at) = entries(step, list.as_deref());
        let plan =
            tables.plan(self, ("delta chunks", [0; 4]), 4, || (pieces(step, |s| Which::Many.has(s)), 0))?;
        let DeltaInputs { queries, keys, values, decay, beta } = *inputs;
        // Who comes here has one that fits (`has_tensor_delta`).
        let form = Form::fitting(&shape, self.card().shared_bytes).unwrap_or(Form::ALL[2]);
        let [key_dim, value_dim] = super::defines(layer);
        let staged = ("STAGED", i64::from(form.staged));
        let cut = [("COLUMNS", form.columns as i64), ("STAGES", form.stages as i64)];
        let factors = self.temporary(plan.count * shape.value_heads * FACTOR_BYTES)?;
        let tiles = self.temporary(2 * plan.count * shape.key_heads * 4 * CHUNK * shape.key_dim)?;
        let sums = self.temporary(4 * step.len() * shape.value_heads)?;
        self.launch(&FACTORS, &[key_dim, staged], "factors")?
            .grid([plan.count, shape.key_heads, 1])
            .block(SCAN_THREADS)
            .shared(factors_bytes(&shape))
            .heads_of(queries)
            .heads_of(keys)
            .rows_of(decay)
            .rows_of(beta)
            .arg(layer.keys())
            .arg(layer.decays())
            .arg(sums.pointer())
            .arg(tables.sequences())
            .arg(plan.pointer())
            .arg(factors.pointer())
            .arg(tiles.pointer())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .run()?;
        self.launch(&SCAN, &[key_dim, value_dim, cut[0], cut[1], staged], "scan")?
            .grid([entries, shape.value_heads, shape.value_dim.div_ceil(form.columns)])
            .block(SCAN_THREADS)
            .shared(form.shared_bytes(&shape))
            .heads_of(values)
            .heads_of(out)
            .arg(layer.matrix())
            .arg(layer.updates())
            .arg(tables.sequences())
            .arg(list_at)
            .arg(plan.pointer())
            .arg(factors.pointer())
            .arg(tiles.pointer())
            .arg(shape.key_heads as i32)
            .arg(shape.value_heads as i32)
            .arg(rows as i32)
            .arg(shape.matrices() as i32)
            .run()?;
        self.keep_rows(step, keys, layer, sums.pointer(), list.as_deref())
    }
}
