//! Gated delta net (arXiv:2412.06464): causal convolution, gates, and the delta rule.
//!
//! # Contract
//!
//! Per value head, with state S `[Dk, Dv]`, key k, query q, value v, log decay g <= 0 and step size beta:
//!
//! ```text
//! S <- exp(g) S;   u = beta (v - S^T k);   S <- S + k u^T;   o = S^T q
//! ```
//!
//! computed in the chunked form: within a chunk of [`crate::CHUNK`] tokens that begins with state S0, with G
//! the running sum of g from the chunk's first token,
//!
//! ```text
//! u_i = beta_i (v_i - exp(G_i) S0^T k_i - sum_{j<i} exp(G_i - G_j) (k_j . k_i) u_j)
//! o_i = exp(G_i) S0^T q_i + sum_{j<=i} exp(G_i - G_j) (k_j . q_i) u_j
//! S1  = exp(G_C) S0 + sum_j exp(G_C - G_j) k_j u_j^T
//! ```
//!
//! Chunks lie on the grid of the sequence's positions, so a token's bits do not depend on how the sequence
//! was split into steps ([`crate::StateLayer`]). This holds for finite operands: on cards those of later tokens
//! of the chunk may be multiplied by zero. Value head h reads key head `h mod Hk`, GGUF's tiled order. Tolerance
//! against the f64 recurrence: NMSE below 1e-9.

mod cpu;
pub(crate) mod cuda;
mod net;
mod reference;

pub use net::{NetInputs, gated_delta_net};

pub(crate) use net::in_parts;

use crate::check::Check;
use crate::profile::Work;
use crate::{Activation, DType, Error, Family, Result, StateLayer, StateShape, Step, StepSequence, Tensor};

/// The operands of one call of the delta rule.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// `[T, Hk, Dk]`, L2-normalised and scaled.
    pub queries: &'a Tensor,
    /// `[T, Hk, Dk]`, L2-normalised.
    pub keys: &'a Tensor,
    /// `[T, Hv, Dv]`.
    pub values: &'a Tensor,
    /// `[T, Hv]`: g, the log decay, at most 0.
    pub decay: &'a Tensor,
    /// `[T, Hv]`: beta.
    pub beta: &'a Tensor,
}

pub(crate) trait DeltaNetOps {
    fn causal_conv(
        &self,
        step: &Step,
        x: &Tensor,
        weight: &Tensor,
        layer: &StateLayer,
        out: &Tensor,
    ) -> Result<()>;
    fn delta_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        dt_bias: &Tensor,
        a_neg: &Tensor,
        decay: &Tensor,
        beta: &Tensor,
    ) -> Result<()>;
    fn gated_delta(&self, step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()>;
    /// Whether all of a net between its projections is one operation here, for such a step.
    fn fuses_net(&self, _step: &Step, _layer: &StateLayer) -> bool {
        false
    }
    /// That operation, where there is one.
    fn gated_delta_net(&self, _step: &Step, _inputs: &NetInputs, _layer: &StateLayer) -> Result<Activation> {
        Err(Error::Option { what: "the device computes a gated delta net part by part".to_owned() })
    }
}

/// `out[t, c] = silu(sum_j weight[c, j] x[t - K + 1 + j, c])` over each sequence, continuing from its slot and
/// leaving its last inputs there: x and out `[T, C]`, weight `[C, K]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a slot does not exist.
pub fn causal_conv(step: &Step, x: &Tensor, weight: &Tensor, layer: &StateLayer, out: &Tensor) -> Result<()> {
    let check = Check::new("causal_conv", out)?;
    let (channels, taps) = (layer.shape().conv_channels, layer.shape().conv_kernel);
    check.tensor("the input", x, DType::F32, &[step.len(), channels])?;
    check.tensor("the weight", weight, DType::F32, &[channels, taps])?;
    check.tensor("the output", out, DType::F32, &[step.len(), channels])?;
    check.disjoint("the output", out, x)?;
    check.on_device("the state", layer.conv().device())?;
    check_slots(&check, step, layer)?;
    check.run(
        Family::DeltaNet,
        || Work::through([x, weight, out]).products(x.len() * layer.shape().conv_kernel),
        |backend| backend.causal_conv(step, x, weight, layer, out),
    )
}

