//! Attention in f64, one query at a time.

use super::{AttentionOps, AttentionSpec};
use crate::reference::{ReferenceDevice, load, store};
use gruff_blocks::BlockType;

use crate::{KvDtype, KvLayer, PAGE_LEN, Result, Step, Tensor};

/// The values of one head at one index of a sequence.
fn slot(pool: &Tensor, pages: &[u32], head: usize, index: usize) -> Result<Tensor> {
    let page = pages[index / PAGE_LEN] as usize;
    pool.select(0, page)?.select(0, head)?.narrow(0, index % PAGE_LEN, 1)
}

/// Rounds to the cache's type and stores.
fn keep(dtype: KvDtype, values: &[f64], slot: &Tensor) -> Result<()> {
    if dtype != KvDtype::Q8_0 {
        return store(slot, values);
    }
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    let mut packed = vec![0; slot.len()];
    BlockType::Q8_0.pack(&values, &mut packed)?;
    slot.store_bytes(&packed)
}

/// The values that a cache holds.
fn kept(dtype: KvDtype, slot: &Tensor) -> Result<Vec<f64>> {
    if dtype != KvDtype::Q8_0 {
        return load(slot);
    }
    let values = BlockType::Q8_0.unpack_to_vec(&slot.load_bytes()?)?;
    Ok(values.into_iter().map(f64::from).collect())
}

impl AttentionOps for ReferenceDevice {
    fn write_kv(&self, step: &Step, keys: &Tensor, values: &Tensor, layer: &KvLayer) -> Result<()> {
        for (source, pool) in [(keys, layer.keys()), (values, layer.values())] {
            for (sequence, start) in step.sequences().iter().zip(step.starts()) {
                for i in 0..sequence.len {
                    for head in 0..layer.kv_heads() {
                        let value = load(&source.narrow(0, start + i, 1)?.narrow(1, head, 1)?)?;
                        let slot = slot(pool, &sequence.pages, head, sequence.past + i)?;
                        keep(layer.dtype(), &value, &slot)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn attention(
        &self,
        step: &Step,
        queries: &Tensor,
        layer: &KvLayer,
        spec: &AttentionSpec,
        out: &Tensor,
    ) -> Result<()> {
        let (heads, key_dim) = (queries.shape()[1], queries.shape()[2]);
        let value_dim = out.shape()[2];
        let group = heads / layer.kv_heads();
        let queries = load(queries)?;
        let mut result = vec![0.0; out.len()];
        for (sequence, start) in step.sequences().iter().zip(step.starts()) {
            for kv_head in 0..layer.kv_heads() {
                let total = sequence.past + sequence.len;
                let gather = |pool: &Tensor| -> Result<Vec<Vec<f64>>> {
                    (0..total)
                        .map(|j| kept(layer.dtype(), &slot(pool, &sequence.pages, kv_head, j)?))
                        .collect()
                };
                let (keys, values) = (gather(layer.keys())?, gather(layer.values())?);
                for i in 0..sequence.len {
                    for head in kv_head * group..(kv_head + 1) * group {
                        let row = (start + i) * heads + head;
                        let query = &queries[row * key_dim..(row + 1) * key_dim];
                        let last = sequence.past + i;
                        let first = spec.window.map_or(0, |window| (last + 1).saturating_sub(window));
                        let target = &mut result[row * value_dim..(row + 1) * value_dim];
                        attend(query, &keys[first..=last], &values[first..=last], spec, target);
                    }
                }
            }
        }
        store(out, &result)
    }
}

fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>], spec: &AttentionSpec, out: &mut [f64]) {
    let mut scores: Vec<f64> = keys
        .iter()
        .map(|key| {
            let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * f64::from(spec.scale);
            match spec.softcap {
                Some(cap) => f64::from(cap) * (score / f64::from(cap)).tanh(),
                None => score,
            }
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let total: f64 = scores.iter().sum();
    for (score, value) in scores.iter().zip(values) {
        out.iter_mut().zip(value).for_each(|(sum, v)| *sum += score / total * v);
    }
}
