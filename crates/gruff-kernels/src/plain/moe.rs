//! Products of experts, a token and an expert at a time.

use super::matmul::{dot, unpack};
use crate::cpu::CpuDevice;
use crate::cpu::scratch::with_scratch;
use crate::cpu::view::{Input, Output};
use crate::matmul::Glu;
use crate::moe::reference::expert_ids;
use crate::{Activation, PackedTensor, Result, Tensor};

/// As [`crate::moe::experts_glu`].
pub(super) fn experts_glu(
    cpu: &CpuDevice,
    x: &Activation,
    ids: &Tensor,
    gate: &PackedTensor,
    up: &PackedTensor,
    glu: Glu,
    out: &Tensor,
) -> Result<()> {
    let used = ids.shape()[1];
    let experts = expert_ids("experts_glu", ids, gate.matrices())?;
    // SAFETY: x was checked to be disjoint from the output.
    let x = unsafe { Input::<f32>::of(x.tensor()) };
    let out = Output::<f32>::of(out);
    for (place, expert) in experts.into_iter().enumerate() {
        let input = x.row(place / used);
        cpu.share(gate.rows(), 2 * gate.cols(), |rows| {
            with_scratch(gate.cols(), |values| {
                for row in rows {
                    unpack(gate, expert, row, values);
                    let gated = glu.apply(f64::from(dot(input, values))) as f32;
                    unpack(up, expert, row, values);
                    // SAFETY: within the operation, only this piece touches this value; no slice of it exists.
                    unsafe { out.set(place, row, gated * dot(input, values)) };
                }
            });
        });
    }
    Ok(())
}

/// As [`crate::moe::experts_combine`].
pub(super) fn experts_combine(
    cpu: &CpuDevice,
    hidden: &Activation,
    ids: &Tensor,
    weights: &Tensor,
    down: &PackedTensor,
    out: &Tensor,
) -> Result<()> {
    let used = ids.shape()[1];
    let experts = expert_ids("experts_combine", ids, down.matrices())?;
    // SAFETY: both were checked to be disjoint from the output.
    let (hidden, weights) = unsafe { (Input::<f32>::of(hidden.tensor()), Input::<f32>::of(weights)) };
    let out = Output::<f32>::of(out);
    for (token, experts) in experts.chunks(used).enumerate() {
        cpu.share(down.rows(), used * down.cols(), |rows| {
            with_scratch(down.cols(), |values| {
                for row in rows {
                    let mut sum = 0.0;
                    for (place, expert) in experts.iter().enumerate() {
                        unpack(down, *expert, row, values);
                        sum += weights.row(token)[place] * dot(hidden.row(token * used + place), values);
                    }
                    // SAFETY: as above.
                    unsafe { out.set(token, row, sum) };
                }
            });
        });
    }
    Ok(())
}
