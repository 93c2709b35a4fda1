//! The family on NVIDIA cards.
//!
//! The largest value of a row is found by several blocks; then weights are summed in bins of likelihood, again by
//! several blocks; then what lies in bins that can matter is listed; then one block sorts the list, applies the limits
//! and draws. Where too much can matter to be listed, that block descends through the whole row instead.

use cudarc::driver::sys::CUdeviceptr;

use super::{SampleSpec, SamplingOps, uniform};
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Pooled};
use crate::{Draw, Result, Step, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "sampling.cu", code: include_str!("sampling.cu"), options: &[], variants: &[&[]] };

/// As `struct Spec` in `sampling.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
pub(crate) struct Spec {
    uniform: f64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    penalty: f32,
    top_k: i32,
    first_penalized: i32,
    penalized: i32,
    unused: i32,
}

/// Words of 32 bits of a [`Spec`].
pub(crate) const SPEC_WORDS: usize = size_of::<Spec>() / 4;

/// What kernels read of how rows are sampled.
pub(crate) struct Rows {
    pub(crate) specs: Vec<Spec>,
    /// Penalized ids of all rows, each once a row.
    pub(crate) penalized: Vec<u32>,
}

impl Rows {
    /// `first` tells where the penalized ids will stand in the list that kernels are given.
    pub(crate) fn of(specs: &[SampleSpec], first: usize) -> Self {
        let mut penalized: Vec<u32> = Vec::new();
        let row = |spec: &SampleSpec| {
            let start = penalized.len();
            if spec.repetition_penalty != 1.0 {
                penalized.extend(&spec.penalized);
                penalized[start..].sort_unstable();
                let mut unique = penalized.split_off(start);
                unique.dedup();
                penalized.append(&mut unique);
            }
            Spec {
                uniform: uniform(spec.seed, spec.position),
                temperature: spec.temperature,
                top_p: spec.top_p,
                min_p: spec.min_p,
                penalty: spec.repetition_penalty,
                top_k: i32::try_from(spec.top_k).unwrap_or(i32::MAX),
                first_penalized: (first + start) as i32,
                penalized: (penalized.len() - start) as i32,
                unused: 0,
            }
        };
        let specs = specs.iter().map(row).collect();
        Self { specs, penalized }
    }
}

/// Where kernels find how rows are sampled, and where the ids go.
struct Drawing {
    specs: CUdeviceptr,
    /// The list that penalized ids stand in.
    marked: CUdeviceptr,
    out: Out,
    /// Whether any row is drawn at random, and whether any has penalties.
    random: bool,
    penalized: bool,
}

/// Where ids go.
#[derive(Clone, Copy)]
struct Out {
    ids: CUdeviceptr,
    stride: usize,
    /// The address of the address of the ids, where they are not the same each time; else 0.
    place: CUdeviceptr,
}

impl Out {
    fn of(ids: &Tensor) -> Self {
        Self { ids: crate::cuda::pointer(ids), stride: ids.strides()[0], place: 0 }
    }
}

/// Bytes of `struct Work` in `sampling.cu`.
const WORK_BYTES: usize = 8 + 2048 * (8 + 8 + 4) + 8;

/// Threads of blocks that take a part of a row, and of those that take a row.
const PART: usize = 256;
const WHOLE: usize = 1024;

/// Values that a thread of a part has at least.
const VALUES_EACH: usize = 4;

/// Blocks that share a row's penalized ids.
const PENALIZING: usize = 8;

/// Rows of logits on the card.
struct Logits {
    pointer: CUdeviceptr,
    stride: usize,
    rows: usize,
    width: usize,
}

impl Logits {
    fn of(tensor: &Tensor) -> Self {
        let pointer = crate::cuda::pointer(tensor);
        Self { pointer, stride: tensor.strides()[0], rows: tensor.shape()[0], width: tensor.shape()[1] }
    }

    /// A grid of blocks of `threads` threads: parts of rows, and rows.
    fn parts(&self, threads: usize) -> [usize; 3] {
        [self.width.div_ceil(threads * VALUES_EACH).clamp(1, 128), self.rows, 1]
    }
}

impl CudaDevice {
    /// The largest value of each row, into the first word of each row's `stride` bytes.
    fn largest(&self, logits: &Logits, work: CUdeviceptr, stride: usize) -> Result<()> {
        self.launch(&SOURCE, &[], "largest")?
            .grid(logits.parts(PART))
            .block(PART)
            .arg(logits.pointer)
            .arg(logits.stride)
            .arg(work)
            .arg(stride)
            .arg(logits.width as i32)
            .run()
    }

