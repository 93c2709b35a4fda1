//! What is done to queries, keys and values before attention, as one operation.

use super::{check_pages, write_kv};
use crate::check::Check;
use crate::profile::Work;
use crate::rope::{self, RopeStyle};
use crate::{DType, Family, KvLayer, Result, Step, Tensor, norm};

/// Norms over the heads of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// `[Dk]`: weights of the queries' norm.
    pub queries: &'a Tensor,
    /// `[Dk]`: those of the keys'.
    pub keys: &'a Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

/// What is done to queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Prepare<'a> {
    /// Where heads are normalised.
    pub norms: Option<HeadNorms<'a>>,
    /// `[T, 2, half]`, as [`rope::rope_table`] makes it.
    pub table: &'a Tensor,
    /// How the table's pairs lie in heads.
    pub style: RopeStyle,
}

/// [`norm::rms_norm`] of queries `[T, H, Dk]` and keys `[T, Hkv, Dk]`, [`rope::rope`] of both, and [`write_kv`] with values
/// `[T, Hkv, Dv]`, bit for bit. Queries change in place; what then stands in the keys is undefined.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a sequence owns too few pages or one that does not
/// exist.
pub fn prepare_qkv(
    step: &Step,
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    prepare: &Prepare,
    layer: &KvLayer,
) -> Result<()> {
    let check = Check::new("prepare_qkv", queries)?;
    if !check.backend().fuses_prepare(layer) {
        if let Some(norms) = &prepare.norms {
            norm::rms_norm(queries, norms.queries, norms.eps, queries)?;
            norm::rms_norm(keys, norms.keys, norms.eps, keys)?;
        }
        rope::rope(queries, prepare.table, prepare.style)?;
        rope::rope(keys, prepare.table, prepare.style)?;
        return write_kv(step, keys, values, layer);
    }
    let (tokens, kv_heads, key_dim) = (step.len(), layer.kv_heads(), layer.key_dim());
    check.rank("the queries", queries, 3)?;
    check.tensor("the queries", queries, DType::F32, &[tokens, queries.shape()[1], key_dim])?;
    check.tensor("the keys", keys, DType::F32, &[tokens, kv_heads, key_dim])?;
    check.tensor("the values", values, DType::F32, &[tokens, kv_heads, layer.value_dim()])?;
    check.disjoint("the queries", queries, keys)?;
    check.disjoint("the queries", queries, values)?;
    check.rank("the table", prepare.table, 3)?;
    let half = prepare.table.shape()[2];
    check.tensor("the table", prepare.table, DType::F32, &[tokens, 2, half])?;
    check.that(2 * half <= key_dim, || {
        format!("{} dimensions cannot be rotated in heads of {key_dim}", 2 * half)
    })?;
    if let Some(norms) = &prepare.norms {
        check.tensor("the queries' weight", norms.queries, DType::F32, &[key_dim])?;
        check.tensor("the keys' weight", norms.keys, DType::F32, &[key_dim])?;
    }
    check.on_device("the cache", layer.keys().device())?;
    check_pages(&check, step, layer)?;
    check.run(
        Family::Attention,
        || Work::through([queries, queries, keys, values, prepare.table]),
        |backend| backend.prepare_qkv(step, [queries, keys, values], prepare, layer),
    )
}
