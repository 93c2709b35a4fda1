//! Attention whose result passes a gate, and attention in front of a product.

use super::{AttentionSpec, attention, attention_work, check_attention};
use crate::check::Check;
use crate::profile::Work;
use crate::{Activation, DType, Family, KvLayer, Result, Step, Tensor, elementwise};

/// [`attention`], its result multiplied by the sigmoid of gate `[T, H, Dv]`: bit for bit
/// [`elementwise::sigmoid_mul`] behind it.
///
/// # Errors
/// As for [`attention`].
pub fn gated_attention(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    gate: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let check = Check::new("gated_attention", out)?;
    check_attention(&check, step, queries, layer, spec, out)?;
    if !check.backend().fuses_gate(queries, layer, spec) {
        attention(step, queries, layer, spec, out)?;
        return elementwise::sigmoid_mul(out, gate);
    }
    check_gate(&check, gate, out)?;
    check.run(
        Family::Attention,
        || work(step, queries, layer, spec, Some(gate), out),
        |backend| backend.gated_attention(step, queries, layer, spec, gate, out),
    )
}

/// [`attention`] or, with a gate, [`gated_attention`] into out `[T, H * Dv]`, for products that read it: a device that reads
/// activations in another form may write that form at once. Bit for bit the products of `Activation::new(out)` behind them.
///
/// # Errors
/// As for [`attention`].
pub fn attention_activation(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    gate: Option<&Tensor>,
    out: &Tensor,
) -> Result<Activation> {
    let check = Check::new(if gate.is_some() { "gated_attention" } else { "attention" }, out)?;
    check.rank("the queries", queries, 3)?;
    let heads = queries.shape()[1];
    check.that(heads > 0 && out.shape().len() == 2, || {
        format!("{:?} cannot be the rows of {heads} heads", out.shape())
    })?;
    let by_head = out.split_last(heads)?;
    if !check.backend().fuses_rounding(queries, layer, spec, out) {
        match gate {
            Some(gate) => gated_attention(step, queries, layer, spec, gate, &by_head)?,
            None => attention(step, queries, layer, spec, &by_head)?,
        }
        return Activation::new(out);
    }
    check_attention(&check, step, queries, layer, spec, &by_head)?;
    if let Some(gate) = gate {
        check_gate(&check, gate, &by_head)?;
    }
    check.run(
        Family::Attention,
        || work(step, queries, layer, spec, gate, &by_head),
        |backend| backend.attention_activation(step, queries, layer, spec, gate, out),
    )
}

fn check_gate(check: &Check, gate: &Tensor, out: &Tensor) -> Result<()> {
    check.tensor("the gate", gate, DType::F32, out.shape())?;
    check.disjoint("the output", out, gate)
}

fn work(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    gate: Option<&Tensor>,
    out: &Tensor,
) -> Work {
    let gates = gate.map_or(0, |gate| gate.len() * DType::F32.bytes());
    attention_work(step, queries, layer, spec, out).bytes(gates)
}
