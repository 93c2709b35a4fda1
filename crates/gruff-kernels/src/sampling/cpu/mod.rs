//! The family on the CPU.
//!
//! A row is never sorted as a whole if a few hundred of its largest values decide: the largest value of each
//! block bounds the k-th largest of all from below, so that two passes collect the top k. More are taken when
//! those do not decide (a flat distribution).

mod scan;
mod top;

use super::{SampleSpec, SamplingOps, uniform};
use crate::cpu::CpuDevice;
use crate::cpu::scratch::with_scratch;
use crate::cpu::view::{Input, Output};
use crate::{Isa, Result, Tensor};

use scan::sum_of_exps;
use top::Blocks;

/// Candidates that are looked at first, and by how much their number grows when they do not decide.
const FIRST_CANDIDATES: usize = 256;
const GROWTH: usize = 16;

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
                Some(draw(self.isa(), &blocks, row[largest], spec))
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

fn draw(isa: Isa, blocks: &Blocks, largest: f32, spec: &SampleSpec) -> usize {
    let row = blocks.row();
    if spec.top_k > 0 && spec.top_k < row.len() {
        let candidates = blocks.top(spec.top_k);
        return decide(row, &candidates, None, largest, spec).unwrap_or(candidates[0] as usize);
    }
    let total = sum_of_exps(isa, row, largest, spec.temperature.recip());
    let mut count = FIRST_CANDIDATES;
    while count < row.len() {
        if let Some(id) = decide(row, &blocks.top(count), Some(total), largest, spec) {
            return id;
        }
        count *= GROWTH;
    }
    let all = blocks.top(row.len());
    decide(row, &all, None, largest, spec).unwrap_or(all[0] as usize)
}

/// The draw among candidates in descending order; `None` when they do not decide. `total` is the weight of
/// all ids where there are more than the candidates, whose own it is otherwise.
fn decide(
    row: &[f32],
    candidates: &[u32],
    total: Option<f64>,
    largest: f32,
    spec: &SampleSpec,
) -> Option<usize> {
    let complete = total.is_none();
    let scale = f64::from(spec.temperature);
    let weights: Vec<f64> = candidates
        .iter()
        .map(|id| ((f64::from(row[*id as usize]) - f64::from(largest)) / scale).exp())
        .collect();
    let total = total.unwrap_or_else(|| weights.iter().sum());
    let mut kept = weights.len();
    // Whether the kept ids end among the candidates.
    let mut ends = complete;
    if spec.top_p < 1.0 {
        let mut mass = 0.0;
        let within = weights.iter().take_while(|weight| {
            let before = mass;
            mass += **weight;
            before < f64::from(spec.top_p) * total
        });
        kept = within.count();
        ends |= kept < weights.len();
    }
    let least = f64::from(spec.min_p) * weights[0];
    let likely = weights[..kept.max(1)].iter().take_while(|weight| **weight >= least).count();
    ends |= likely < kept;
    kept = likely.max(1);
    if !ends && (spec.top_p < 1.0 || spec.min_p > 0.0) {
        return None;
    }
    let mass = if ends { weights[..kept].iter().sum() } else { total };
    let mut rest = uniform(spec.seed, spec.position) * mass;
    for (weight, id) in weights[..kept].iter().zip(candidates) {
        if rest < *weight {
            return Some(*id as usize);
        }
        rest -= weight;
    }
    ends.then(|| candidates[kept - 1] as usize)
}
