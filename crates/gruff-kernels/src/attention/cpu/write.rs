//! Keys and values into their pages.

use super::cached::Cached;
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output};
use crate::{KvLayer, PAGE_LEN, Result, Step, Tensor};

impl CpuDevice {
    pub(super) fn write_pages<T: Cached>(
        &self,
        step: &Step,
        keys: &Tensor,
        values: &Tensor,
        layer: &KvLayer,
    ) -> Result<()> {
        let kv_heads = layer.kv_heads();
        for (source, pool) in [(keys, layer.keys()), (values, layer.values())] {
            let dim = pool.shape()[3];
            let pool = pool.reshape(&[layer.pages() * kv_heads * PAGE_LEN, dim])?;
            let pool = Output::<T>::of(&pool);
            // SAFETY: the cache's memory is its own.
            let source = unsafe { Input::<f32>::of(source) };
            // A head is one thread's: whatever pages sequences own, no two threads write the same row.
            self.share(kv_heads, step.len() * dim, |heads| {
                for (sequence, start) in step.sequences().iter().zip(step.starts()) {
                    for i in 0..sequence.len {
                        let index = sequence.past + i;
                        let page = sequence.pages[index / PAGE_LEN] as usize;
                        for head in heads.clone() {
                            let row = (page * kv_heads + head) * PAGE_LEN + index % PAGE_LEN;
                            // SAFETY: within the operation, only this piece touches rows of this head.
                            let row = unsafe { pool.row(row) };
                            T::write_row(self.isa(), source.row((start + i) * kv_heads + head), row);
                        }
                    }
                }
            });
        }
        Ok(())
    }
}
