//! Keys and values of attention layers, in pages.

use std::fmt;
use std::str::FromStr;

use gruff_blocks::BlockType;

use crate::{DType, Device, Error, Result, Tensor};

/// Tokens in a page. Keys are worked through by whole pages, counted from the sequence's first token: results
/// depend on a token's index in its sequence, never on how it was batched.
pub const PAGE_LEN: usize = 32;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// Single precision: exact.
    F32,
    /// Half precision.
    #[default]
    F16,
    /// ggml's Q8_0: blocks of 32 values along a head, int8 with one half-precision scale; 34 bytes a block.
    Q8_0,
}

impl KvDtype {
    /// All of them, the most exact first.
    pub const ALL: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Q8_0];

    /// The name, as in ggml: `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Q8_0 => "q8_0",
        }
    }

    /// The type of the tensors that hold it.
    fn stored(self) -> DType {
        match self {
            KvDtype::F32 => DType::F32,
            KvDtype::F16 => DType::F16,
            KvDtype::Q8_0 => DType::U8,
        }
    }

    /// Values of the tensor type that one head of one token takes; `None` where it is not whole blocks.
    fn stored_width(self, dim: usize) -> Option<usize> {
        match self {
            KvDtype::F32 | KvDtype::F16 => Some(dim),
            KvDtype::Q8_0 => BlockType::Q8_0.row_bytes(dim).ok(),
        }
    }

    /// Bytes that one head of one token takes; a part of a block counts as a whole.
    pub fn row_bytes(self, dim: usize) -> usize {
        let whole = if self == KvDtype::Q8_0 { dim.next_multiple_of(BlockType::Q8_0.values()) } else { dim };
        self.stored_width(whole).unwrap_or(whole) * self.stored().bytes()
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| Error::Option {
            what: format!("{text:?} is not a type for keys and values; choose f32, f16 or q8_0"),
        })
    }
}

/// The keys and values of one attention layer: a pool of pages that sequences own by number.
///
/// Both tensors are `[pages, kv_heads, PAGE_LEN, head_dim]`: the keys of one head within a page lie together; with
/// [`KvDtype::Q8_0`] rows are bytes, `[pages, kv_heads, PAGE_LEN, head_dim / 32 * 34]`. A page number means the same
/// in every layer. Pages are written in place, never moved.
#[derive(Clone, Debug)]
pub struct KvLayer {
    dtype: KvDtype,
    dims: [usize; 2],
    keys: Tensor,
    values: Tensor,
}

impl KvLayer {
    /// Takes memory for `pages` pages on `device`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Shape`] for heads that are not whole blocks of the type.
    pub fn new(
        device: &Device,
        dtype: KvDtype,
        pages: usize,
        kv_heads: usize,
        key_dim: usize,
        value_dim: usize,
    ) -> Result<Self> {
        let pool = |dim: usize| {
            let width = dtype.stored_width(dim).ok_or_else(|| Error::Shape {
                op: "kv",
                what: format!("heads of {dim} are not whole blocks of {dtype}; keep keys and values in f16"),
            })?;
            device.zeros(dtype.stored(), &[pages, kv_heads, PAGE_LEN, width])
        };
        Ok(Self { dtype, dims: [key_dim, value_dim], keys: pool(key_dim)?, values: pool(value_dim)? })
    }

    /// How keys and values are kept.
    pub fn dtype(&self) -> KvDtype {
        self.dtype
    }

    /// Width of a key head.
    pub fn key_dim(&self) -> usize {
        self.dims[0]
    }

    /// Width of a value head.
    pub fn value_dim(&self) -> usize {
        self.dims[1]
    }

    /// `[pages, kv_heads, PAGE_LEN, key_dim]`, or bytes of blocks.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// `[pages, kv_heads, PAGE_LEN, value_dim]`, or bytes of blocks.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Copies a part of [`keys`](Self::keys) or [`values`](Self::values) out, widened: every head of every token has
    /// its width again, in order.
    ///
    /// # Errors
    /// [`Error::Blocks`] for a part that cuts blocks.
    pub fn widened(&self, part: &Tensor) -> Result<Vec<f32>> {
        match self.dtype {
            KvDtype::F32 | KvDtype::F16 => part.to_vec_f32(),
            KvDtype::Q8_0 => Ok(BlockType::Q8_0.unpack_to_vec(&part.to_vec_u8()?)?),
        }
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
    pub fn bytes_per_token(dtype: KvDtype, kv_heads: usize, key_dim: usize, value_dim: usize) -> usize {
        kv_heads * (dtype.row_bytes(key_dim) + dtype.row_bytes(value_dim))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuOptions;

    #[test]
    fn types_have_names_and_sizes() {
        for dtype in KvDtype::ALL {
            assert_eq!(dtype.name().parse::<KvDtype>().unwrap(), dtype);
        }
        assert!("q4_0".parse::<KvDtype>().is_err());
        assert_eq!(KvLayer::bytes_per_token(KvDtype::F16, 2, 256, 256), 2048);
        assert_eq!(KvLayer::bytes_per_token(KvDtype::Q8_0, 2, 256, 256), 1088);
    }

    #[test]
    fn heads_that_are_not_whole_blocks_are_refused() {
        let device = Device::cpu(CpuOptions::default()).unwrap();
        let error = KvLayer::new(&device, KvDtype::Q8_0, 1, 1, 80, 64).unwrap_err();
        assert!(error.to_string().contains("heads of 80"), "{error}");
        KvLayer::new(&device, KvDtype::Q8_0, 1, 1, 96, 64).unwrap();
    }
}
