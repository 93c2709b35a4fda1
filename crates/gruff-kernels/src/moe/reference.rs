//! Experts in f64.

use super::{MoeOps, Routing};
use crate::device::Backend;
use crate::matmul::Glu;
use crate::matmul::reference::{product, rounded};
use crate::reference::{ReferenceDevice, load, store};
use crate::{Activation, Error, PackedTensor, Result, Tensor};

/// Expert ids, checked against the stack.
pub(crate) fn expert_ids(op: &'static str, ids: &Tensor, experts: usize) -> Result<Vec<usize>> {
    load(ids)?
        .into_iter()
        .map(|id| {
            if id >= 0.0 && (id as usize) < experts {
                Ok(id as usize)
            } else {
                Err(Error::Value { op, what: format!("expert {id} of {experts}") })
            }
        })
        .collect()
}

impl MoeOps for ReferenceDevice {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
        let experts = logits.shape()[1];
        let (mut chosen_ids, mut chosen_weights) = (Vec::new(), Vec::new());
        for row in load(logits)?.chunks_exact(experts) {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exps: Vec<f64> = row.iter().map(|logit| (logit - largest).exp()).collect();
            let total: f64 = exps.iter().sum();
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| exps[*b].total_cmp(&exps[*a]).then(a.cmp(b)));
            let chosen = &order[..routing.used];
            let sum: f64 = if routing.renormalize { chosen.iter().map(|e| exps[*e]).sum() } else { total };
            chosen_ids.extend(chosen.iter().map(|e| *e as f64));
            chosen_weights.extend(chosen.iter().map(|e| exps[*e] / sum * f64::from(routing.scale)));
        }
        store(ids, &chosen_ids)?;
        store(weights, &chosen_weights)
    }

    fn experts_glu(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()> {
        let used = ids.shape()[1];
        let values = load(x.tensor())?;
        let gate_x = rounded(&values, x.cols(), gate.block_type(), self.activations());
        let up_x = rounded(&values, x.cols(), up.block_type(), self.activations());
        let mut result = Vec::with_capacity(out.len());
        for (row, expert) in expert_ids("experts_glu", ids, gate.matrices())?.into_iter().enumerate() {
            let token = row / used * x.cols()..(row / used + 1) * x.cols();
            let gate = product(&gate_x[token.clone()], gate, expert)?;
            let up = product(&up_x[token], up, expert)?;
            result.extend(gate.iter().zip(&up).map(|(g, u)| glu.apply(*g) * u));
        }
        store(out, &result)
    }

    fn experts_combine(
        &self,
        hidden: &Activation,
        ids: &Tensor,
        weights: &Tensor,
        down: &PackedTensor,
        out: &Tensor,
    ) -> Result<()> {
        let used = ids.shape()[1];
        let x = rounded(&load(hidden.tensor())?, hidden.cols(), down.block_type(), self.activations());
        let weights = load(weights)?;
        let mut result = vec![0.0; out.len()];
        for (row, expert) in expert_ids("experts_combine", ids, down.matrices())?.into_iter().enumerate() {
            let product = product(&x[row * hidden.cols()..(row + 1) * hidden.cols()], down, expert)?;
            let token = &mut result[row / used * down.rows()..][..down.rows()];
            token.iter_mut().zip(&product).for_each(|(sum, value)| *sum += weights[row] * value);
        }
        store(out, &result)
    }
}
