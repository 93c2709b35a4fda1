//! Rotary position embeddings (arXiv:2104.09864) and their scalings.
//!
//! # Contract
//!
//! A table of cosines and sines is made once a step, from the step's positions, and applied in every layer.
//! Pair j of the first `2 * half` dimensions of a head is rotated by `position * inv_freq[j]`; the dimensions
//! behind them pass. Pairs are (j, j + half) for [`RopeStyle::NeoX`] and (2j, 2j + 1) for
//! [`RopeStyle::Interleaved`]. Angles are computed in f64 and rounded to f32 as cosine and sine.

mod cpu;
pub(crate) mod cuda;
mod reference;
mod spec;

pub use spec::{Mrope, RopeScaling, RopeSpec, RopeStyle};

use crate::check::Check;
use crate::profile::Work;
use crate::{DType, Family, Result, Step, Tensor};

pub(crate) trait RopeOps {
    fn rope_table(&self, step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()>;
    fn rope(&self, x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()>;
}

/// Fills the table of a step: `[T, 2, half]`, cosines then sines, both times the attention factor.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn rope_table(step: &Step, spec: &RopeSpec, table: &Tensor) -> Result<()> {
    let check = Check::new("rope_table", table)?;
    check.tensor("the table", table, DType::F32, &[step.len(), 2, spec.half()])?;
    check.run(Family::Rope, || Work::through([table]), |backend| backend.rope_table(step, spec, table))
}

/// Rotates heads in place: x `[T, H, D]`, table `[T, 2, half]` with `2 * half <= D`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit.
pub fn rope(x: &Tensor, table: &Tensor, style: RopeStyle) -> Result<()> {
    let check = Check::new("rope", x)?;
    check.rank("the input", x, 3)?;
    check.rank("the table", table, 3)?;
    check.tensor("the input", x, DType::F32, x.shape())?;
    check.tensor("the table", table, DType::F32, &[x.shape()[0], 2, table.shape()[2]])?;
    check.that(2 * table.shape()[2] <= x.shape()[2], || {
        format!("{} dimensions cannot be rotated in heads of {}", 2 * table.shape()[2], x.shape()[2])
    })?;
    check.disjoint("the input", x, table)?;
    check.run(Family::Rope, || Work::through([x, x, table]), |backend| backend.rope(x, table, style))
}
