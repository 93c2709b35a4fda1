//! Attention, a query at a time: all its scores, their softmax, the sum of values.

use gruff_blocks::BlockType;
use half::f16;

use super::matmul::dot;
use crate::attention::AttentionSpec;
use crate::cpu::CpuDevice;
use crate::cpu::view::{Input, Output};
use crate::{KvDtype, KvLayer, PAGE_LEN, Result, Step, Tensor};

/// The rows of a pool, in any type.
enum Rows<'a> {
    F32(Input<'a, f32>),
    F16(Input<'a, f16>),
    Q8_0(Input<'a, u8>),
}

impl<'a> Rows<'a> {
    fn of(pool: &'a Tensor, dtype: KvDtype) -> Self {
        // SAFETY: the cache's memory is its own, and attention only reads it.
        unsafe {
            match dtype {
                KvDtype::F32 => Rows::F32(Input::of(pool)),
                KvDtype::F16 => Rows::F16(Input::of(pool)),
                KvDtype::Q8_0 => Rows::Q8_0(Input::of(pool)),
            }
        }
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        match self {
            Rows::F32(rows) => out.copy_from_slice(rows.row(row)),
            Rows::F16(rows) => out.iter_mut().zip(rows.row(row)).for_each(|(out, x)| *out = x.to_f32()),
            Rows::Q8_0(rows) => {
                let unpacked = BlockType::Q8_0.unpack(rows.row(row), out);
                debug_assert!(unpacked.is_ok(), "{unpacked:?}");
            }
        }
    }
}

/// As [`crate::attention::attention`].
pub(super) fn attention(
    cpu: &CpuDevice,
    step: &Step,
    queries: &Tensor,
    layer: &KvLayer,
    spec: &AttentionSpec,
    out: &Tensor,
) -> Result<()> {
    let heads = queries.shape()[1];
    let (keys, values) = (Rows::of(layer.keys(), layer.dtype()), Rows::of(layer.values(), layer.dtype()));
    // SAFETY: queries were checked to be disjoint from the output.
    let queries = unsafe { Input::<f32>::of(queries) };
    let out = Output::<f32>::of(out);
    for (sequence, start) in step.sequences().iter().zip(step.starts()) {
        let cost = (sequence.past + sequence.len) * (layer.key_dim() + layer.value_dim());
        cpu.share(sequence.len * heads, cost, |range| {
            let (mut key, mut value) = (vec![0.0; layer.key_dim()], vec![0.0; layer.value_dim()]);
            for item in range {
                let (token, head) = (item / heads, item % heads);
                let kv_head = head * layer.kv_heads() / heads;
                let row = |index: usize| {
                    let page = sequence.pages[index / PAGE_LEN] as usize;
                    (page * layer.kv_heads() + kv_head) * PAGE_LEN + index % PAGE_LEN
                };
                let end = sequence.past + token + 1;
                let seen = spec.window.map_or(0, |window| end.saturating_sub(window))..end;
                let query = queries.row((start + token) * heads + head);
                let mut scores: Vec<f32> = seen
                    .clone()
                    .map(|index| {
                        keys.read(row(index), &mut key);
                        let score = dot(query, &key) * spec.scale;
                        spec.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
                let total: f32 = scores.iter().sum();
                // SAFETY: within the operation, only this piece touches this head of this token.
                let out = unsafe { out.row((start + token) * heads + head) };
                out.fill(0.0);
                for (index, score) in seen.zip(&scores) {
                    values.read(row(index), &mut value);
                    out.iter_mut().zip(&value).for_each(|(out, x)| *out += score / total * x);
                }
            }
        });
    }
    Ok(())
}
