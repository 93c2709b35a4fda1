//! Norms for products, of as many rows as prompts have (`many.cu`).

use super::block_threads;
use crate::cuda::sources::Source;
use crate::cuda::{CudaDevice, Launch, width};
use crate::{Activation, Result, Tensor};

pub(crate) static MANY: Source = Source {
    name: "many.cu",
    code: include_str!("many.cu"),
    options: &[],
    variants: &[
        &[("THREADS", 256), ("EACH", 4)],
        &[("THREADS", 640), ("EACH", 4)],
        &[("THREADS", 1024), ("EACH", 5)],
        &[("THREADS", 1024), ("EACH", 8)],
        &[("THREADS", 32), ("EACH", 4)],
        &[("THREADS", 32), ("EACH", 2)],
    ],
};

/// Heads of a block, as in the source.
const HEADS: usize = 8;

/// Rows that are taken together, as in the source.
const ROWS: usize = 4;

/// The most values of a row that a thread has: what its registers hold of them.
const EACH: usize = 8;

/// How rows are taken together.
#[derive(Clone, Copy)]
pub(super) struct Many {
    /// Threads of a row.
    pub(super) threads: usize,
    each: usize,
    blocks: [usize; 3],
}

impl Many {
    /// Rows `[T, D]`, unless they are too few to occupy the card or too wide.
    pub(super) fn rows(device: &CudaDevice, out: &Tensor) -> Option<Self> {
        Self::of(device, out.shape()[0], block_threads(width(out)), width(out), 1)
    }

    /// Rows of heads `[T, H, D]`, a warp each, likewise.
    pub(super) fn heads(device: &CudaDevice, x: &Tensor) -> Option<Self> {
        Self::of(device, x.shape()[0], 32, width(x), x.shape()[1].div_ceil(HEADS))
    }

    fn of(device: &CudaDevice, count: usize, threads: usize, width: usize, others: usize) -> Option<Self> {
        let each = width.div_ceil(threads);
        let blocks = [count.div_ceil(ROWS), others, 1];
        let fills = blocks[0] * blocks[1] >= device.card().multiprocessors;
        (fills && each <= EACH).then_some(Self { threads, each, blocks })
    }
}

impl CudaDevice {
    /// A launch of one of the source's kernels with so many threads a block.
    pub(super) fn norm_many(&self, many: Many, entry: &'static str, threads: usize) -> Result<Launch<'_>> {
        let defines = [("THREADS", many.threads as i64), ("EACH", many.each as i64)];
        Ok(self.launch(&MANY, &defines, entry)?.grid(many.blocks).block(threads))
    }

    pub(super) fn gated_rms_norm_many(
        &self,
        many: Many,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<Activation> {
        let launch = self
            .norm_many(many, "gated_rms_norm_many", many.threads * HEADS)?
            .heads_of(x)
            .arg(weight)
            .heads_of(gate)
            .rows_of(out)
            .arg(x.shape()[1] as i32)
            .arg(x.shape()[0] as i32)
            .arg(width(x) as i32);
        self.in_pieces(launch, eps, out)
    }
}
