//! Recurrent state of a sequence at one position, kept outside of its slot.

use std::ops::Range;

use gruff_kernels::{CHUNK, StateLayer, StateShape, Tensor};

use crate::{CacheLayer, CachePlan, Caches, Error, LayerCache, Result};

/// What all recurrent layers hold of a sequence behind its first [`len`](Self::len) tokens, and nothing else: of each
/// layer S at the last multiple of [`CHUNK`], the rows since, and the last inputs of the convolution.
///
/// At a multiple of [`CHUNK`] there are no rows, which makes it the smallest. It does not depend on the rollback that
/// caches were made with, and a sequence that goes on from it gets the same bits as the one it was taken from.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    len: usize,
    values: Vec<f32>,
}

impl Snapshot {
    /// Tokens that it stands behind.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it stands behind no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }

    /// Its values, layer by layer.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// A snapshot from the [`values`](Self::values) of another.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when a model with these caches has another number of values behind `len` tokens.
    pub fn from_values(plan: &CachePlan, len: usize, values: Vec<f32>) -> Result<Self> {
        let expected = plan.bytes_per_snapshot(len) / size_of::<f32>();
        if values.len() == expected {
            return Ok(Self { len, values });
        }
        Err(Error::Snapshot { len, values: values.len(), expected })
    }
}

impl CachePlan {
    /// Bytes of a [`Snapshot`] behind `len` tokens.
    pub fn bytes_per_snapshot(&self, len: usize) -> usize {
        let values = |layer: &LayerCache| match layer {
            LayerCache::Kv { .. } => 0,
            LayerCache::State(shape) => parts(shape, len).iter().map(Part::values).sum(),
        };
        self.layers().iter().map(values).sum::<usize>() * size_of::<f32>()
    }
}

impl Caches {
    /// Copies out what a slot holds behind the first `len` tokens of its sequence: those that it has, or fewer by no
    /// more than the rollback.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such slot.
    pub fn snapshot(&self, slot: u32, len: usize) -> Result<Snapshot> {
        let all = || self.states().map(|layer| (layer, parts(layer.shape(), len)));
        let count = all().flat_map(|(_, parts)| parts).map(|part| part.values()).sum();
        let mut values = Vec::with_capacity(count);
        for (layer, parts) in all() {
            for part in parts {
                part.copy_out(layer, slot as usize, &mut values)?;
            }
        }
        Ok(Snapshot { len, values })
    }

    /// Fills a slot, so that a sequence goes on in it from behind the snapshot's tokens. None of those can be rolled
    /// back.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such slot, [`Error::Snapshot`] when the snapshot is of other caches.
    pub fn restore(&mut self, snapshot: &Snapshot, slot: u32) -> Result<()> {
        let all = || self.states().flat_map(|layer| parts(layer.shape(), snapshot.len));
        let expected = all().map(|part| part.values()).sum();
        if snapshot.values.len() != expected {
            return Err(Error::Snapshot { len: snapshot.len, values: snapshot.values.len(), expected });
        }
        let mut rest = snapshot.values.as_slice();
        for layer in self.states() {
            for part in parts(layer.shape(), snapshot.len) {
                let (own, others) = rest.split_at(part.values());
                part.copy_in(layer, slot as usize, own)?;
                rest = others;
            }
        }
        Ok(())
    }

    fn states(&self) -> impl Iterator<Item = &StateLayer> {
        self.layers().iter().filter_map(|layer| match layer {
            CacheLayer::State(state) => Some(state),
            CacheLayer::Kv(_) => None,
        })
    }
}

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
struct Part {
    store: Store,
    heads: usize,
    positions: Range<usize>,
    width: usize,
}

