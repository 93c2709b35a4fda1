//! Sampling by a full sort, in f64.

use super::{SampleSpec, SamplingOps, uniform};
use crate::reference::{ReferenceDevice, load, store};
use crate::{Result, Tensor};

fn largest(row: &[f64]) -> Option<usize> {
    let finite = row.iter().enumerate().filter(|(_, v)| !v.is_nan() && **v != f64::NEG_INFINITY);
    finite
        .fold(None, |best: Option<(usize, f64)>, (i, v)| match best {
            Some((_, b)) if b >= *v => best,
            _ => Some((i, *v)),
        })
        .map(|(i, _)| i)
}

fn draw(row: &[f64], spec: &SampleSpec) -> Option<usize> {
    let mut row = row.to_vec();
    let penalty = f64::from(spec.repetition_penalty);
    let mut penalized = spec.penalized.clone();
    penalized.sort_unstable();
    penalized.dedup();
    for id in penalized {
        let logit = &mut row[id as usize];
        *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
    }
    let first = largest(&row)?;
    if spec.temperature == 0.0 {
        return Some(first);
    }
    let mut order: Vec<usize> = (0..row.len()).filter(|i| !row[*i].is_nan()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    if spec.top_k > 0 && spec.top_k < order.len() {
        let least = row[order[spec.top_k - 1]];
        order.retain(|i| row[*i] >= least);
    }
    let top = row[first];
    let weights: Vec<f64> =
        order.iter().map(|i| ((row[*i] - top) / f64::from(spec.temperature)).exp()).collect();
    let kept = kept_prefix(&weights, spec);
    let total: f64 = weights[..kept].iter().sum();
    let mut rest = uniform(spec.seed, spec.position) * total;
    for (weight, id) in weights[..kept].iter().zip(&order) {
        if rest < *weight {
            return Some(*id);
        }
        rest -= weight;
    }
    Some(order[kept - 1])
}

/// How many of the descending weights top-p and then min-p keep.
fn kept_prefix(weights: &[f64], spec: &SampleSpec) -> usize {
    let total: f64 = weights.iter().sum();
    let mut kept = weights.len();
    if spec.top_p < 1.0 {
        let mut mass = 0.0;
        kept = weights
            .iter()
            .take_while(|weight| {
                let before = mass;
                mass += **weight;
                before < f64::from(spec.top_p) * total
            })
            .count();
    }
    let least = f64::from(spec.min_p) * weights[0];
    weights[..kept.max(1)].iter().take_while(|weight| **weight >= least).count().max(1)
}

impl SamplingOps for ReferenceDevice {
    fn argmax(&self, logits: &Tensor, ids: &Tensor) -> Result<()> {
        let width = logits.shape()[1];
        let rows = load(logits)?;
        let chosen: Vec<f64> =
            rows.chunks_exact(width.max(1)).map(|row| largest(row).map_or(-1.0, |i| i as f64)).collect();
        store(ids, &chosen)
    }

    fn sample(&self, logits: &Tensor, specs: &[SampleSpec], ids: &Tensor) -> Result<()> {
        let width = logits.shape()[1];
        let rows = load(logits)?;
        let chosen: Vec<f64> = rows
            .chunks_exact(width.max(1))
            .zip(specs)
            .map(|(row, spec)| draw(row, spec).map_or(-1.0, |i| i as f64))
            .collect();
        store(ids, &chosen)
    }
}
