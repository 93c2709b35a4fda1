//! Recurrent state of a sequence at one position, kept outside of its slot.

mod parts;
mod values;

use std::sync::{Arc, Mutex, PoisonError};

use gruff_kernels::{CHUNK, DType, Device, Later, StateLayer, Tensor};

use crate::{CacheLayer, CachePlan, Caches, Error, LayerCache, Result};
use parts::parts;
use values::Values;

/// What all recurrent layers hold of a sequence behind its first [`len`](Self::len) tokens, and nothing else: of each
/// layer S at the last multiple of [`CHUNK`], the rows since, and the last inputs of the convolution.
///
/// At a multiple of [`CHUNK`] there are no rows, which makes it the smallest. It does not depend on the rollback that
/// caches were made with, and a sequence that goes on from it gets the same bits as the one it was taken from.
///
/// What a card holds is copied aside while it goes on: [`values`](Self::values) waits for the end of that.
#[derive(Clone, Debug)]
pub struct Snapshot {
    len: usize,
    count: usize,
    values: Arc<Values>,
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
        self.count * size_of::<f32>()
    }

    /// Its values, layer by layer.
    ///
    /// # Errors
    /// [`Error::Kernel`] where a card could not copy them out, [`Error::Snapshot`] from then on.
    pub fn values(&self) -> Result<&[f32]> {
        let values = self.values.get()?;
        self.check(values.len()).map(|()| values)
    }

    fn check(&self, found: usize) -> Result<()> {
        if found == self.count {
            return Ok(());
        }
        Err(Error::Snapshot { len: self.len, values: found, expected: self.count })
    }

    /// A snapshot from the [`values`](Self::values) of another.
    ///
    /// # Errors
    /// [`Error::Snapshot`] when a model with these caches has another number of values behind `len` tokens.
    pub fn from_values(plan: &CachePlan, len: usize, values: Vec<f32>) -> Result<Self> {
        let found = values.len();
        let count = plan.bytes_per_snapshot(len) / size_of::<f32>();
        let snapshot = Self { len, count, values: Arc::new(Values::here(values)) };
        snapshot.check(found).map(|()| snapshot)
    }
}

impl LayerCache {
    /// Bytes of a layer in a [`Snapshot`] behind `len` tokens.
    pub fn snapshot_bytes(&self, len: usize) -> usize {
        match self {
            LayerCache::Kv { .. } => 0,
            LayerCache::State(shape) => parts::values(shape, len) * size_of::<f32>(),
        }
    }

    /// Bytes that a card takes to copy the layer out or in: what most snapshots have at most.
    pub fn copying_bytes(&self) -> usize {
        self.snapshot_bytes(LARGEST)
    }
}

/// A length behind which there is as much as there can be.
const LARGEST: usize = (CHUNK << 20) - 1;

impl CachePlan {
    /// Bytes of a [`Snapshot`] behind `len` tokens.
    pub fn bytes_per_snapshot(&self, len: usize) -> usize {
        self.layers().iter().map(|layer| layer.snapshot_bytes(len)).sum()
    }
}

/// The snapshot that was taken last, whose values may be on their way. There is one at a time, so that a card needs
/// memory for one.
#[derive(Debug, Default)]
pub(crate) struct Copying(Mutex<Option<Arc<Values>>>);

impl Copying {
    /// Waits for the one before.
    fn end(&self) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever asks for its values is told of a fault.
        let _ = before.as_ref().map(|values| values.get().map(<[f32]>::len));
    }

    fn begin(&self, values: &Arc<Values>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(values.clone());
    }
}

impl Drop for Copying {
    /// A program that ends would take the device away from the thread that copies.
    fn drop(&mut self) {
        self.end();
    }
}

/// Layers that follow one another on a device.
struct Run<'a> {
    device: &'a Device,
    layers: Vec<&'a StateLayer>,
}

