//! Operations of a card on which families of kernels, or what they do at once, are left out: composed of other operations of
//! the card, and, where there are none to compose them of, computed by plain Rust on the host.

use crate::device::Backend;
use crate::matmul::{Glu, Projection};
use crate::norm::NormOps;
use crate::{Activation, DType, PackedTensor, Result, Tensor, Without};

/// Bytes of weights that are unpacked at a time.
const UNPACKED: usize = 64 << 20;

/// Whether products are composed of their parts.
pub(crate) fn unfused(backend: &dyn Backend) -> bool {
    backend.lacks(Without::Fusion) || backend.lacks(Without::Matmul)
}

/// Products with inputs of their own: unpacked to f32 on the card, or as they are packed.
pub(crate) fn linear_many(backend: &dyn Backend, x: &Activation, projections: &[Projection]) -> Result<()> {
    projections.iter().try_for_each(|one| {
        let x = Activation::new(x.tensor())?;
        if backend.lacks(Without::Matmul) && !one.weight.block_type().is_scalar() {
            return unpacked(backend, &x, one);
        }
        backend.linear_many(&x, &[*one])
    })
}

/// A product with f32 values that are written to memory first, some rows at a time.
fn unpacked(backend: &dyn Backend, x: &Activation, projection: &Projection) -> Result<()> {
    let Projection { weight, bias, out } = projection;
    let (rows, cols) = (weight.rows(), weight.cols());
    let at_once = (UNPACKED / (4 * cols.max(1))).clamp(1, rows.max(1));
    for first in (0..rows).step_by(at_once) {
        let count = at_once.min(rows - first);
        let values = out.device().scratch(DType::F32, &[count, cols])?;
        let ids: Vec<u32> = (first..first + count).map(|row| row as u32).collect();
        backend.embed(&ids, weight, 1.0, &values)?;
        let part = bias.map(|bias| bias.narrow(0, first, count)).transpose()?;
        let (values, out) = (PackedTensor::of_floats(&values)?, out.narrow(1, first, count)?);
        backend.linear_many(x, &[Projection { weight: &values, bias: part.as_ref(), out: &out }])?;
    }
    Ok(())
}

/// A product, then an addition.
pub(crate) fn linear_add(
    backend: &dyn Backend,
    x: &Activation,
    weight: &PackedTensor,
    residual: &Tensor,
) -> Result<()> {
    let product = residual.device().scratch(DType::F32, residual.shape())?;
    linear_many(backend, x, &[Projection { weight, bias: None, out: &product }])?;
    backend.add(residual, &product)
}

/// Two products, then the gate.
pub(crate) fn linear_glu(
    backend: &dyn Backend,
    x: &Activation,
    gate: &PackedTensor,
    up: &PackedTensor,
    glu: Glu,
    out: &Tensor,
) -> Result<()> {
    let both = [0, 1].map(|_| out.device().scratch(DType::F32, out.shape()));
    let [gates, ups] = both;
    let (gates, ups) = (gates?, ups?);
    let product = |weight, out| Projection { weight, bias: None, out };
    linear_many(backend, x, &[product(gate, &gates), product(up, &ups)])?;
    backend.glu(&gates, &ups, glu, out)
}

/// Whether norms are alone, and round nothing for others.
pub(crate) fn plain_norms(backend: &dyn Backend) -> bool {
    backend.lacks(Without::Norm) || backend.lacks(Without::Fusion)
}

/// A norm, on the host where the family is left out.
pub(crate) fn rms_norm(
    backend: &dyn Backend,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<()> {
    if backend.lacks(Without::Norm) {
        return backend.plainly(&mut |host| host.rms_norm(x, weight, eps, out));
    }
    backend.rms_norm(x, weight, eps, out)
}

/// As [`rms_norm`].
pub(crate) fn l2_norm(backend: &dyn Backend, x: &Tensor, eps: f32, scale: f32, out: &Tensor) -> Result<()> {
    if backend.lacks(Without::Norm) {
        return backend.plainly(&mut |host| host.l2_norm(x, eps, scale, out));
    }
    backend.l2_norm(x, eps, scale, out)
}

/// An addition, then the norm.
pub(crate) fn add_rms_norm(
    backend: &dyn Backend,
    residual: &Tensor,
    delta: &Tensor,
    weight: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<()> {
    backend.add(residual, delta)?;
    rms_norm(backend, residual, weight, eps, out)
}

/// The norm, then the gate.
pub(crate) fn gated_rms_norm(
    backend: &dyn Backend,
    x: &Tensor,
    weight: &Tensor,
    gate: &Tensor,
    eps: f32,
    out: &Tensor,
) -> Result<()> {
    let normed = out.device().scratch(DType::F32, x.shape())?;
    rms_norm(backend, x, weight, eps, &normed)?;
    backend.glu(gate, &normed, Glu::Silu, out)
}
