//! What a layer's state behind some tokens consists of, and where it lies.

use std::ops::Range;

use gruff_kernels::elementwise;
use gruff_kernels::{CHUNK, StateLayer, StateShape, Tensor};

use crate::Result;

/// What a part of a layer's state is kept in.
#[derive(Clone, Copy, Debug)]
enum Store {
    /// S of a chunk.
    Matrix(usize),
    Keys,
    Updates,
    Decays,
    Conv,
}

/// A part of one layer's state: rows of consecutive positions for each of its heads.
#[derive(Clone, Debug)]
pub(super) struct Part {
    store: Store,
    heads: usize,
    positions: Range<usize>,
    width: usize,
}

/// The parts of a layer's state behind `len` tokens.
pub(super) fn parts(shape: &StateShape, len: usize) -> [Part; 5] {
    let StateShape { key_heads, value_heads, key_dim, value_dim, conv_kernel, conv_channels, .. } = *shape;
    let chunk = len / CHUNK;
    let since = chunk * CHUNK..len;
    // S of the first chunk is zero, and never read.
    let matrices = usize::from(chunk > 0);
    let rows = |store, heads, width| Part { store, heads, positions: since.clone(), width };
    [
        Part {
            store: Store::Matrix(chunk),
            heads: value_heads,
            positions: 0..matrices,
            width: key_dim * value_dim,
        },
        rows(Store::Keys, key_heads, key_dim),
        rows(Store::Updates, value_heads, value_dim),
        rows(Store::Decays, value_heads, 1),
        Part {
            store: Store::Conv,
            heads: 1,
            positions: len.saturating_sub(conv_kernel.saturating_sub(1))..len,
            width: conv_channels,
        },
    ]
}

/// Values of a layer's state behind `len` tokens.
pub(super) fn values(shape: &StateShape, len: usize) -> usize {
    parts(shape, len).iter().map(Part::values).sum()
}

impl Part {
    pub(super) fn values(&self) -> usize {
        self.heads * self.positions.len() * self.width
    }

    /// Values of a head.
    fn each(&self) -> usize {
        self.positions.len() * self.width
    }

    /// Where it lies in a layer's memory: views `[heads, values]` of rows that lie together, each with the range that its
    /// values are among a head's.
    fn views(&self, layer: &StateLayer, slot: usize) -> Result<Vec<(Tensor, Range<usize>)>> {
        if self.positions.is_empty() {
            return Ok(Vec::new());
        }
        let shape = layer.shape();
        let (pool, ring) = match self.store {
            Store::Matrix(chunk) => {
                let matrices = shape.matrices();
                let matrix = layer.matrix().narrow(0, slot * matrices + chunk % matrices, 1)?;
                return Ok(vec![(matrix.reshape(&[self.heads, self.width])?, 0..self.width)]);
            }
            Store::Keys => (layer.keys(), shape.rows()),
            Store::Updates => (layer.updates(), shape.rows()),
            Store::Decays => (layer.decays(), shape.rows()),
            Store::Conv => (layer.conv(), shape.conv_rows()),
        };
        let own = pool.narrow(0, slot, 1)?.reshape(&[self.heads, ring * self.width])?;
        let (start, count) = (self.positions.start % ring, self.positions.len());
        let before = (ring - start).min(count);
        let view = |row: usize, rows: usize, first: usize| -> Result<(Tensor, Range<usize>)> {
            let view = own.narrow(1, row * self.width, rows * self.width)?;
            Ok((view, first * self.width..(first + rows) * self.width))
        };
        let mut views = vec![view(start, before, 0)?];
        if before < count {
            views.push(view(0, count - before, before)?);
        }
        Ok(views)
    }

    /// Copies it to a tensor of as many values, or back from there, by the device.
    pub(super) fn move_on_device(
        &self,
        layer: &StateLayer,
        slot: usize,
        whole: &Tensor,
        back: bool,
    ) -> Result<()> {
        for (view, range) in self.views(layer, slot)? {
            let there = whole.reshape(&[self.heads, self.each()])?.narrow(1, range.start, range.len())?;
            let (from, to) = if back { (&there, &view) } else { (&view, &there) };
            elementwise::copy(from, to)?;
        }
        Ok(())
    }

    /// Appends it to `values`.
    pub(super) fn copy_out(&self, layer: &StateLayer, slot: usize, values: &mut Vec<f32>) -> Result<()> {
        let start = values.len();
        values.resize(start + self.values(), 0.0);
        for (view, range) in self.views(layer, slot)? {
            let found = view.to_vec_f32()?;
            for (head, own) in found.chunks_exact(range.len()).enumerate() {
                let first = start + head * self.each();
                values[first + range.start..first + range.end].copy_from_slice(own);
            }
        }
        Ok(())
    }

    /// Puts what [`copy_out`](Self::copy_out) gave back.
    pub(super) fn copy_in(&self, layer: &StateLayer, slot: usize, values: &[f32]) -> Result<()> {
        for (view, range) in self.views(layer, slot)? {
            if range.len() == self.each() {
                view.write_f32(values)?;
                continue;
            }
            let heads = values.chunks_exact(self.each()).flat_map(|head| &head[range.clone()]);
            view.write_f32(&heads.copied().collect::<Vec<_>>())?;
        }
        Ok(())
    }
}
