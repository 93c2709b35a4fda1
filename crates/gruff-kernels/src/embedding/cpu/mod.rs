//! The family on the CPU: rows are unpacked where they lie, into the output.

use super::EmbeddingOps;
use crate::cpu::CpuDevice;
use crate::cpu::view::Output;
use crate::{PackedTensor, Result, Tensor};

impl EmbeddingOps for CpuDevice {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
        let memory = table.buffer().cpu();
        assert!(table.row_offset(0, table.rows()) <= memory.len());
        let (table_scale, out) = (table.scale(0), Output::<f32>::of(out));
        /// What unpacking a value takes, compared to reading one.
        const COST: usize = 4;
        self.share(ids.len(), COST * table.cols(), |tokens| {
            for t in tokens {
                let row = table.row_offset(0, ids[t] as usize);
                // SAFETY: ids were checked to be rows of the table, which lies inside the memory (asserted); within
                // the operation, only this piece touches output row t.
                let (packed, out) = unsafe {
                    (std::slice::from_raw_parts(memory.pointer().add(row), table.row_bytes()), out.row(t))
                };
                let unpacked = table.block_type().unpack(packed, out);
                debug_assert!(unpacked.is_ok(), "a row is whole blocks");
                if table_scale != 1.0 {
                    out.iter_mut().for_each(|value| *value *= table_scale);
                }
                out.iter_mut().for_each(|value| *value *= scale);
            }
        });
        Ok(())
    }
}
