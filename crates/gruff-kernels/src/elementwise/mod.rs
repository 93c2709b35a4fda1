//! Element-wise operations that no larger kernel has taken in.
//!
//! # Contract
//!
//! f32 throughout; tensors of two or three dimensions whose outer dimensions may be strided. Tolerance: 1e-6
//! relative (functions; for GELU relative to the row's largest value), exact (additions, products, copies).

pub(crate) mod cpu;
pub(crate) mod cuda;
mod reference;

use crate::check::Check;
use crate::matmul::Glu;
use crate::profile::Work;
use crate::{DType, Family, Result, Tensor};

pub(crate) trait ElementwiseOps {
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<()>;
    fn glu(&self, gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()>;
    fn sigmoid_mul(&self, x: &Tensor, gate: &Tensor) -> Result<()>;
    fn scale(&self, x: &Tensor, factor: f32) -> Result<()>;
    fn softcap(&self, x: &Tensor, cap: f32) -> Result<()>;
    fn gather_rows(&self, x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()>;
    fn copy(&self, x: &Tensor, out: &Tensor) -> Result<()>;
}

/// `x += y`, same shape.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn add(x: &Tensor, y: &Tensor) -> Result<()> {
    let check = Check::new("add", x)?;
    check.tensor("x", x, DType::F32, x.shape())?;
    check.tensor("y", y, DType::F32, x.shape())?;
    check.disjoint_or_same("x", x, y)?;
    check.run(Family::Elementwise, || Work::through([x, x, y]), |backend| backend.add(x, y))
}

/// `out = glu(gate) * up`, same shape; out may be gate or up.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn glu(gate: &Tensor, up: &Tensor, glu: Glu, out: &Tensor) -> Result<()> {
    let check = Check::new("glu", out)?;
    check.tensor("the gate", gate, DType::F32, out.shape())?;
    check.tensor("the up rows", up, DType::F32, out.shape())?;
    check.tensor("the output", out, DType::F32, out.shape())?;
    check.disjoint_or_same("the output", out, gate)?;
    check.disjoint_or_same("the output", out, up)?;
    check.run(
        Family::Elementwise,
        || Work::through([gate, up, out]),
        |backend| backend.glu(gate, up, glu, out),
    )
}

/// `x *= sigmoid(gate)`: gate of x's shape, or with 1 as its last dimension (one gate a row).
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn sigmoid_mul(x: &Tensor, gate: &Tensor) -> Result<()> {
    let check = Check::new("sigmoid_mul", x)?;
    check.tensor("x", x, DType::F32, x.shape())?;
    let mut shape = x.shape().to_vec();
    if gate.shape().last() == Some(&1) {
        shape[x.shape().len() - 1] = 1;
    }
    check.tensor("the gate", gate, DType::F32, &shape)?;
    check.disjoint("x", x, gate)?;
    check.run(Family::Elementwise, || Work::through([x, x, gate]), |backend| backend.sigmoid_mul(x, gate))
}

/// `x *= factor`.
///
/// # Errors
/// [`crate::Error`] when the type does not fit.
pub fn scale(x: &Tensor, factor: f32) -> Result<()> {
    let check = Check::new("scale", x)?;
    check.tensor("x", x, DType::F32, x.shape())?;
    check.run(Family::Elementwise, || Work::through([x, x]), |backend| backend.scale(x, factor))
}

/// `x = cap * tanh(x / cap)`.
///
/// # Errors
/// [`crate::Error`] when the type does not fit.
pub fn softcap(x: &Tensor, cap: f32) -> Result<()> {
    let check = Check::new("softcap", x)?;
    check.tensor("x", x, DType::F32, x.shape())?;
    check.run(Family::Elementwise, || Work::through([x, x]), |backend| backend.softcap(x, cap))
}

/// `out[r] = x[rows[r]]`: x `[T, D]`, out `[R, D]`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a row does not exist.
pub fn gather_rows(x: &Tensor, rows: &[u32], out: &Tensor) -> Result<()> {
    let check = Check::new("gather_rows", out)?;
    check.rank("x", x, 2)?;
    check.tensor("x", x, DType::F32, x.shape())?;
    check.tensor("the output", out, DType::F32, &[rows.len(), x.shape()[1]])?;
    check.disjoint("the output", out, x)?;
    let wild = rows.iter().find(|row| **row as usize >= x.shape()[0]);
    check.value(wild.is_none(), || format!("row {wild:?} of {}", x.shape()[0]))?;
    check.run(Family::Elementwise, || Work::through([out, out]), |backend| backend.gather_rows(x, rows, out))
}

/// Copies values from one view to another of the same shape, f32.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn copy(x: &Tensor, out: &Tensor) -> Result<()> {
    let check = Check::new("copy", out)?;
    check.tensor("x", x, DType::F32, out.shape())?;
    check.tensor("the output", out, DType::F32, out.shape())?;
    check.disjoint("the output", out, x)?;
    check.run(Family::Elementwise, || Work::through([x, out]), |backend| backend.copy(x, out))
}
