//! Keys and values into their pages.

use half::f16;

use crate::cpu::CpuDevice;
use crate::cpu::simd::{LANES, Lane, Simd, simd_fn};
use crate::cpu::view::{Input, Output};
use crate::{KvLayer, PAGE_LEN, Result, Step, Tensor};

/// A number type that caches hold.
pub(super) trait Cached: Lane {
    /// Rounds a row.
    fn round_row(isa: crate::Isa, values: &[f32], out: &mut [Self]);
}

impl Cached for f32 {
    fn round_row(_: crate::Isa, values: &[f32], out: &mut [f32]) {
        out.copy_from_slice(values);
    }
}

impl Cached for f16 {
    fn round_row(isa: crate::Isa, values: &[f32], out: &mut [f16]) {
        to_half(isa, values, out);
    }
}

#[inline(always)]
fn halves<S: Simd>(s: S, values: &[f32], out: &mut [f16]) {
    let (values, values_rest) = values.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (value, target) in values.iter().zip(out) {
        s.store_f16(s.load(value), target);
    }
    for (value, target) in values_rest.iter().zip(out_rest) {
        *target = f16::from_f32(*value);
    }
}

simd_fn! {
    fn to_half = halves(values: &[f32], out: &mut [f16])
}

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
                            T::round_row(self.isa(), source.row((start + i) * kv_heads + head), row);
                        }
                    }
                }
            });
        }
        Ok(())
    }
}