/// The parts of a layer's state behind `len` tokens.
fn parts(shape: &StateShape, len: usize) -> Vec<Part> {
    let StateShape { key_heads, value_heads, key_dim, value_dim, conv_kernel, conv_channels, .. } = *shape;
    let chunk = len / CHUNK;
    let since = chunk * CHUNK..len;
    // S of the first chunk is zero, and never read.
    let matrices = usize::from(chunk > 0);
    let rows = |store, heads, width| Part { store, heads, positions: since.clone(), width };
    vec![
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

impl Part {
    fn values(&self) -> usize {
        self.heads * self.positions.len() * self.width
    }

    /// Where it lies in a layer's memory: views of rows that lie together, each with its first row within the part.
    fn views(&self, layer: &StateLayer, slot: usize) -> Result<Vec<(Tensor, usize)>> {
        if self.positions.is_empty() {
            return Ok(Vec::new());
        }
        let (pool, axis, ring) = match self.store {
            Store::Matrix(chunk) => {
                let matrices = layer.shape().matrices();
                let view = layer.matrix().narrow(0, slot * matrices + chunk % matrices, 1)?;
                return Ok(vec![(view, 0)]);
            }
            Store::Keys => (layer.keys(), 2, layer.shape().rows()),
            Store::Updates => (layer.updates(), 2, layer.shape().rows()),
            Store::Decays => (layer.decays(), 2, layer.shape().rows()),
            Store::Conv => (layer.conv(), 1, layer.shape().conv_rows()),
        };
        let own = pool.narrow(0, slot, 1)?;
        let (start, count) = (self.positions.start % ring, self.positions.len());
        let before = (ring - start).min(count);
        let mut views = vec![(own.narrow(axis, start, before)?, 0)];
        if before < count {
            views.push((own.narrow(axis, 0, count - before)?, before));
        }
        Ok(views)
    }

    /// The range that `rows` rows from `first` on of a head have among the part's values.
    fn range(&self, head: usize, first: usize, rows: usize) -> Range<usize> {
        let start = (head * self.positions.len() + first) * self.width;
        start..start + rows * self.width
    }

    /// Appends it to `values`.
    fn copy_out(&self, layer: &StateLayer, slot: usize, values: &mut Vec<f32>) -> Result<()> {
        let views = self.views(layer, slot)?;
        if let [(view, _)] = views.as_slice() {
            values.extend_from_slice(&view.to_vec_f32()?);
            return Ok(());
        }
        let start = values.len();
        values.resize(start + self.values(), 0.0);
        for (view, first) in views {
            let found = view.to_vec_f32()?;
            let each = found.len() / self.heads;
            for (head, rows) in found.chunks_exact(each).enumerate() {
                values[start..][self.range(head, first, each / self.width)].copy_from_slice(rows);
            }
        }
        Ok(())
    }

    fn copy_in(&self, layer: &StateLayer, slot: usize, values: &[f32]) -> Result<()> {
        let views = self.views(layer, slot)?;
        if let [(view, _)] = views.as_slice() {
            return Ok(view.write_f32(values)?);
        }
        for (view, first) in views {
            let each = view.len() / self.heads / self.width;
            let heads = (0..self.heads).flat_map(|head| &values[self.range(head, first, each)]);
            view.write_f32(&heads.copied().collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gruff_kernels::{Activations, Device, KvDtype};

    use super::*;
    use crate::CacheOptions;

    fn plan() -> CachePlan {
        let shape = StateShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 3,
            value_dim: 5,
            conv_kernel: 4,
            conv_channels: 32,
            rollback: 0,
        };
        let kv = LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 };
        CachePlan::new(vec![LayerCache::State(shape), kv, LayerCache::State(shape)])
    }

    fn caches(rollback: usize) -> Caches {
        let options = CacheOptions { kv_dtype: KvDtype::F32, pages: 1, slots: 3, rollback };
        Caches::new(&Device::reference(Activations::F32), &plan(), &options).unwrap()
    }

    /// Every value of the state tells where it lies: in which tensor, slot and place.
    fn number(caches: &Caches) {
        for (index, layer) in caches.states().enumerate() {
            for (kind, pool) in [layer.matrix(), layer.keys(), layer.updates(), layer.decays(), layer.conv()]
                .into_iter()
                .enumerate()
            {
                let values: Vec<f32> =
                    (0..pool.len()).map(|at| (at * 10 + kind) as f32 + index as f32 / 2.0).collect();
                pool.write_f32(&values).unwrap();
            }
        }
    }

    #[test]
    fn what_is_restored_is_what_was_taken() {
        for (rollback, len) in [(0, 1), (0, 63), (0, 64), (0, 130), (8, 2), (8, 127), (8, 200), (64, 300)] {
            let mut caches = caches(rollback);
            number(&caches);
            let taken = caches.snapshot(1, len).unwrap();
            assert_eq!((taken.len(), taken.bytes()), (len, plan().bytes_per_snapshot(len)));
            let other = caches.snapshot(2, len).unwrap();
            assert!(taken.values().iter().zip(other.values()).all(|(a, b)| a != b), "another slot's");
            caches.restore(&taken, 2).unwrap();
            assert_eq!(caches.snapshot(2, len).unwrap(), taken);
            assert_eq!(caches.snapshot(1, len).unwrap(), taken);
        }
    }

    #[test]
    fn rings_of_any_size_give_the_same_values() {
        // The same positions, written into rings with and without rollback.
        let len = 150;
        let [narrow, wide] = [0, 24].map(|rollback| {
            let caches = caches(rollback);
            for layer in caches.states() {
                for part in parts(layer.shape(), len) {
                    let values: Vec<f32> = (0..part.values()).map(|at| at as f32).collect();
                    part.copy_in(layer, 0, &values).unwrap();
                }
            }
            caches.snapshot(0, len).unwrap()
        });
        assert_eq!(narrow, wide);
    }

    #[test]
    fn a_snapshot_of_other_caches_is_refused() {
        let mut caches = caches(0);
        let (len, values) = (70, vec![0.0; 7]);
        let message = caches.restore(&Snapshot { len, values: values.clone() }, 0).unwrap_err().to_string();
        assert!(message.contains("70 tokens") && message.contains("7 values"), "{message}");
        assert!(Snapshot::from_values(&plan(), len, values).is_err());
        let taken = caches.snapshot(0, len).unwrap();
        assert_eq!(Snapshot::from_values(&plan(), len, taken.values().to_vec()).unwrap(), taken);
        assert!(caches.snapshot(3, len).is_err(), "no such slot");
    }
}
