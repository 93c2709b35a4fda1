//! Attention whose result passes a gate, and attention in front of a product.

use super::{AttentionSpec, attention, attention_work, check_attention};
use crate::check::Check;
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
    Check::new("gated_attention", out)?.rank("the output", out, 3)?;
    attend(step, queries, layer, spec, Some(gate), out).map(drop)
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
    Check::new("attention", out)?.rank("the output", out, 2)?;
    match attend(step, queries, layer, spec, gate, out)? {
        Some(activation) => Ok(activation),
        None => Activation::new(out),
    }
}

/// Into out `[T, H, Dv]`, or `[T, H * Dv]` for products: what they read, if it is there already.
fn attend(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    gate: Option<&Tensor>,
    out: &Tensor,
) -> Result<Option<Activation>> {
    let check = Check::new(if gate.is_some() { "gated_attention" } else { "attention" }, out)?;
    check.rank("the queries", queries, 3)?;
    let heads = queries.shape()[1];
    check.that(heads > 0, || "there are no query heads".into())?;
    let by_head = by_head(out, heads)?;
    if !check.backend().fuses_gate(queries, layer, spec) {
        attention(step, queries, layer, spec, &by_head)?;
        if let Some(gate) = gate {
            elementwise::sigmoid_mul(&by_head, gate)?;
        }
        return Ok(None);
    }
    check_attention(&check, step, queries, layer, spec, &by_head)?;
    if let Some(gate) = gate {
        check.tensor("the gate", gate, DType::F32, by_head.shape())?;
        check.disjoint("the output", out, gate)?;
    }
    let gates = gate.map_or(0, |gate| gate.len() * DType::F32.bytes());
    check.run(
        Family::Attention,
        || attention_work(step, queries, layer, spec, &by_head).bytes(gates),
        |backend| backend.gated_attention(step, queries, layer, spec, gate, out),
    )
}

/// `[T, H * Dv]` as `[T, H, Dv]`.
pub(super) fn by_head(out: &Tensor, heads: usize) -> Result<Tensor> {
    if out.shape().len() == 2 { out.split_last(heads) } else { Ok(out.clone()) }
}
