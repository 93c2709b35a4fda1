//! The family on the CPU.
//!
//! A row is never sorted as a whole. The largest value of each block bounds the k-th largest of all from below, so
//! that two passes collect the top k. Without top-k, weights are summed in bins of similar value, and only the bins in
//! which top-p ends and the draw falls are looked into.

mod scan;
mod spread;
mod top;

use super::{SampleSpec, SamplingOps, uniform};
use crate::cpu::CpuDevice;
use crate::cpu::scratch::with_scratch;
use crate::cpu::view::{Input, Output};
use crate::{Result, Tensor};

use scan::Likelihood;
use spread::Spread;
use top::Blocks;

impl SamplingOps for CpuDevice {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()> {
        self.choose_rows(logits, ids, |_, row| {
            with_scratch(Blocks::scratch(row.len()), |scratch| Blocks::of(self.isa(), row, scratch).largest())
        })
    }

    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
        self.choose_rows(logits, ids, |index, row| {
            let spec = &specs[index];
            with_scratch(row.len() + Blocks::scratch(row.len()), |scratch| {
                let (copy, scratch) = scratch.split_at_mut(row.len());
                let row = if penalizes(spec) {
                    copy.copy_from_slice(row);
                    penalize(copy, spec);
                    &*copy
                } else {
                    row
                };
                let blocks = Blocks::of(self.isa(), row, scratch);
                let largest = blocks.largest()?;
                if spec.temperature == 0.0 {
                    return Some(largest);
                }
                Some(self.draw(&blocks, row[largest], spec))
            })
        })
    }
}

impl CpuDevice {
    /// `ids[r] = choose(r, row r)`, -1 for `None`.
    fn choose_rows(
        &self,
        logits: &Tensor,
        ids: &Tensor,
        choose: impl Fn(usize, &[f32]) -> Option<usize> + Sync,
    ) -> Result<()> {
        let column = ids.split_last(ids.shape()[0].max(1))?;
        // SAFETY: logits are f32 and ids are not, so their memory is disjoint unless one is reinterpreted,
        // which no tensor is.
        let (logits, ids) = (unsafe { Input::<f32>::of(logits) }, Output::<i32>::of(&column));
        self.share(logits.rows(), logits.width(), |rows| {
            for row in rows {
                let id = choose(row, logits.row(row)).map_or(-1, |id| id as i32);
                // SAFETY: within the operation, only this piece touches this id.
                let target = unsafe { ids.row(row) };
                target[0] = id;
            }
        });
        Ok(())
    }
}

fn penalizes(spec: &SampleSpec) -> bool {
    spec.repetition_penalty != 1.0 && !spec.penalized.is_empty()
}

fn penalize(row: &mut [f32], spec: &SampleSpec) {
    let mut ids = spec.penalized.clone();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let logit = &mut row[id as usize];
        *logit =
            if *logit > 0.0 { *logit / spec.repetition_penalty } else { *logit * spec.repetition_penalty };
    }
}

impl CpuDevice {
    fn draw(&self, blocks: &Blocks, largest: f32, spec: &SampleSpec) -> usize {
        let row = blocks.row();
        let likelihood = Likelihood { largest, temperature: spec.temperature };
        if spec.top_k > 0 && spec.top_k < row.len() {
            return draw_among(row, &blocks.top(spec.top_k), likelihood, spec);
        }
        Spread::of(self, row, likelihood, spec.min_p).draw(spec)
    }
}

/// The draw among candidates in descending order.
fn draw_among(row: &[f32], candidates: &[u32], likelihood: Likelihood, spec: &SampleSpec) -> usize {
    let weights: Vec<f64> = candidates.iter().map(|id| likelihood.of(row[*id as usize])).collect();
    let mut kept = weights.len();
    if spec.top_p < 1.0 {
        let total: f64 = weights.iter().sum();
        let mut mass = 0.0;
        let within = weights.iter().take_while(|weight| {
            let before = mass;
            mass += **weight;
            before < f64::from(spec.top_p) * total
        });
        kept = within.count().max(1);
    }
    let likely = weights[..kept].iter().take_while(|weight| **weight >= f64::from(spec.min_p));
    let kept = likely.count().max(1);
    let mut rest = uniform(spec.seed, spec.position) * weights[..kept].iter().sum::<f64>();
    for (weight, id) in weights[..kept].iter().zip(candidates) {
        if rest < *weight {
            return *id as usize;
        }
        rest -= weight;
    }
    candidates[kept - 1] as usize
}
