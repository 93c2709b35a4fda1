//! Attention whose result passes a gate.

use super::{AttentionSpec, attention, attention_work, check_attention};
use crate::check::Check;
use crate::{DType, Family, KvLayer, Result, Step, Tensor, elementwise};

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
    check.tensor("the gate", gate, DType::F32, out.shape())?;
    check.disjoint("the output", out, gate)?;
    check.run(
        Family::Attention,
        || attention_work(step, queries, layer, spec, out).bytes(gate.len() * DType::F32.bytes()),
        |backend| backend.gated_attention(step, queries, layer, spec, gate, out),
    )
}