    fn take_largest(&self, work: CUdeviceptr, stride: usize, rows: usize, out: Out) -> Result<()> {
        self.launch(&SOURCE, &[], "take_largest")?
            .grid([rows.div_ceil(32), 1, 1])
            .block(32)
            .arg(work)
            .arg(stride)
            .arg(out.ids)
            .arg(out.stride)
            .arg(out.place)
            .arg(rows as i32)
            .run()
    }

    /// Memory of the operation with zeros: by a kernel, which may be launched early, where a fill may not.
    fn zeroed(&self, bytes: usize) -> Result<Pooled> {
        let memory = self.temporary(bytes)?;
        let words = bytes / 8;
        self.launch(&SOURCE, &[], "zero")?
            .grid([words.div_ceil(PART * VALUES_EACH), 1, 1])
            .block(PART)
            .arg(memory.pointer())
            .arg(words)
            .run()?;
        Ok(memory)
    }

    fn draw_rows(&self, mut logits: Logits, drawing: &Drawing) -> Result<()> {
        let &Drawing { specs, marked, out, random, penalized } = drawing;
        let copy = self.temporary(if penalized { 4 * logits.rows * logits.width } else { 0 })?;
        if penalized {
            self.launch(&SOURCE, &[], "copy_rows")?
                .grid([logits.width.div_ceil(PART), logits.rows, 1])
                .block(PART)
                .arg(logits.pointer)
                .arg(logits.stride)
                .arg(copy.pointer())
                .arg(logits.width as i32)
                .run()?;
            (logits.pointer, logits.stride) = (copy.pointer(), logits.width);
            self.launch(&SOURCE, &[], "penalize")?
                .grid([PENALIZING, logits.rows, 1])
                .block(PART)
                .arg(specs)
                .arg(marked)
                .arg(copy.pointer())
                .arg(logits.width as i32)
                .run()?;
        }
        // Where only the largest value is asked for, it is all that there is.
        let stride = if random { WORK_BYTES } else { 8 };
        let work = self.zeroed(logits.rows * stride)?;
        self.largest(&logits, work.pointer(), stride)?;
        if !random {
            return self.take_largest(work.pointer(), stride, logits.rows, out);
        }
        for (entry, threads) in [("spread", PART), ("list", WHOLE)] {
            self.launch(&SOURCE, &[], entry)?
                .grid(logits.parts(threads))
                .block(threads)
                .arg(logits.pointer)
                .arg(logits.stride)
                .arg(specs)
                .arg(work.pointer())
                .arg(logits.width as i32)
                .run()?;
        }
        self.launch(&SOURCE, &[], "draw")?
            .grid([logits.rows, 1, 1])
            .block(WHOLE)
            .arg(logits.pointer)
            .arg(logits.stride)
            .arg(specs)
            .arg(work.pointer())
            .arg(out.ids)
            .arg(out.stride)
            .arg(out.place)
            .arg(logits.width as i32)
            .run()
    }
}

impl SamplingOps for CudaDevice {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()> {
        let logits = Logits::of(logits);
        let work = self.zeroed(8 * logits.rows)?;
        self.largest(&logits, work.pointer(), 8)?;
        self.take_largest(work.pointer(), 8, logits.rows, Out::of(ids))
    }

    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
        let rows = Rows::of(specs, 0);
        let (table, marked) = (self.upload(&rows.specs)?, self.upload(&rows.penalized)?);
        let drawing = Drawing {
            specs: table.pointer(),
            marked: marked.pointer(),
            out: Out::of(ids),
            random: specs.iter().any(|spec| spec.temperature != 0.0),
            penalized: !rows.penalized.is_empty(),
        };
        self.draw_rows(Logits::of(logits), &drawing)
    }

    fn draw(&self, logits: &Tensor, step: &Step, draw: &Draw) -> Result<()> {
        let (tables, kind) = (self.step(step)?, step.draw_kind());
        let drawing = Drawing {
            specs: tables.draws(),
            marked: tables.words(),
            out: Out { place: tables.drawn(), ..Out::of(draw.ids()) },
            random: kind.random,
            penalized: kind.penalized,
        };
        self.draw_rows(Logits::of(logits), &drawing)
    }
}
