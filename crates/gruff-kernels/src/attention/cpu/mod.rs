//! The family on the CPU.
//!
//! A job is a key-value head and some consecutive queries of one sequence (all heads of the group): each page
//! of keys is read once for all of them. Softmax runs online over the pages of a *span* of [`SPAN`] keys,
//! counted from the sequence's start; spans are merged in order. A long decode shares out spans among threads,
//! which changes nothing in the arithmetic.

mod cached;
mod job;
mod partial;
mod write;

use half::f16;

use super::{AttentionOps, AttentionSpec};
use crate::cpu::CpuDevice;
use crate::cpu::scratch::with_scratch;
use crate::cpu::view::{Input, Output};
use crate::{DType, KvDtype, KvLayer, PAGE_LEN, Result, Step, Tensor};

use cached::Cached;
use job::{Heads, Job, attend, attend_span, finish};

/// Keys whose softmax is computed in one go, on a grid of the sequence's positions: a unit of work that is
/// large compared to what handing it out takes, and small enough to occupy several threads early.
const SPAN: usize = 512;

/// Rows (positions times heads of a group) of a job: enough to make use of a page of keys while it is in cache.
const JOB_ROWS: usize = 32;

/// What a multiplication takes, compared to reading a value: one in this many.
const PRODUCTS: usize = 4;

impl CpuDevice {
    fn attend<T: Cached>(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        let heads = Heads::of(queries, layer, out);
        let page = |pool: &Tensor| pool.reshape(&[layer.pages() * heads.kv, PAGE_LEN * pool.shape()[3]]);
        let (keys, values) = (page(layer.keys())?, page(layer.values())?);
        // SAFETY: queries were checked to be disjoint from the output; the cache's memory is its own.
        let (queries, keys, values) =
            unsafe { (Input::<f32>::of(queries), Input::<T>::of(&keys), Input::<T>::of(&values)) };
        let target = Output::<f32>::of(out);
        let pools = job::Pools { queries: &queries, keys: &keys, values: &values };
        let jobs = plan(step, &heads, spec);
        let products: usize = jobs.iter().map(|job| job.products(&heads)).sum();
        let cost = products / PRODUCTS;
        let spans: usize = jobs.iter().map(|job| job.spans().len()).sum();
        if jobs.len() >= 2 * self.pool().threads() || spans == jobs.len() || self.pool().threads() == 1 {
            self.share(jobs.len(), cost / jobs.len().max(1), |range| {
                for job in &jobs[range] {
                    with_scratch(heads.scratch(job.rows()), |scratch| {
                        attend(self.isa(), &heads, &pools, job, &target, scratch);
                    });
                }
            });
            return Ok(());
        }
        // Few queries with many keys: spans side by side, then merged.
        let pieces: Vec<(usize, usize)> = jobs
            .iter()
            .enumerate()
            .flat_map(|(index, job)| job.spans().map(move |span| (index, span)))
            .collect();
        let rows = jobs.iter().map(Job::rows).max().unwrap_or(0);
        let partials = out.device().scratch(DType::F32, &[pieces.len(), heads.partial(rows)])?;
        let partials = Output::<f32>::of(&partials);
        self.share(pieces.len(), cost / pieces.len().max(1), |range| {
            for piece in range {
                let (job, span) = pieces[piece];
                // SAFETY: within the operation, only this piece touches its partial result.
                let partial = unsafe { partials.row(piece) };
                with_scratch(heads.scratch(jobs[job].rows()), |scratch| {
                    attend_span(self.isa(), &heads, &pools, &jobs[job], span, partial, scratch);
                });
            }
        });
        let mut first = 0;
        for job in &jobs {
            let spans = job.spans().len();
            // SAFETY: all pieces are done; only this thread touches the partial results.
            let of_job = (first..first + spans).map(|piece| unsafe { partials.row(piece) });
            finish(self.isa(), &heads, job, of_job.collect(), &target);
            first += spans;
        }
        Ok(())
    }
}

/// The jobs of a step, sequence by sequence.
fn plan<'a>(step: &'a Step, heads: &Heads, spec: &AttentionSpec) -> Vec<Job<'a>> {
    let tile = (JOB_ROWS / heads.group).max(1);
    let mut jobs = Vec::new();
    for (sequence, start) in step.sequences().iter().zip(step.starts()) {
        for kv_head in 0..heads.kv {
            for first in (0..sequence.len).step_by(tile) {
                let positions = sequence.past + first..sequence.past + (first + tile).min(sequence.len);
                let pages = &sequence.pages;
                jobs.push(Job {
                    first_token: start + first,
                    positions,
                    kv_head,
                    pages,
                    group: heads.group,
                    spec: *spec,
                });
            }
        }
    }
    jobs
}

impl AttentionOps for CpuDevice {
    fn write_kv(&self, step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()> {
        match layer.dtype() {
            KvDtype::F32 => self.write_pages::<f32>(step, keys, values, layer),
            KvDtype::F16 => self.write_pages::<f16>(step, keys, values, layer),
            KvDtype::Q8_0 => self.write_pages::<u8>(step, keys, values, layer),
        }
    }

    fn attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        match layer.dtype() {
            KvDtype::F32 => self.attend::<f32>(step, queries, layer, spec, out),
            KvDtype::F16 => self.attend::<f16>(step, queries, layer, spec, out),
            KvDtype::Q8_0 => self.attend::<u8>(step, queries, layer, spec, out),
        }
    }
}
