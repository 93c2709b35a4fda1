//! A gated delta net between its projections, as one operation.

use super::{DeltaInputs, causal_conv, check_slots, delta_gates, gated_delta};
use crate::check::Check;
use crate::profile::Work;
use crate::{Activation, DType, Error, Family, Result, StateLayer, Step, Tensor, norm};

/// The operands of a gated delta net between its projections.
#[derive(Clone, Copy, Debug)]
pub struct NetInputs<'a> {
    /// `[T, C]`: queries `[Hk, Dk]`, keys `[Hk, Dk]` and values `[Hv, Dv]` before the convolution. Used up.
    pub qkv: &'a Tensor,
    /// `[T, Hv, Dv]`: the gate on the norm's result.
    pub z: &'a Tensor,
    /// `[T, Hv]`: from which the decay is made.
    pub a: &'a Tensor,
    /// `[T, Hv]`: from which beta is made.
    pub b: &'a Tensor,
    /// `[C, K]`: weights of the convolution.
    pub conv: &'a Tensor,
    /// `[Hv]`.
    pub dt_bias: &'a Tensor,
    /// `[Hv]`: `-exp(A_log)`, GGUF's `ssm_a`.
    pub a_neg: &'a Tensor,
    /// `[Dv]`: weights of the norm.
    pub norm: &'a Tensor,
    /// Added to the squared lengths of queries and keys.
    pub l2_eps: f32,
    /// Added to the mean square of the norm.
    pub norm_eps: f32,
}

/// [`causal_conv`], [`norm::l2_norm`] of queries (to a length of `1 / sqrt(Dk)`) and keys (to 1), [`delta_gates`],
/// [`gated_delta`] and [`norm::gated_rms_norm_activation`] one after the other, bit for bit: `[T, Hv * Dv]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a slot does not exist.
pub fn gated_delta_net(step: &Step, inputs: &NetInputs, layer: &StateLayer) -> Result<Activation> {
    let check = Check::new("gated_delta_net", inputs.qkv)?;
    if !check.backend().fuses_net(step, layer) {
        return in_parts(step, inputs, layer);
    }
    let shape = layer.shape();
    let (tokens, heads) = (step.len(), shape.value_heads);
    let NetInputs { qkv, z, a, b, conv, dt_bias, a_neg, norm, .. } = *inputs;
    check.tensor("queries, keys and values", qkv, DType::F32, &[tokens, shape.conv_channels])?;
    check.tensor("the gate", z, DType::F32, &[tokens, heads, shape.value_dim])?;
    check.tensor("a", a, DType::F32, &[tokens, heads])?;
    check.tensor("b", b, DType::F32, &[tokens, heads])?;
    check.tensor("the weight", conv, DType::F32, &[shape.conv_channels, shape.conv_kernel])?;
    check.tensor("dt_bias", dt_bias, DType::F32, &[heads])?;
    check.tensor("a_neg", a_neg, DType::F32, &[heads])?;
    check.tensor("the norm's weight", norm, DType::F32, &[shape.value_dim])?;
    check.on_device("the state", layer.matrix().device())?;
    check_slots(&check, step, layer)?;
    check.run(
        Family::DeltaNet,
        || net_work(step, inputs, layer),
        |backend| backend.gated_delta_net(step, inputs, layer),
    )
}

/// The operations that [`gated_delta_net`] stands for.
pub(crate) fn in_parts(step: &Step, inputs: &NetInputs, layer: &StateLayer) -> Result<Activation> {
    let shape = *layer.shape();
    let NetInputs { qkv, z, a, b, conv, dt_bias, a_neg, norm, l2_eps, norm_eps } = *inputs;
    let (keys, values) = (shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim);
    if 2 * keys + values != shape.conv_channels {
        let what =
            format!("{} channels are not the queries, keys and values of {shape:?}", shape.conv_channels);
        return Err(Error::Shape { op: "gated_delta_net", what });
    }
    let device = qkv.device();
    let mixed = device.scratch(DType::F32, qkv.shape())?;
    causal_conv(step, qkv, conv, layer, &mixed)?;
    let q = mixed.narrow(1, 0, keys)?.split_last(shape.key_heads)?;
    let k = mixed.narrow(1, keys, keys)?.split_last(shape.key_heads)?;
    let v = mixed.narrow(1, 2 * keys, values)?.split_last(shape.value_heads)?;
    norm::l2_norm(&q, l2_eps, query_length(shape.key_dim), &q)?;
    norm::l2_norm(&k, l2_eps, 1.0, &k)?;
    let [decay, beta] = [a, b].map(|gate| device.scratch(DType::F32, gate.shape()));
    let (decay, beta) = (decay?, beta?);
    delta_gates(a, b, dt_bias, a_neg, &decay, &beta)?;
    // The convolution has read qkv; what was room for it is room for the result.
    let result = qkv.narrow(1, 0, values)?;
    let out = result.split_last(shape.value_heads)?;
    let inputs = DeltaInputs { queries: &q, keys: &k, values: &v, decay: &decay, beta: &beta };
    gated_delta(step, &inputs, layer, &out)?;
    norm::gated_rms_norm_activation(&out, norm, z, norm_eps, &result)
}

/// What queries are scaled to.
pub(crate) fn query_length(key_dim: usize) -> f32 {
    (key_dim as f64).sqrt().recip() as f32
}

/// As for the parts, without what they pass on to each other.
fn net_work(step: &Step, inputs: &NetInputs, layer: &StateLayer) -> Work {
    let NetInputs { qkv, z, a, b, conv, .. } = *inputs;
    let shape = layer.shape();
    let past_inputs = step.len() * (shape.conv_kernel - 1) * shape.conv_channels;
    let state = super::state_values(step, shape) + past_inputs;
    Work::through([qkv, z, z, a, b, conv])
        .bytes(state * DType::F32.bytes())
        .products(step.len() * (super::STATE_PRODUCTS * shape.value_heads * shape.key_dim * shape.value_dim))
}
