//! Rows of a packed table by token id.
//!
//! # Contract
//!
//! `out[t] = unpack(table[ids[t]]) * scale`, in f32, exactly as `gruff-blocks` unpacks.

mod cpu;
pub(crate) mod cuda;
mod reference;

use crate::check::Check;
use crate::profile::Work;
use crate::{DType, Family, PackedTensor, Result, Tensor};

pub(crate) trait EmbeddingOps {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()>;
}

/// Looks ids up: table `[V, D]` packed, out `[T, D]` f32, every value times `scale`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or an id is outside the table.
pub fn embed(ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
    let check = Check::new("embed", out)?;
    check.on_device("the table", table.device())?;
    check.that(table.matrices() == 1, || "the table is a stack of matrices".into())?;
    check.tensor("the output", out, DType::F32, &[ids.len(), table.cols()])?;
    let wild = ids.iter().find(|id| **id as usize >= table.rows());
    check.value(wild.is_none(), || {
        format!("token id {} is outside a vocabulary of {}", wild.copied().unwrap_or(0), table.rows())
    })?;
    check.run(
        Family::Embedding,
        || Work::through([out]).bytes(ids.len() * table.row_bytes()),
        |backend| backend.embed(ids, table, scale, out),
    )
}