/// `decay = a_neg * softplus(a + dt_bias)`, `beta = sigmoid(b)`: a, b, decay and beta `[T, Hv]`; dt_bias and
/// a_neg (= -exp(A_log), GGUF's `ssm_a`) `[Hv]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn delta_gates(
    a: &Tensor,
    b: &Tensor,
    dt_bias: &Tensor,
    a_neg: &Tensor,
    decay: &Tensor,
    beta: &Tensor,
) -> Result<()> {
    let check = Check::new("delta_gates", decay)?;
    Check::new("delta_gates", beta)?;
    check.rank("a", a, 2)?;
    let shape = a.shape();
    for (operand, tensor) in [("a", a), ("b", b), ("decay", decay), ("beta", beta)] {
        check.tensor(operand, tensor, DType::F32, shape)?;
    }
    check.tensor("dt_bias", dt_bias, DType::F32, &shape[1..])?;
    check.tensor("a_neg", a_neg, DType::F32, &shape[1..])?;
    check.disjoint_or_same("decay", decay, a)?;
    check.disjoint("decay", decay, b)?;
    check.disjoint_or_same("beta", beta, b)?;
    check.disjoint("beta", beta, a)?;
    check.disjoint("beta", beta, decay)?;
    check.run(
        Family::DeltaNet,
        || Work::through([a, b, decay, beta]),
        |backend| backend.delta_gates(a, b, dt_bias, a_neg, decay, beta),
    )
}

/// The delta rule over the step, continuing from each sequence's slot and leaving the new state there:
/// out `[T, Hv, Dv]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a slot does not exist.
pub fn gated_delta(step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Result<()> {
    let check = Check::new("gated_delta", out)?;
    let shape = layer.shape();
    let (tokens, value_heads) = (step.len(), shape.value_heads);
    check.tensor("the queries", inputs.queries, DType::F32, &[tokens, shape.key_heads, shape.key_dim])?;
    check.tensor("the keys", inputs.keys, DType::F32, &[tokens, shape.key_heads, shape.key_dim])?;
    check.tensor("the values", inputs.values, DType::F32, &[tokens, value_heads, shape.value_dim])?;
    check.tensor("the decay", inputs.decay, DType::F32, &[tokens, value_heads])?;
    check.tensor("beta", inputs.beta, DType::F32, &[tokens, value_heads])?;
    check.tensor("the output", out, DType::F32, &[tokens, value_heads, shape.value_dim])?;
    for (input, operand) in [
        (inputs.queries, "the queries"),
        (inputs.keys, "the keys"),
        (inputs.values, "the values"),
        (inputs.decay, "the decay"),
        (inputs.beta, "beta"),
    ] {
        check.disjoint(operand, out, input)?;
    }
    check.on_device("the state", layer.matrix().device())?;
    check_slots(&check, step, layer)?;
    check.run(
        Family::DeltaNet,
        || delta_work(step, inputs, layer, out),
        |backend| backend.gated_delta(step, inputs, layer, out),
    )
}

fn check_slots(check: &Check, step: &Step, layer: &StateLayer) -> Result<()> {
    let wild = step.sequences().iter().find(|sequence| sequence.slot >= layer.slots());
    check.value(wild.is_none(), || {
        format!("slot {} of a pool of {}", wild.map_or(0, |sequence| sequence.slot), layer.slots())
    })
}

/// Multiplications of the recurrence, a token and value of S.
const STATE_PRODUCTS: usize = 3;

/// Operands, S (read once, written once where a chunk ends), and the rows since the last border.
fn delta_work(step: &Step, inputs: &DeltaInputs, layer: &StateLayer, out: &Tensor) -> Work {
    let shape = layer.shape();
    let DeltaInputs { queries, keys, values, decay, beta } = *inputs;
    Work::through([queries, keys, values, decay, beta, out])
        .bytes(state_values(step, shape) * DType::F32.bytes())
        .products(STATE_PRODUCTS * step.len() * shape.value_heads * shape.key_dim * shape.value_dim)
}

/// Values of S and of rows that a step reads and writes.
fn state_values(step: &Step, shape: &StateShape) -> usize {
    let state = shape.value_heads * shape.key_dim * shape.value_dim;
    let row = shape.key_heads * shape.key_dim + shape.value_heads * (shape.value_dim + 1);
    let of = |sequence: &StepSequence| {
        let (past, end) = (sequence.past, sequence.past + sequence.len);
        let read = if past >= crate::CHUNK { state } else { 0 };
        let written = if end / crate::CHUNK > past / crate::CHUNK { state } else { 0 };
        read + written + (past % crate::CHUNK + sequence.len.min(shape.rows())) * row
    };
    step.sequences().iter().map(of).sum()
}