impl Run<'_> {
    fn values(&self, len: usize) -> usize {
        self.layers.iter().map(|layer| parts::values(layer.shape(), len)).sum()
    }

    /// Memory beside the slots; the same of each snapshot.
    fn beside(&self, len: usize) -> Result<Tensor> {
        let whole = self.device.scratch(DType::F32, &[self.values(LARGEST)])?;
        Ok(whole.narrow(0, 0, self.values(len))?)
    }

    /// Copies all parts to what lies beside, or back.
    fn move_on_device(&self, slot: usize, len: usize, beside: &Tensor, back: bool) -> Result<()> {
        let mut first = 0;
        for layer in &self.layers {
            for part in parts(layer.shape(), len) {
                let own = beside.narrow(0, first, part.values())?;
                part.move_on_device(layer, slot, &own, back)?;
                first += part.values();
            }
        }
        Ok(())
    }

    fn copy_out(&self, slot: usize, len: usize) -> Result<Later<f32>> {
        if self.device.runs_behind() {
            let beside = self.beside(len)?;
            self.move_on_device(slot, len, &beside, false)?;
            return Ok(beside.read_aside()?);
        }
        let mut values = Vec::with_capacity(self.values(len));
        for layer in &self.layers {
            for part in parts(layer.shape(), len) {
                part.copy_out(layer, slot, &mut values)?;
            }
        }
        Ok(values.into())
    }

    fn copy_in(&self, slot: usize, len: usize, values: &[f32]) -> Result<()> {
        if self.device.runs_behind() {
            let beside = self.beside(len)?;
            beside.write_f32(values)?;
            return self.move_on_device(slot, len, &beside, true);
        }
        let mut rest = values;
        for layer in &self.layers {
            for part in parts(layer.shape(), len) {
                let (own, others) = rest.split_at(part.values());
                part.copy_in(layer, slot, own)?;
                rest = others;
            }
        }
        Ok(())
    }
}

impl Caches {
    /// Copies out what a slot holds behind the first `len` tokens of its sequence: those that it has, or fewer by no
    /// more than the rollback. A card does so behind what was called before, and beside what is called then.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such slot, or no memory.
    pub fn snapshot(&self, slot: u32, len: usize) -> Result<Snapshot> {
        self.copying().end();
        let runs = self.runs();
        let count = runs.iter().map(|run| run.values(len)).sum();
        let mut coming = Vec::with_capacity(runs.len());
        for run in &runs {
            match run.copy_out(slot as usize, len) {
                Ok(values) => coming.push(values),
                Err(fault) => {
                    // The others' end comes first, as always.
                    let _ = Values::coming(coming).get().map(<[f32]>::len);
                    return Err(fault);
                }
            }
        }
        let values = Arc::new(Values::coming(coming));
        self.copying().begin(&values);
        Ok(Snapshot { len, count, values })
    }

    /// Fills a slot, so that a sequence goes on in it from behind the snapshot's tokens. None of those can be rolled
    /// back.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no such slot, [`Error::Snapshot`] when the snapshot is of other caches.
    pub fn restore(&mut self, snapshot: &Snapshot, slot: u32) -> Result<()> {
        self.copying().end();
        let runs = self.runs();
        let (len, expected) = (snapshot.len, runs.iter().map(|run| run.values(snapshot.len)).sum());
        if snapshot.count != expected {
            return Err(Error::Snapshot { len, values: snapshot.count, expected });
        }
        let mut rest = snapshot.values()?;
        for run in runs {
            let (own, others) = rest.split_at(run.values(len));
            run.copy_in(slot as usize, len, own)?;
            rest = others;
        }
        Ok(())
    }

    fn states(&self) -> impl Iterator<Item = &StateLayer> {
        self.layers().iter().filter_map(|layer| match layer {
            CacheLayer::State(state) => Some(state),
            CacheLayer::Kv(_) => None,
        })
    }

    /// All recurrent layers, in order.
    fn runs(&self) -> Vec<Run<'_>> {
        let mut runs: Vec<Run> = Vec::new();
        for layer in self.states() {
            let device = layer.matrix().device();
            match runs.last_mut().filter(|run| run.device.same(device)) {
                Some(run) => run.layers.push(layer),
                None => runs.push(Run { device, layers: vec![layer] }),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use gruff_kernels::{Activations, KvDtype, StateShape};

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

    fn values(snapshot: &Snapshot) -> Vec<f32> {
        snapshot.values().unwrap().to_vec()
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
            assert!(values(&taken).iter().zip(&values(&other)).all(|(a, b)| a != b), "another slot's");
            caches.restore(&taken, 2).unwrap();
            for slot in [2, 1] {
                assert_eq!(values(&caches.snapshot(slot, len).unwrap()), values(&taken));
            }
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
            values(&caches.snapshot(0, len).unwrap())
        });
        assert_eq!(narrow, wide);
    }

    #[test]
    fn a_snapshot_of_other_caches_is_refused() {
        let mut caches = caches(0);
        let (len, count) = (70, 7);
        let other = Snapshot { len, count, values: Arc::new(Values::here(vec![0.0; count])) };
        let message = caches.restore(&other, 0).unwrap_err().to_string();
        assert!(message.contains("70 tokens") && message.contains("7 values"), "{message}");
        assert!(Snapshot::from_values(&plan(), len, vec![0.0; count]).is_err());
        let taken = caches.snapshot(0, len).unwrap();
        let again = Snapshot::from_values(&plan(), len, values(&taken)).unwrap();
        assert_eq!((again.len(), values(&again)), (len, values(&taken)));
        assert!(caches.snapshot(3, len).is_err(), "no such slot");
    }
}
