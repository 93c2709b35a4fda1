//! Recurrent state of gated-delta-net layers, in slots.

use crate::device::BORDER;
use crate::{DType, Device, Error, Result, Tensor};

/// Tokens in a chunk of the delta rule: the grid on which the state matrix is folded (arXiv:2412.06464).
pub const CHUNK: usize = 64;

/// Sizes of a gated-delta-net layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Key heads Hk.
    pub key_heads: usize,
    /// Value heads Hv, a multiple of `key_heads`; value head h reads key head h mod Hk (GGUF's tiled order).
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Channels of the convolution: q, k and v of all heads.
    pub conv_channels: usize,
    /// How many of the last tokens may be dropped again (speculation, stop strings, cancelled steps); at most
    /// [`CHUNK`].
    pub rollback: usize,
}

/// The recurrent state of one layer: a pool of slots, one a sequence.
///
/// What a slot holds after `p` tokens depends on those tokens alone, not on how they were batched or split:
///
/// - `matrix`: S at the last multiple of [`CHUNK`] at or below `p` (zero at the start, where it is not read);
/// - `keys`, `updates`, `decays`: for each token since, its key k (normalised), its update
///   u = beta (v - S^T k) and its log decay g summed from the start of the chunk;
/// - `conv`: the last `conv_kernel - 1` inputs of the convolution.
///
/// A token's output is one row of the chunk's forward substitution (S and the rows since), whether it arrives
/// alone or with its whole chunk, so prefill and decode agree bit for bit; S is read but not rewritten by a
/// decode step, except every 64th.
///
/// Rows live in rings indexed by position (`p mod rows`, `p mod taps`), and with `rollback > 0` there are two
/// matrices used in turn (`chunk mod 2`), so **dropping the last n <= `rollback` tokens is only a smaller
/// `past` in the next step**: nothing is copied and nothing is recomputed, even across a chunk border.
#[derive(Clone, Debug)]
pub struct StateLayer {
    shape: StateShape,
    matrix: Tensor,
    keys: Tensor,
    updates: Tensor,
    decays: Tensor,
    conv: Tensor,
}

impl StateLayer {
    /// Takes memory for `slots` slots on `device`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`]; [`crate::Error::Shape`] for sizes that do not fit together.
    pub fn new(device: &Device, slots: usize, shape: StateShape) -> Result<Self> {
        shape.check()?;
        let StateShape { key_heads, value_heads, key_dim, value_dim, conv_channels, .. } = shape;
        let rows = shape.rows();
        let matrices = slots * shape.matrices();
        // Together, so that memory can be had in large pages: a decode step enters many places of it.
        let [matrix, keys, updates, decays, conv] = device.zeros_together(
            DType::F32,
            [
                &[matrices, value_heads, key_dim, value_dim],
                &[slots, key_heads, rows, key_dim],
                &[slots, value_heads, rows, value_dim],
                &[slots, value_heads, rows],
                &[slots, shape.conv_rows(), conv_channels],
            ],
        )?;
        Ok(Self { shape, matrix, keys, updates, decays, conv })
    }

    /// The layer's sizes.
    pub fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// Slots in the pool.
    pub fn slots(&self) -> usize {
        self.keys.shape()[0]
    }

    /// `[slots * matrices, value_heads, key_dim, value_dim]`; slot s, chunk c: index
    /// `s * matrices + c mod matrices`.
    pub fn matrix(&self) -> &Tensor {
        &self.matrix
    }

    /// `[slots, key_heads, rows, key_dim]`, row `position mod rows`: the rows of a head lie together, as a
    /// decode step reads them.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// `[slots, value_heads, rows, value_dim]`, row `position mod rows`.
    pub fn updates(&self) -> &Tensor {
        &self.updates
    }

    /// `[slots, value_heads, rows]`, row `position mod rows`: log decay summed from the chunk's first token
    /// to this one, inclusive.
    pub fn decays(&self) -> &Tensor {
        &self.decays
    }

    /// `[slots, conv_rows, conv_channels]`, row `position mod conv_rows`: inputs of the convolution.
    pub fn conv(&self) -> &Tensor {
        &self.conv
    }
}

impl StateShape {
    fn check(&self) -> Result<()> {
        let fail = |what: String| Err(Error::Shape { op: "state", what });
        let Self { key_heads, value_heads, key_dim, value_dim, conv_kernel, conv_channels, rollback } = *self;
        if [key_heads, value_heads, key_dim, value_dim, conv_kernel, conv_channels].contains(&0) {
            return fail(format!("{self:?} has a size of 0"));
        }
        if !value_heads.is_multiple_of(key_heads) {
            return fail(format!("{value_heads} value heads cannot share {key_heads} key heads"));
        }
        if rollback > CHUNK {
            return fail(format!("{rollback} tokens cannot be rolled back, at most {CHUNK}"));
        }
        Ok(())
    }

    /// Rows a slot keeps: a chunk and what may be rolled back, in whole vectors of eight rows, so that a chunk
    /// that wraps around the ring is cut between two of them.
    pub fn rows(&self) -> usize {
        CHUNK + self.rollback.next_multiple_of(8)
    }

    /// State matrices a slot keeps.
    pub fn matrices(&self) -> usize {
        if self.rollback == 0 { 1 } else { 2 }
    }

    /// Convolution inputs a slot keeps: those that a token reads, and those that may be rolled back or, since a token's own
    /// may be written while others still read, one.
    pub fn conv_rows(&self) -> usize {
        self.conv_kernel - 1 + self.rollback.max(1)
    }

    /// Values of a slot in matrices, keys, updates, decays and inputs of the convolution.
    fn parts(&self) -> [usize; 5] {
        [
            self.matrices() * self.value_heads * self.key_dim * self.value_dim,
            self.rows() * self.key_heads * self.key_dim,
            self.rows() * self.value_heads * self.value_dim,
            self.rows() * self.value_heads,
            self.conv_rows() * self.conv_channels,
        ]
    }

    /// Bytes that `slots` slots take in one layer, the borders between its parts included; `None` when they cannot be counted.
    pub fn pool_bytes(&self, slots: usize) -> Option<usize> {
        self.parts().into_iter().try_fold(0_usize, |sum, values| {
            let bytes = values.checked_mul(4)?.checked_mul(slots)?.checked_next_multiple_of(BORDER)?;
            sum.checked_add(bytes)
        })
    }
}
