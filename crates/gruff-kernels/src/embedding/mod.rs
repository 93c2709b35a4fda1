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
use crate::{DType, Family, PackedTensor, Result, Step, StepTokens, Tensor};

pub(crate) trait EmbeddingOps {
    fn embed(&self, ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()>;

    /// `ids` are those of the step, unless the device runs behind and has some of them ([`Step::late`]).
    fn embed_step(
        &self,
        _step: &Step,
        ids: &[u32],
        table: &PackedTensor,
        scale: f32,
        out: &Tensor,
    ) -> Result<()> {
        self.embed(ids, table, scale, out)
    }
}

/// Looks ids up: table `[V, D]` packed, out `[T, D]` f32, every value times `scale`.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or an id is outside the table.
pub fn embed(ids: &[u32], table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
    let check = checked(ids, table, out)?;
    check.run(
        Family::Embedding,
        || Work::through([out]).bytes(ids.len() * table.row_bytes()),
        |backend| backend.embed(ids, table, scale, out),
    )
}

/// Looks the ids of a step up, those too that are still on the device: table `[V, D]` packed, out `[T, D]` f32, every
/// value times `scale`.
///
/// # Errors
/// As [`embed`]; [`crate::Error::Shape`] for a step that has embeddings.
pub fn embed_step(step: &Step, table: &PackedTensor, scale: f32, out: &Tensor) -> Result<()> {
    let check = Check::new("embed", out)?;
    let StepTokens::Ids(ids) = step.tokens() else {
        return check.that(false, || "the step has embeddings, not ids".into());
    };
    let mut read = None;
    if let Some(late) = step.late() {
        check.on_device("the ids", late.ids().device())?;
        if !out.device().runs_behind() {
            let (mut ids, chosen) = (ids.clone(), late.ids().to_vec_i32()?);
            for (token, row) in late.rows() {
                ids[*token] = u32::try_from(chosen[*row as usize]).unwrap_or(0);
            }
            read = Some(ids);
        }
    }
    let ids = read.as_ref().unwrap_or(ids);
    let check = checked(ids, table, out)?;
    check.run(
        Family::Embedding,
        || Work::through([out]).bytes(ids.len() * table.row_bytes()),
        |backend| backend.embed_step(step, ids, table, scale, out),
    )
}

fn checked<'a>(ids: &[u32], table: &PackedTensor, out: &'a Tensor) -> Result<Check<'a>> {
    let check = Check::new("embed", out)?;
    check.on_device("the table", table.device())?;
    check.that(table.matrices() == 1, || "the table is a stack of matrices".into())?;
    check.tensor("the output", out, DType::F32, &[ids.len(), table.cols()])?;
    let wild = ids.iter().find(|id| **id as usize >= table.rows());
    check.value(wild.is_none(), || {
        format!("token id {} is outside a vocabulary of {}", wild.copied().unwrap_or(0), table.rows())
    })?;
    Ok(check)
}
