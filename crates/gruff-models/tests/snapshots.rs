//! Recurrent state goes out of a card and back as it does in the host's memory; where there is a card (or what stands in for
//! one, `tools/emulator`, which with CUDA_EMULATOR_LATE=1 copies as late as a card may).

use gruff_kernels::{Activations, CudaError, CudaOptions, Device, Error, Family, KvDtype, StateShape};
use gruff_models::{CacheLayer, CacheOptions, CachePlan, Caches, LayerCache, Snapshot};

const LAYERS: usize = 3;

/// The card.
fn card() -> Option<Device> {
    match Device::cuda(0, CudaOptions::default()) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ CudaError::NoDriver { .. })) => {
            eprintln!("no state is copied here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn caches(device: &Device, rollback: usize) -> Caches {
    let shape = StateShape {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 48,
        conv_kernel: 4,
        conv_channels: 256,
        rollback: 0,
    };
    let plan = CachePlan::new(vec![LayerCache::State(shape); LAYERS]);
    let options = CacheOptions { kv_dtype: KvDtype::F16, pages: 0, slots: 3, rollback };
    Caches::new(device, &plan, &options).expect("there is memory")
}

/// Every value of the state tells where it lies: in which layer, tensor, slot and place.
fn number(caches: &Caches, sign: f32) {
    for (index, layer) in caches.layers().iter().enumerate() {
        let CacheLayer::State(layer) = layer else { continue };
        let pools = [layer.matrix(), layer.keys(), layer.updates(), layer.decays(), layer.conv()];
        for (kind, pool) in pools.into_iter().enumerate() {
            let value = |at: usize| sign * ((at * 5 + kind) * LAYERS + index) as f32;
            pool.write_f32(&(0..pool.len()).map(value).collect::<Vec<f32>>()).expect("it is written");
        }
    }
}

fn values(snapshot: &Snapshot) -> Vec<f32> {
    snapshot.values().expect("they come").to_vec()
}

#[test]
fn a_card_keeps_what_the_host_keeps() {
    let Some(device) = card() else { return };
    let host = Device::reference(Activations::F32);
    for (rollback, len) in [(0, 1), (0, 64), (0, 139), (8, 127), (8, 200), (64, 300)] {
        let mut own = caches(&device, rollback);
        let mut other = caches(&host, rollback);
        number(&own, 1.0);
        number(&other, 1.0);
        // Both are taken before anybody waits for one, and the slots go on.
        let taken = [0, 2].map(|slot| own.snapshot(slot, len).expect("it is taken"));
        number(&own, -1.0);
        let expected = [0, 2].map(|slot| other.snapshot(slot, len).expect("it is taken"));
        for (taken, expected) in taken.iter().zip(&expected) {
            assert_eq!(values(taken), values(expected), "{len} tokens, rollback {rollback}");
        }
        number(&other, -1.0);
        own.restore(&taken[1], 1).expect("it is put back");
        other.restore(&expected[1], 1).expect("it is put back");
        own.copy_slot(1, 0).expect("it is copied");
        other.copy_slot(1, 0).expect("it is copied");
        for layers in own.layers().iter().zip(other.layers()) {
            let (CacheLayer::State(own), CacheLayer::State(other)) = layers else { continue };
            for (own, other) in [
                (own.matrix(), other.matrix()),
                (own.keys(), other.keys()),
                (own.updates(), other.updates()),
                (own.decays(), other.decays()),
                (own.conv(), other.conv()),
            ] {
                assert_eq!(own.to_vec_f32().unwrap(), other.to_vec_f32().unwrap());
            }
        }
    }
}

#[test]
fn a_snapshot_takes_a_copy_a_part_and_no_wait() {
    let Some(device) = card() else { return };
    let caches = caches(&device, 0);
    device.profile(true);
    // Behind 11 rows of each of 6 heads.
    let taken = caches.snapshot(1, 139).expect("it is taken");
    let counted = device.take_profile();
    device.profile(false);
    assert_eq!(taken.bytes(), values(&taken).len() * 4);
    let calls = |family| counted.iter().filter(|op| op.family == family).map(|op| op.calls).sum::<u64>();
    // A ring of inputs may be cut once.
    assert!((5..=6).contains(&(calls(Family::Elementwise) / LAYERS as u64)), "{counted:?}");
    assert_eq!(calls(Family::Transfer), 1, "{counted:?}");
}
