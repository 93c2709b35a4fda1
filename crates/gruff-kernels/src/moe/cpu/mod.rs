//! The family on the CPU: rows are gathered by expert, so that each expert's weights are read once a step.

mod route;

use std::collections::BTreeMap;

use super::reference::expert_ids;
use super::{MoeOps, Routing};
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output};
use crate::matmul::Glu;
use crate::matmul::cpu::schedule::{Finish, Task, run};
use crate::{Activation, DType, PackedTensor, Result, Tensor};

/// Columns of a combination that one piece of work takes.
const SEGMENT: usize = 1024;

/// The rows that each expert serves, by expert.
fn rows_by_expert(op: &'static str, ids: &Tensor, experts: usize) -> Result<BTreeMap<usize, Vec<usize>>> {
    let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (row, expert) in expert_ids(op, ids, experts)?.into_iter().enumerate() {
        rows.entry(expert).or_default().push(row);
    }
    Ok(rows)
}

impl CpuDevice {
    /// For every expert, the products of its `weights` with its rows of x, to the same rows of `out`. Row r of
    /// `out` reads row `r / share` of x.
    fn experts(
        &self,
        x: &Activation,
        share: usize,
        rows: &BTreeMap<usize, Vec<usize>>,
        weights: &[&PackedTensor],
        finish: Finish,
        out: &Tensor,
    ) -> Result<()> {
        let out = Output::<f32>::of(out);
        let tasks = rows.iter().map(|(expert, rows)| {
            let product =
                |weight: &&PackedTensor| self.product(x, rows.iter().map(|r| r / share), weight, *expert);
            let products = weights.iter().map(product).collect::<Result<_>>()?;
            // SAFETY: only the first address of each row is taken.
            let outputs = rows.iter().map(|row| unsafe { out.row(*row) }.as_mut_ptr()).collect();
            Ok(Task { products, outputs, finish })
        });
        run(self, &tasks.collect::<Result<Vec<_>>>()?);
        Ok(())
    }
}

impl MoeOps for CpuDevice {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
        // SAFETY: the logits were checked to be disjoint from the weights; ids are of another type, and no
        // memory holds both.
        let logits = unsafe { Input::<f32>::of(logits) };
        let (ids, weights) = (Output::<i32>::of(ids), Output::<f32>::of(weights));
        self.share(logits.rows(), (8 + routing.used) * logits.width(), |tokens| {
            let mut exps = vec![0.0; logits.width()];
            for t in tokens {
                // SAFETY: within the operation, only this piece touches token t's rows.
                let (ids, weights) = unsafe { (ids.row(t), weights.row(t)) };
                route::token(self.isa(), logits.row(t), routing, &mut exps, ids, weights);
            }
        });
        Ok(())
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
        let rows = rows_by_expert("experts_glu", ids, gate.matrices())?;
        self.experts(x, ids.shape()[1], &rows, &[gate, up], Finish::Glu(glu), out)
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
        let rows = rows_by_expert("experts_combine", ids, down.matrices())?;
        let products = out.device().scratch(DType::F32, &[hidden.rows(), down.rows()])?;
        self.experts(hidden, 1, &rows, &[down], Finish::Store { bias: None }, &products)?;

        // SAFETY: the products are this operation's own, the weights were checked to be disjoint from the output.
        let (products, weights) = unsafe { (Input::<f32>::of(&products), Input::<f32>::of(weights)) };
        let out = Output::<f32>::of(out);
        let segments = out.width().div_ceil(SEGMENT);
        self.share(out.rows() * segments, used * SEGMENT.min(out.width()), |pieces| {
            for piece in pieces {
                let (t, start) = (piece / segments, piece % segments * SEGMENT);
                let range = start..(start + SEGMENT).min(out.width());
                // SAFETY: within the operation, only this piece touches this segment; no other slice of the row
                // overlaps it.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.row(t).as_mut_ptr().add(start), range.len())
                };
                out.fill(0.0);
                for (j, weight) in weights.row(t).iter().enumerate() {
                    let product = &products.row(t * used + j)[range.clone()];
                    out.iter_mut().zip(product).for_each(|(out, value)| *out += weight * value);
                }
            }
        });
        Ok(())
    }
}
