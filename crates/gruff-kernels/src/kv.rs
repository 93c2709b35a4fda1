//! Keys and values of attention layers, in pages.

use crate::{DType, Device, Error, Result, Tensor};

/// Tokens in a page. Attention works through keys page by page, so this is also the unit of its online
/// softmax: results depend on a token's index in its sequence, never on how it was batched.
pub const PAGE_LEN: usize = 32;

/// The keys and values of one attention layer: a pool of pages that sequences own by number.
///
/// Both tensors are `[pages, kv_heads, PAGE_LEN, head_dim]`: the keys of one head within a page lie together.
/// A page number means the same in every layer. Pages are written in place, never moved.
#[derive(Clone, Debug)]
pub struct KvLayer {
    keys: Tensor,
    values: Tensor,
}

impl KvLayer {
    /// Takes memory for `pages` pages on `device`. `dtype` is f16 (the default cache) or f32 (exact).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::DType`] for another type.
    pub fn new(
        device: &Device,
        dtype: DType,
        pages: usize,
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
    ) -> Result<Self> {
        if dtype == DType::I32 {
            return Err(Error::DType { op: "kv", operand: "the cache", found: dtype, expected: DType::F16 });
        }
        Ok(Self {
            keys: device.zeros(dtype, &[pages, kv_heads, PAGE_LEN, key_dim])?,
            values: device.zeros(dtype, &[pages, kv_heads, PAGE_LEN, value_dim])?,
        })
    }

    /// `[pages, kv_heads, PAGE_LEN, key_dim]`.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// `[pages, kv_heads, PAGE_LEN, value_dim]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Pages in the pool.
    pub fn pages(&self) -> usize {
        self.keys.shape()[0]
    }

    /// Key-value heads.
    pub fn kv_heads(&self) -> usize {
        self.keys.shape()[1]
    }

    /// Bytes that one token takes in one layer, keys and values.
    pub fn bytes_per_token(dtype: DType, kv_heads: usize, key_dim: usize, value_dim: usize) -> usize {
        dtype.bytes() * kv_heads * (key_dim + value_dim)
    }
}
