//! Mixture of experts: routing, expert products, combination.
//!
//! # Contract
//!
//! `route` chooses `experts_used` of E experts for each token from router logits `[T, E]`:
//! probabilities are the softmax over all E; the largest are taken, ties to the lower id, in descending
//! order; their weights are the probabilities, divided by their sum if `renormalize`, times `scale`.
//! Expert products follow [`crate::matmul`]'s rules; row `t * used + j` belongs to token t's j-th expert.
//! The combination adds the experts of a token in order of j, in f32. An id that is no expert is an error; a device that does
//! not wait for its results (CUDA) makes that token's combination NaN instead.
//!
//! Tolerance: ids equal the reference's where the probabilities differ by more than 1e-6; weights within
//! 1e-6; products as in [`crate::matmul`].

mod cpu;
pub(crate) mod cuda;
pub(crate) mod reference;

use crate::check::Check;
use crate::matmul::{Glu, check_weight};
use crate::profile::Work;
use crate::{Activation, DType, Family, PackedTensor, Result, Tensor, Without};

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts taken for each token.
    pub used: usize,
    /// Whether the weights of the chosen are scaled to sum 1 (`norm_topk_prob`).
    pub renormalize: bool,
    /// A factor on every weight, 1 for most models (`expert_weights_scale`).
    pub scale: f32,
}

pub(crate) trait MoeOps {
    fn route(&self, logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()>;

    #[allow(clippy::too_many_arguments)]
    fn experts_glu(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<()>;

    /// The same, in the form that the product behind it reads, too.
    fn experts_glu_activation(
        &self,
        x: &Activation,
        ids: &Tensor,
        gate: &PackedTensor,
        up: &PackedTensor,
        glu: Glu,
        out: &Tensor,
    ) -> Result<Activation> {
        self.experts_glu(x, ids, gate, up, glu, out)?;
        Activation::new(out)
    }

    fn experts_combine(
        &self,
        hidden: &Activation,
        ids: &Tensor,
        weights: &Tensor,
        down: &PackedTensor,
        out: &Tensor,
    ) -> Result<()>;
}

/// Chooses experts: logits `[T, E]` f32 -> ids `[T, used]` i32, weights `[T, used]` f32.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn route(logits: &Tensor, routing: &Routing, ids: &Tensor, weights: &Tensor) -> Result<()> {
    let check = Check::new("route", ids)?;
    Check::new("route", weights)?;
    check.rank("the logits", logits, 2)?;
    let (tokens, experts) = (logits.shape()[0], logits.shape()[1]);
    check.that(routing.used >= 1 && routing.used <= experts, || {
        format!("{} of {experts} experts cannot be taken", routing.used)
    })?;
    check.tensor("the logits", logits, DType::F32, &[tokens, experts])?;
    check.tensor("the ids", ids, DType::I32, &[tokens, routing.used])?;
    check.tensor("the weights", weights, DType::F32, &[tokens, routing.used])?;
    check.disjoint("the weights", weights, logits)?;
    check.run(
        Family::Moe,
        || Work::through([logits, ids, weights]),
        |backend| backend.route(logits, routing, ids, weights),
    )
}

/// The first half of each chosen expert's feed-forward: x `[T, K]`, ids `[T, used]`, gate and up
/// `[E, N, K]` -> out `[T * used, N]`, which is given for the product behind it.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or an id is not an expert.
pub fn experts_glu(
    x: &Activation,
    ids: &Tensor,
    gate: &PackedTensor,
    up: &PackedTensor,
    glu: Glu,
    out: &Tensor,
) -> Result<Activation> {
    let check = Check::new("experts_glu", out)?;
    check.on_device("x", x.device())?;
    check.rank("the ids", ids, 2)?;
    let used = ids.shape()[1];
    check.tensor("the ids", ids, DType::I32, &[x.rows(), used])?;
    check_weight(&check, "the gate experts", gate, x.cols(), gate.matrices())?;
    check_weight(&check, "the up experts", up, x.cols(), gate.matrices())?;
    check
        .that(gate.rows() == up.rows(), || format!("gate has {} rows, up has {}", gate.rows(), up.rows()))?;
    check.tensor("the output", out, DType::F32, &[x.rows() * used, gate.rows()])?;
    check.disjoint("the output", out, x.tensor())?;
    check.run(
        Family::Moe,
        || experts_work(x, x.rows() * used, &[gate, up], out),
        |backend| match backend.lacks(Without::Moe) {
            true => backend
                .plainly(&mut |host| host.experts_glu(x, ids, gate, up, glu, out))
                .and_then(|()| Activation::new(out)),
            false => backend.experts_glu_activation(x, ids, gate, up, glu, out),
        },
    )
}

/// The second half, weighted and summed: hidden `[T * used, K]`, ids and weights `[T, used]`, down
/// `[E, N, K]` -> out `[T, N]` (overwritten).
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or an id is not an expert.
pub fn experts_combine(
    hidden: &Activation,
    ids: &Tensor,
    weights: &Tensor,
    down: &PackedTensor,
    out: &Tensor,
) -> Result<()> {
    let check = Check::new("experts_combine", out)?;
    check.on_device("the hidden rows", hidden.device())?;
    check.rank("the ids", ids, 2)?;
    let (tokens, used) = (ids.shape()[0], ids.shape()[1]);
    check.tensor("the ids", ids, DType::I32, &[tokens, used])?;
    check.tensor("the weights", weights, DType::F32, &[tokens, used])?;
    check.that(hidden.rows() == tokens * used, || {
        format!("{} hidden rows for {tokens} tokens with {used} experts each", hidden.rows())
    })?;
    check_weight(&check, "the down experts", down, hidden.cols(), down.matrices())?;
    check.tensor("the output", out, DType::F32, &[tokens, down.rows()])?;
    check.disjoint("the output", out, hidden.tensor())?;
    check.disjoint("the output", out, weights)?;
    check.run(
        Family::Moe,
        || experts_work(hidden, tokens * used, &[down], out),
        |backend| match backend.lacks(Without::Moe) {
            true => backend.plainly(&mut |host| host.experts_combine(hidden, ids, weights, down, out)),
            false => backend.experts_combine(hidden, ids, weights, down, out),
        },
    )
}

/// Input, output, and the matrices of so many chosen experts: at most all of the stack.
fn experts_work(x: &Activation, chosen: usize, weights: &[&PackedTensor], out: &Tensor) -> Work {
    let bytes = weights
        .iter()
        .map(|weight| weight.packed_bytes() / weight.matrices() * chosen.min(weight.matrices()));
    let products = weights.iter().map(|weight| chosen * weight.rows() * weight.cols());
    Work::through([x.tensor(), out])
        .bytes(bytes.sum())
        .products(products.sum())
        .detail(weights[0].block_type().name())
}
