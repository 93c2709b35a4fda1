//! Normalisations over the innermost dimension.
//!
//! # Contract
//!
//! Rows are all but the last dimension (two or three dimensions, outer ones may be strided); the mean is over
//! the last one, of width D. Everything in f32, sums in a tree that depends on D only. Tolerance: 1e-6
//! relative to the row's largest value.
//!
//! Weights are a model's: cards may read them before the operations in front have ended. Those that an operation has written are
//! for what comes behind a copy from the host or to it. The same holds for the weights of [`crate::attention::prepare_qkv`] and
//! [`crate::delta_net::gated_delta_net`].

mod cpu;
pub(crate) mod cuda;
mod reference;

use crate::check::Check;
use crate::plain::card;
use crate::profile::Work;
use crate::{Activation, DType, Family, Result, Tensor};

pub(crate) trait NormOps {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()>;
    fn add_rms_norm(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()>;
    fn rms_norm_activation(&self, x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<Activation> {
        self.rms_norm(x, weight, eps, out)?;
        Activation::new(out)
    }
    fn add_rms_norm_activation(
        &self,
        residual: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<Activation> {
        self.add_rms_norm(residual, delta, weight, eps, out)?;
        Activation::new(out)
    }
    fn gated_rms_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<()>;
    fn gated_rms_norm_activation(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gate: &Tensor,
        eps: f32,
        out: &Tensor,
    ) -> Result<Activation> {
        self.gated_rms_norm(x, weight, gate, eps, &out.split_last(x.shape()[1])?)?;
        Activation::new(out)
    }
    fn l2_norm(&self, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()>;
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`: x and out `[T, D]` or `[T, H, D]`, weight `[D]`. May work in
/// place.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
    check_rms_norm(x, weight, out)?.run(
        Family::Norm,
        || Work::through([x, weight, out]),
        |backend| card::rms_norm(backend, x, weight, eps, out),
    )
}

/// As [`rms_norm`], for products that read out `[T, D]`: a device that reads activations in another form may write that
/// form at once. Bit for bit the products of `Activation::new(out)`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn rms_norm_activation(x: &Tensor, weight: &Tensor, eps: f32, out: &Tensor) -> Result<Activation> {
    check_rms_norm(x, weight, out)?.run(
        Family::Norm,
        || Work::through([x, weight, out]),
        |backend| match card::plain_norms(backend) {
            true => card::rms_norm(backend, x, weight, eps, out).and_then(|()| Activation::new(out)),
            false => backend.rms_norm_activation(x, weight, eps, out),
        },
    )
}

/// `residual += delta; out = rms_norm(residual)`: all `[T, D]`. Equals the addition and [`rms_norm`], bit for
/// bit.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn add_rms_norm(
    residual: &Tensor,
    delta: &Tensor,
    weight: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<()> {
    check_add_rms_norm(residual, delta, weight, out)?.run(
        Family::Norm,
        || Work::through([residual, residual, delta, weight, out]),
        |backend| match card::plain_norms(backend) {
            true => card::add_rms_norm(backend, residual, delta, weight, eps, out),
            false => backend.add_rms_norm(residual, delta, weight, eps, out),
        },
    )
}

/// [`add_rms_norm`] as [`rms_norm_activation`].
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn add_rms_norm_activation(
    residual: &Tensor,
    delta: &Tensor,
    weight: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<Activation> {
    check_add_rms_norm(residual, delta, weight, out)?.run(
        Family::Norm,
        || Work::through([residual, residual, delta, weight, out]),
        |backend| match card::plain_norms(backend) {
            true => card::add_rms_norm(backend, residual, delta, weight, eps, out)
                .and_then(|()| Activation::new(out)),
            false => backend.add_rms_norm_activation(residual, delta, weight, eps, out),
        },
    )
}

/// `out = rms_norm(x) * silu(gate)`, per head: x, gate and out `[T, H, D]`, weight `[D]`. May work in place
/// on x.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn gated_rms_norm(x: &Tensor, weight: &Tensor, gate: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
    check_gated_rms_norm(x, weight, gate, out)?.run(
        Family::Norm,
        || Work::through([x, weight, gate, out]),
        |backend| match card::plain_norms(backend) {
            true => card::gated_rms_norm(backend, x, weight, gate, eps, out),
            false => backend.gated_rms_norm(x, weight, gate, eps, out),
        },
    )
}

/// [`gated_rms_norm`] as [`rms_norm_activation`]: x and gate `[T, H, D]`, out `[T, H * D]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn gated_rms_norm_activation(
    x: &Tensor,
    weight: &Tensor,
    gate: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<Activation> {
    let check = Check::new("gated_rms_norm", out)?;
    check.rank("the input", x, 3)?;
    let heads = x.shape()[1];
    check.that(heads > 0 && out.shape().len() == 2, || {
        format!("{:?} cannot be the rows of {:?}", out.shape(), x.shape())
    })?;
    let by_heads = out.split_last(heads)?;
    check_gated_rms_norm(x, weight, gate, &by_heads)?.run(
        Family::Norm,
        || Work::through([x, weight, gate, out]),
        |backend| match card::plain_norms(backend) {
            true => card::gated_rms_norm(backend, x, weight, gate, eps, &by_heads)
                .and_then(|()| Activation::new(out)),
            false => backend.gated_rms_norm_activation(x, weight, gate, eps, out),
        },
    )
}

/// `out = x / sqrt(sum(x^2) + eps) * scale`: x and out `[T, D]` or `[T, H, D]`. May work in place.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn l2_norm(x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
    let check = Check::new("l2_norm", out)?;
    check_rows(&check, x, out)?;
    check.run(Family::Norm, || Work::through([x, out]), |backend| card::l2_norm(backend, x, eps, scale, out))
}

fn check_rms_norm<'a>(x: &Tensor, weight: &Tensor, out: &'a Tensor) -> Result<Check<'a>> {
    let check = Check::new("rms_norm", out)?;
    check_rows(&check, x, out)?;
    check.tensor("the weight", weight, DType::F32, &x.shape()[x.shape().len() - 1..])?;
    check.disjoint("the output", out, weight)?;
    Ok(check)
}

fn check_gated_rms_norm<'a>(
    x: &Tensor,
    weight: &Tensor,
    gate: &Tensor,
    out: &'a Tensor,
) -> Result<Check<'a>> {
    let check = Check::new("gated_rms_norm", out)?;
    check_rows(&check, x, out)?;
    check.tensor("the gate", gate, DType::F32, x.shape())?;
    check.disjoint("the output", out, gate)?;
    check.tensor("the weight", weight, DType::F32, &x.shape()[x.shape().len() - 1..])?;
    Ok(check)
}

fn check_add_rms_norm<'a>(
    residual: &Tensor,
    delta: &Tensor,
    weight: &Tensor,
    out: &'a Tensor,
) -> Result<Check<'a>> {
    let check = Check::new("add_rms_norm", out)?;
    Check::new("add_rms_norm", residual)?;
    check_rows(&check, residual, out)?;
    check.disjoint("the output", out, residual)?;
    check.tensor("the addend", delta, DType::F32, residual.shape())?;
    check.disjoint_or_same("the output", out, delta)?;
    check.disjoint("the residual", residual, delta)?;
    check.tensor("the weight", weight, DType::F32, &residual.shape()[residual.shape().len() - 1..])?;
    Ok(check)
}

fn check_rows(check: &Check, x: &Tensor, out: &Tensor) -> Result<()> {
    check.that(matches!(x.shape().len(), 2 | 3), || format!("{:?} is not rows of values", x.shape()))?;
    check.tensor("the input", x, DType::F32, x.shape())?;
    check.tensor("the output", out, DType::F32, x.shape())?;
    check.disjoint_or_same("the output", out, x)
}
