//! Devices that compute together: in the host's memory, and cards through NCCL where there are several (or what stands in for
//! them, `tools/emulator` with CUDA_EMULATOR_DEVICES).

use std::sync::atomic::{AtomicUsize, Ordering};

use gruff_kernels::{
    Activations, Collective, CpuOptions, CudaError, CudaOptions, DType, Device, Error, Rank, Result, Tensor,
};

fn hosts(count: usize) -> Vec<Device> {
    let cpu = || Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() });
    (0..count).map(|_| cpu().expect("the CPU is there")).collect()
}

fn cards(count: usize) -> Option<Vec<Device>> {
    let card = |ordinal| match Device::cuda(ordinal, CudaOptions::default()) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ (CudaError::NoDriver { .. } | CudaError::NoDevice { .. }))) => {
            eprintln!("no {count} cards compute together here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    let devices = (0..count).map(card).collect();
    // The emulator has NCCL.
    match Collective::library() {
        Err(error) if std::env::var_os("CUDA_EMULATOR_DEVICES").is_none() => {
            eprintln!("no cards compute together here: {error}");
            None
        }
        _ => devices,
    }
}

/// Values that depend on the rank, whose sums round differently in another order.
fn values(rank: usize, count: usize) -> Vec<f32> {
    let value =
        |at: usize| ((at * 31 + rank * 17) % 101) as f32 / 7.0 * 10_f32.powi((rank * 5) as i32 % 11 - 5);
    (0..count).map(value).collect()
}

/// What the ranks get of sums and parts put together, on their devices.
fn results(collective: &Collective, count: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let ranks: Vec<Rank> = (0..collective.devices().len()).map(|rank| collective.rank(rank)).collect();
    let own = |rank: Rank| -> Result<(Vec<f32>, Vec<f32>)> {
        let part = rank.device().tensor_f32(&values(rank.rank(), count), &[count / 4, 4])?;
        let whole = rank.device().scratch(DType::F32, &[rank.of() * count])?;
        rank.all_gather(&part, &whole)?;
        let sum = rank.all_reduce(&part)?;
        assert_eq!(sum.shape(), part.shape());
        // Again, with what the first gave.
        let twice = rank.all_reduce(&copy(&sum)?)?;
        assert_eq!(twice.to_vec_f32()?.len(), count);
        Ok((sum.to_vec_f32()?, whole.to_vec_f32()?))
    };
    collective.run(ranks, own).expect("all ranks come")
}

fn copy(tensor: &Tensor) -> Result<Tensor> {
    tensor.device().tensor_f32(&tensor.to_vec_f32()?, tensor.shape())
}

fn check(devices: &[Device]) {
    let collective = Collective::new(devices).expect("they can be put together");
    for count in [4, 64, 1000] {
        let whole: Vec<f32> = (0..devices.len()).flat_map(|rank| values(rank, count)).collect();
        let sum = |at: usize| (1..devices.len()).fold(whole[at], |sum, rank| sum + whole[rank * count + at]);
        let sums: Vec<f32> = (0..count).map(sum).collect();
        for (own_sums, own_whole) in results(&collective, count) {
            assert_eq!(own_whole, whole, "{} devices, {count} values", devices.len());
            assert_eq!(own_sums, sums, "{} devices, {count} values", devices.len());
        }
    }
}

#[test]
fn ranks_get_sums_in_their_order_and_parts_put_together() {
    for count in 2..5 {
        check(&hosts(count));
    }
    check(&[Device::reference(Activations::F32), Device::reference(Activations::F32)]);
}

#[test]
fn card_ranks_get_sums_in_their_order_and_parts_put_together() {
    for count in 2..4 {
        let Some(devices) = cards(count) else { return };
        check(&devices);
    }
}

/// One rank fails, early or late: the others end, its error is told, and the next step is computed.
fn fail(devices: &[Device]) {
    let collective = Collective::new(devices).expect("they can be put together");
    for (failing, at) in [(0, 0), (1, 0), (1, 2)] {
        let seen = AtomicUsize::new(0);
        let ranks: Vec<Rank> = (0..devices.len()).map(|rank| collective.rank(rank)).collect();
        let error = collective
            .run(ranks, |rank| -> Result<()> {
                for round in 0..4 {
                    if (rank.rank(), round) == (failing, at) {
                        let what = "this one breaks".to_owned();
                        return Err(Error::Value { op: "test", what });
                    }
                    let own = rank.device().tensor_f32(&[1.0, 2.0], &[2])?;
                    rank.all_reduce(&own).inspect_err(|error| {
                        assert!(matches!(error, Error::Rank { rank, .. } if *rank == failing), "{error}");
                        seen.fetch_add(1, Ordering::Relaxed);
                    })?;
                }
                Ok(())
            })
            .expect_err("one breaks");
        assert!(error.to_string().contains("this one breaks"), "{error}");
        assert_eq!(seen.into_inner(), devices.len() - 1, "all others end");
        assert!(devices.iter().all(|device| device.lost().is_none()));
        check(devices);
    }
}

#[test]
fn a_rank_that_fails_ends_the_step_of_all() {
    fail(&hosts(3));
}

#[test]
fn a_card_that_fails_ends_the_step_of_all() {
    if let Some(devices) = cards(2) {
        fail(&devices);
    }
}

#[test]
fn a_rank_that_panics_leaves_nobody_waiting() {
    let devices = hosts(2);
    let collective = Collective::new(&devices).expect("they can be put together");
    let ranks: Vec<Rank> = (0..2).map(|rank| collective.rank(rank)).collect();
    let run = || {
        collective.run(ranks, |rank| {
            assert!(rank.rank() == 0, "on purpose");
            rank.all_reduce(&rank.device().tensor_f32(&[1.0], &[1])?)
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    check(&devices);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let [a, b] = [0, 1].map(|_| hosts(1).remove(0));
    let told = |devices: &[Device]| Collective::new(devices).err().expect("refused").to_string();
    assert!(told(&[]).contains("two devices"));
    assert!(told(std::slice::from_ref(&a)).contains("two devices"));
    let collective = Collective::new(&[a.clone(), b.clone()]).expect("they can be put together");
    let unequal = collective.run((0..2).map(|rank| collective.rank(rank)).collect(), |rank| {
        let count = 1 + rank.rank();
        rank.all_reduce(&rank.device().tensor_f32(&vec![1.0; count], &[count])?)
    });
    assert!(unequal.expect_err("different lengths").to_string().contains("different things"));
    let strange = collective.rank(0).all_reduce(&b.tensor_f32(&[1.0], &[1]).expect("there is memory"));
    assert!(matches!(strange, Err(Error::Device { .. })));
    let whole = a.zeros(DType::F32, &[3]).expect("there is memory");
    let part = a.zeros(DType::F32, &[2]).expect("there is memory");
    assert!(matches!(collective.rank(0).all_gather(&part, &whole), Err(Error::Shape { .. })));
    assert!(collective.run(vec![1], |_| Ok::<_, Error>(())).is_err(), "one part for two ranks");
    let Some(mut mixed) = cards(1) else { return };
    mixed.push(a);
    assert!(told(&mixed).contains("cards alone"));
}
