//! Attention in plain code, with its weights.

use gruff_kernels::attention::AttentionSpec;
use gruff_kernels::{KvLayer, PAGE_LEN, StepSequence, Tensor};

use crate::Result;

/// The queries of one sequence, with the keys and values that its pages hold, on the host.
pub(crate) struct Eager<'a> {
    spec: &'a AttentionSpec,
    past: usize,
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// `[len, heads, key_dim]`.
    queries: Vec<f32>,
    /// `[kv_heads, keys, key_dim]`, as rounded by the cache.
    keys: Vec<f32>,
    /// `[kv_heads, keys, value_dim]`.
    values: Vec<f32>,
    kv_heads: usize,
}

impl<'a> Eager<'a> {
    /// Reads what a sequence needs: `queries` `[len, heads, key_dim]` are its own.
    pub(crate) fn new(
        queries: &Tensor,
        sequence: &StepSequence,
        layer: &KvLayer,
        spec: &'a AttentionSpec,
    ) -> Result<Self> {
        let count = sequence.past + sequence.len;
        let (key_dim, value_dim) = (layer.key_dim(), layer.value_dim());
        Ok(Self {
            spec,
            past: sequence.past,
            heads: queries.shape()[1],
            key_dim,
            value_dim,
            queries: queries.to_vec_f32()?,
            keys: read_pages(layer, layer.keys(), &sequence.pages, count)?,
            values: read_pages(layer, layer.values(), &sequence.pages, count)?,
            kv_heads: layer.kv_heads(),
        })
    }

    fn len(&self) -> usize {
        self.queries.len() / (self.heads * self.key_dim).max(1)
    }

    fn count(&self) -> usize {
        self.past + self.len()
    }

    /// The shape of its weights.
    pub(crate) fn weights_shape(&self) -> [usize; 3] {
        [self.heads, self.len(), self.count()]
    }

    /// Softmax of the scores: `[heads, len, keys]`, 0 for keys that are not seen.
    pub(crate) fn weights(&self) -> Vec<f32> {
        let (len, count) = (self.len(), self.count());
        let mut weights = vec![0.0; self.heads * len * count];
        for (row, weights) in weights.chunks_exact_mut(count.max(1)).enumerate() {
            let (head, query) = (row / len, row % len);
            let seen = self.seen(query);
            let query = &self.queries[(query * self.heads + head) * self.key_dim..][..self.key_dim];
            let keys = &self.keys[self.kv_head(head) * count * self.key_dim..];
            for key in seen.clone() {
                weights[key] = self.score(query, &keys[key * self.key_dim..][..self.key_dim]);
            }
            softmax(&mut weights[seen]);
        }
        weights
    }

    /// The sum of the values by these weights: `[len, heads, value_dim]`.
    pub(crate) fn sum(&self, weights: &[f32]) -> Vec<f32> {
        let (len, count, width) = (self.len(), self.count(), self.value_dim);
        let mut out = vec![0.0; len * self.heads * width];
        for (row, weights) in weights.chunks_exact(count.max(1)).enumerate() {
            let (head, query) = (row / len, row % len);
            let out = &mut out[(query * self.heads + head) * width..][..width];
            let values = &self.values[self.kv_head(head) * count * width..][..count * width];
            for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
                if *weight != 0.0 {
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
                }
            }
        }
        out
    }

    /// The keys that a query sees.
    fn seen(&self, query: usize) -> std::ops::Range<usize> {
        let end = self.past + query + 1;
        end.saturating_sub(self.spec.window.unwrap_or(end))..end
    }

    /// Query head h reads key-value head `h * Hkv / H`.
    fn kv_head(&self, head: usize) -> usize {
        head * self.kv_heads / self.heads
    }

    fn score(&self, query: &[f32], key: &[f32]) -> f32 {
        let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = product as f32 * self.spec.scale;
        match self.spec.softcap {
            Some(cap) => cap * (score / cap).tanh(),
            None => score,
        }
    }
}

fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f64 = scores.iter().map(|score| f64::from(*score)).sum();
    scores.iter_mut().for_each(|score| *score = (f64::from(*score) / sum) as f32);
}

/// The first `count` rows of `[pages, heads, PAGE_LEN, width]`, as `[heads, count, width]`.
fn read_pages(layer: &KvLayer, pool: &Tensor, pages: &[u32], count: usize) -> Result<Vec<f32>> {
    let heads = pool.shape()[1];
    let mut rows = Vec::new();
    for (index, page) in pages.iter().take(count.div_ceil(PAGE_LEN)).enumerate() {
        let page = layer.widened(&pool.select(0, *page as usize)?)?;
        let width = page.len() / (heads * PAGE_LEN);
        rows.resize(heads * count * width, 0.0);
        let start = index * PAGE_LEN;
        let len = PAGE_LEN.min(count - start) * width;
        for (head, page) in page.chunks_exact(PAGE_LEN * width).enumerate() {
            rows[(head * count + start) * width..][..len].copy_from_slice(&page[..len]);
        }
    }
    Ok(rows)
}
