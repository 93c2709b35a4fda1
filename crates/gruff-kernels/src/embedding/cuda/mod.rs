//! The family on NVIDIA cards.

use cudarc::driver::sys::CUdeviceptr;

use super::EmbeddingOps;
use crate::cuda::CudaDevice;
use crate::cuda::sources::Source;
use crate::{PackedTensor, Result, Step, Tensor};

/// Sources that include the formats of blocks are given lambdas as device code, like those of the products.
pub(crate) static SOURCE: Source = Source {
    name: "embed.cu",
    code: include_str!("embed.cu"),
    options: &["--device-as-default-execution-space"],
    variants: &[
        &[("WEIGHT", 12), ("SCALAR", 0)],
        &[("WEIGHT", 14), ("SCALAR", 0)],
        &[("WEIGHT", 8), ("SCALAR", 0)],
        &[("WEIGHT", 21), ("SCALAR", 0)],
        &[("WEIGHT", 1), ("SCALAR", 1)],
        &[("WEIGHT", 30), ("SCALAR", 1)],
    ],
};

const THREADS: usize = 64;

/// Values that a thread unpacks (`RUN` in `blocks.cuh`).
const RUN: usize = 64;

impl EmbeddingOps for CudaDevice {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
        let uploaded = self.upload(ids)?;
        self.look_up(ids.len(), [uploaded.pointer(), 0], table, scale, out)
    }

    fn embed_step(
        &self,
        step: &Step,
        _ids: &[u32],
        table: &PackedTensor,
        scale: f32,
        out: &Tensor,
    ) -> Result<()> {
        let tables = self.step(step)?;
        self.look_up(step.len(), [tables.ids(), tables.late()], table, scale, out)
    }
}

impl CudaDevice {
    /// Rows of the table by ids on the card, of which some may be late ones.
    fn look_up(
        &self,
        tokens: usize,
        [ids, late]: [CUdeviceptr; 2],
        table: &PackedTensor,
        scale: f32,
        out: &Tensor,
    ) -> Result<()> {
        let block_type = table.block_type();
        let cols = table.cols();
        let scalar = block_type.is_scalar();
        let threads = if scalar { tokens * cols } else { tokens * cols.div_ceil(RUN) };
        let pitch = table.strips().map_or(table.row_bytes(), |strips| strips.strip_bytes());
        let defines = [("WEIGHT", i64::from(block_type.id())), ("SCALAR", i64::from(scalar))];
        self.launch(&SOURCE, &defines, "embed")?
            .grid([threads.div_ceil(THREADS), 1, 1])
            .block(THREADS)
            .arg(ids)
            .arg(late)
            .arg(table.buffer().cuda().pointer() + table.row_offset(0, 0) as u64)
            .arg(pitch)
            .arg(self.book(block_type)?)
            .rows_of(out)
            .arg(tokens as i32)
            .arg(table.rows() as i32)
            .arg(cols as i32)
            .arg(table.scale(0))
            .arg(scale)
            .run()
    }
}
