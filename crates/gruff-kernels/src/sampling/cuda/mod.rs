//! The family on NVIDIA cards.
//!
//! The largest value of a row is found by several blocks; then weights are summed in bins of likelihood, again by
//! several blocks; then what lies in bins that can matter is listed; then one block sorts the list, applies the limits
//! and draws. Where too much can matter to be listed, that block descends through the whole row instead.

use cudarc::driver::sys::CUdeviceptr;

use super::{SampleSpec, SamplingOps, uniform};
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::{Result, Tensor};

pub(crate) static SOURCE: Source =
    Source { name: "sampling.cu", code: include_str!("sampling.cu"), options: &[], variants: &[&[]] };

/// As `struct Spec` in `sampling.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Spec {
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

/// Bytes of `struct Work` in `sampling.cu`.
const WORK_BYTES: usize = 8 + 2048 * (8 + 8 + 4) + 8;

/// Threads of blocks that take a part of a row, and of those that take a row.
const PART: usize = 256;
const WHOLE: usize = 1024;

/// Values that a thread of a part has at least.
const VALUES_EACH: usize = 4;

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

    fn take_largest(&self, work: CUdeviceptr, stride: usize, ids: &Tensor) -> Result<()> {
        let rows = ids.shape()[0];
        self.launch(&SOURCE, &[], "take_largest")?
            .grid([rows.div_ceil(32), 1, 1])
            .block(32)
            .arg(work)
            .arg(stride)
            .rows_of(ids)
            .arg(rows as i32)
            .run()
    }
}

impl SamplingOps for CudaDevice {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()> {
        let logits = Logits::of(logits);
        let work = self.temporary(8 * logits.rows)?;
        work.clear(8 * logits.rows)?;
        self.largest(&logits, work.pointer(), 8)?;
        self.take_largest(work.pointer(), 8, ids)
    }

    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
        let mut logits = Logits::of(logits);
        let mut penalized: Vec<u32> = Vec::new();
        let mut most = 0;
        let rows: Vec<Spec> = specs
            .iter()
            .map(|spec| {
                let first = penalized.len();
                if spec.repetition_penalty != 1.0 {
                    penalized.extend(&spec.penalized);
                    penalized[first..].sort_unstable();
                    let mut unique = penalized.split_off(first);
                    unique.dedup();
                    penalized.append(&mut unique);
                }
                most = most.max(penalized.len() - first);
                Spec {
                    uniform: uniform(spec.seed, spec.position),
                    temperature: spec.temperature,
                    top_p: spec.top_p,
                    min_p: spec.min_p,
                    penalty: spec.repetition_penalty,
                    top_k: i32::try_from(spec.top_k).unwrap_or(i32::MAX),
                    first_penalized: first as i32,
                    penalized: (penalized.len() - first) as i32,
                    unused: 0,
                }
            })
            .collect();
        let table = self.upload(&rows)?;
        let copy_bytes = if most > 0 { 4 * logits.rows * logits.width } else { 0 };
        let copy = self.temporary(copy_bytes)?;
        if most > 0 {
            let marked = self.upload(&penalized)?;
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
                .grid([most.div_ceil(PART), logits.rows, 1])
                .block(PART)
                .arg(table.pointer())
                .arg(marked.pointer())
                .arg(copy.pointer())
                .arg(logits.width as i32)
                .run()?;
        }
        let bytes = logits.rows * WORK_BYTES;
        let work = self.temporary(bytes)?;
        work.clear(bytes)?;
        self.largest(&logits, work.pointer(), WORK_BYTES)?;
        if specs.iter().all(|spec| spec.temperature == 0.0) {
            return self.take_largest(work.pointer(), WORK_BYTES, ids);
        }
        for (entry, threads) in [("spread", PART), ("list", WHOLE)] {
            self.launch(&SOURCE, &[], entry)?
                .grid(logits.parts(threads))
                .block(threads)
                .arg(logits.pointer)
                .arg(logits.stride)
                .arg(table.pointer())
                .arg(work.pointer())
                .arg(logits.width as i32)
                .run()?;
        }
        self.launch(&SOURCE, &[], "draw")?
            .grid([logits.rows, 1, 1])
            .block(WHOLE)
            .arg(logits.pointer)
            .arg(logits.stride)
            .arg(table.pointer())
            .arg(work.pointer())
            .rows_of(ids)
            .arg(logits.width as i32)
            .run()
    }
}
