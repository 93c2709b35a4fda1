//! Paged, ragged attention.
//!
//! # Contract
//!
//! Query heads are grouped: query head h reads key-value head `h * Hkv / H`. The token with index i in its
//! sequence sees the keys 0..=i, or the last `window` of them. Scores are `q . k * scale`, then
//! `cap * tanh(score / cap)` when capped; softmax and sums in f32. Keys and values are rounded to the cache's
//! type when they are written, and read from there, also within the step that wrote them; to q8_0 as
//! [`gruff_blocks::BlockType::pack`] rounds, and from there as `unpack` widens: `scale * quant` in f32.
//!
//! A token's result depends on its sequence only: what its keys and values are added up in, and in which order,
//! follows from its index, whether one query or a thousand came along. This holds for keys and values that are
//! finite where they are read (f16 ends at 65504): on cards a token may multiply what it does not see by zero.
//! Tolerance against f64 on the same rounded keys and values: NMSE below 1e-10.

mod cpu;
pub(crate) mod cuda;
mod gated;
mod prepare;
mod reference;

pub use gated::{attention_activation, gated_attention};
pub use prepare::{HeadNorms, Prepare, prepare_qkv};

use crate::check::Check;
use crate::profile::Work;
use crate::{Activation, DType, Error, Family, KvLayer, PAGE_LEN, Result, Step, Tensor};

/// How scores are made and which keys are seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Factor on `q . k`, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys seen at most, the token's own included; `None` for all.
    pub window: Option<usize>,
    /// Soft cap on scores.
    pub softcap: Option<f32>,
}

pub(crate) trait AttentionOps {
    fn write_kv(&self, step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()>;
    fn attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()>;
    /// Whether [`prepare_qkv`](Self::prepare_qkv) is one operation here.
    fn fuses_prepare(&self, _layer: &KvLayer) -> bool {
        false
    }
    /// That operation, where there is one.
    fn prepare_qkv(
        &self,
        _step: &Step,
        _qkv: [&Tensor; 3],
        _prepare: &Prepare,
        _layer: &KvLayer,
    ) -> Result<()> {
        Err(Error::Option { what: "the device prepares queries and keys part by part".to_owned() })
    }
    /// Whether [`gated_attention`](Self::gated_attention) is one operation here.
    fn fuses_gate(&self, _queries: &Tensor, _layer: &KvLayer, _spec: &AttentionSpec) -> bool {
        false
    }
    /// That operation, where there is one, with a gate or without. The output may be `[T, H * Dv]`: what products read of it, if
    /// that was written as well.
    fn gated_attention(
        &self,
        _step: &Step,
        _queries: &Tensor,
        _layer: &KvLayer,
        _spec: &AttentionSpec,
        _gate: Option<&Tensor>,
        _out: &Tensor,
    ) -> Result<Option<Activation>> {
        Err(Error::Option { what: "the device computes attention and its gate one by one".to_owned() })
    }
}

/// Writes the step's keys `[T, Hkv, Dk]` and values `[T, Hkv, Dv]` into the pages of their sequences.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a sequence owns too few pages or one that
/// does not exist.
pub fn write_kv(step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()> {
    let check = Check::new("write_kv", layer.keys())?;
    let (key_dim, value_dim) = (layer.key_dim(), layer.value_dim());
    check.tensor("the keys", keys, DType::F32, &[step.len(), layer.kv_heads(), key_dim])?;
    check.tensor("the values", values, DType::F32, &[step.len(), layer.kv_heads(), value_dim])?;
    check_pages(&check, step, layer)?;
    check.run(
        Family::Attention,
        || Work::through([keys, values]),
        |backend| backend.write_kv(step, keys, values, layer),
    )
}

/// Attention of the step's queries `[T, H, Dk]` over the pages of their sequences, into out `[T, H, Dv]`.
/// The step's own keys must have been written.
///
/// # Errors
/// [`crate::Error`] when shapes, types or devices do not fit, or a sequence owns too few pages or one that
/// does not exist.
pub fn attention(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    out: &Tensor,
) -> Result<()> {
    let check = Check::new("attention", out)?;
    check_attention(&check, step, queries, layer, spec, out)?;
    check.run(
        Family::Attention,
        || attention_work(step, queries, layer, spec, out),
        |backend| backend.attention(step, queries, layer, spec, out),
    )
}

fn check_attention(
    check: &Check,
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    out: &Tensor,
) -> Result<()> {
    check.rank("the queries", queries, 3)?;
    let heads = queries.shape()[1];
    let (key_dim, value_dim) = (layer.key_dim(), layer.value_dim());
    check.tensor("the queries", queries, DType::F32, &[step.len(), heads, key_dim])?;
    check.tensor("the output", out, DType::F32, &[step.len(), heads, value_dim])?;
    check.that(heads.is_multiple_of(layer.kv_heads()), || {
        format!("{heads} query heads cannot share {} key-value heads", layer.kv_heads())
    })?;
    check.that(spec.window != Some(0), || "a window of 0 keys sees nothing".into())?;
    check.on_device("the cache", layer.keys().device())?;
    check.disjoint("the output", out, queries)?;
    check_pages(check, step, layer)
}

fn check_pages(check: &Check, step: &Step, layer: &KvLayer) -> Result<()> {
    for (index, sequence) in step.sequences().iter().enumerate() {
        let needed = (sequence.past + sequence.len).div_ceil(PAGE_LEN);
        check.that(sequence.pages.len() >= needed, || {
            format!("sequence {index} owns {} pages, but needs {needed}", sequence.pages.len())
        })?;
        let wild = sequence.pages[..needed].iter().find(|page| **page as usize >= layer.pages());
        check.value(wild.is_none(), || {
            format!("sequence {index} owns page {wild:?} of a pool of {}", layer.pages())
        })?;
    }
    Ok(())
}

/// Queries, output, and the visible keys and values, which a step reads at least once for each sequence.
fn attention_work(
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    out: &Tensor,
) -> Work {
    let (key_dim, value_dim) = (layer.key_dim(), layer.value_dim());
    let window = spec.window.unwrap_or(usize::MAX);
    let (mut keys, mut scores) = (0, 0);
    for sequence in step.sequences() {
        let end = sequence.past + sequence.len;
        keys += end.min(window.saturating_add(sequence.len - 1));
        scores += (sequence.past..end).map(|position| (position + 1).min(window)).sum::<usize>();
    }
    Work::through([queries, out])
        .bytes(keys * KvLayer::bytes_per_token(layer.dtype(), layer.kv_heads(), key_dim, value_dim))
        .products(scores * queries.shape()[1] * (key_dim + value_dim))
        .detail(layer.dtype().name())
}
