//! Values come back from a card as they went there, whichever way they take; where there is a card (or what stands in for
//! one, `tools/emulator`, which with CUDA_EMULATOR_LATE=1 copies as late as a card may).

use std::sync::Arc;

use gruff_kernels::conformance::Values;
use gruff_kernels::{Activations, CudaError, CudaOptions, DType, Device, Error, elementwise};

/// The card.
fn card() -> Option<Device> {
    match Device::cuda(0, CudaOptions::default()) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ CudaError::NoDriver { .. })) => {
            eprintln!("nothing is copied here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Bytes that differ at every place where pieces might be mistaken for each other.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut values = Values::new(seed);
    let words = (0..count.div_ceil(8)).flat_map(|_| (values.bits() & 0x3f7f_ffff_3f7f_ffff).to_le_bytes());
    words.take(count).collect()
}

#[test]
fn bytes_come_back_as_they_went() {
    let Some(device) = card() else { return };
    // Below, at and above the sizes where copies take another way, and where a piece ends.
    let sizes = [4, 60 << 10, 64 << 10, 1 << 20, (1 << 20) + 4, 4 << 20, (4 << 20) + 4, (37 << 20) + 12];
    // One behind the other, nobody waits in between, and their owners are gone.
    let mut sent = Vec::new();
    for (seed, size) in sizes.into_iter().chain(sizes).enumerate() {
        let owner = Arc::new(bytes(seed as u64, size));
        let tensor = device.from_foreign(owner, 0, DType::F32, &[size / 4]).expect("there is memory");
        sent.push((seed, size, tensor));
    }
    for (seed, size, tensor) in sent {
        let got: Vec<u8> =
            tensor.to_vec_f32().expect("it comes back").into_iter().flat_map(f32::to_le_bytes).collect();
        let expected = bytes(seed as u64, size);
        let first = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        assert_eq!((got.len(), first), (size, None), "{size} bytes");
    }
}

#[test]
fn values_copied_aside_are_those_of_the_call() {
    let Some(device) = card() else { return };
    const PIECE: usize = 1 << 20;
    let sizes = [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7];
    let number = |size: usize, at: usize| (size % 1000 * 4096 + at % 4093) as f32;
    let mut coming = Vec::new();
    for size in sizes.into_iter().chain(sizes) {
        let values: Vec<f32> = (0..size).map(|at| number(size, at)).collect();
        let tensor = device.scratch(DType::F32, &[1, size]).expect("there is memory");
        tensor.write_f32(&values).expect("they are written");
        // What the card is told then goes on beside the copy, in memory that is nobody's else.
        let later = tensor.read_aside().expect("a copy begins");
        drop(tensor);
        let other = device.scratch(DType::F32, &[1, size]).expect("there is memory");
        elementwise::scale(&other, 0.0).expect("it goes on");
        coming.push((size, later));
    }
    // One that nobody waits for.
    drop(coming.remove(3));
    for (size, later) in coming.into_iter().rev() {
        let got = later.wait().expect("they come");
        let first = got.iter().enumerate().position(|(at, value)| *value != number(size, at));
        assert_eq!((got.len(), first), (size, None));
    }
    let none = device.zeros(DType::F32, &[0, 3]).expect("nothing is taken");
    assert!(none.read_aside().expect("nothing is copied").wait().expect("nothing comes").is_empty());
}

#[test]
fn a_card_copies_its_own_memory() {
    let Some(device) = card() else { return };
    let values: Vec<u8> = bytes(7, 3 * 5000);
    let pool = device.zeros(DType::U8, &[4, 5000]).expect("there is memory");
    let rows = |first| pool.narrow(0, first, 1).expect("it is there");
    pool.narrow(0, 0, 3).expect("they are there").write_u8(&values).expect("they are written");
    rows(3).copy_from(&rows(1)).expect("it is copied");
    rows(1).copy_from(&rows(0)).expect("it is copied");
    let expected = [&values[..5000], &values[..5000], &values[10_000..], &values[5000..10_000]].concat();
    assert_eq!(pool.to_vec_u8().expect("it comes back"), expected);
    let other = Device::reference(Activations::F32).zeros(DType::U8, &[1, 5000]).expect("there is memory");
    other.copy_from(&rows(3)).expect("it is copied");
    assert_eq!(other.to_vec_u8().expect("it is here"), &values[5000..10_000]);
    assert!(matches!(rows(1).copy_from(&pool), Err(Error::Shape { .. })));
    assert!(matches!(rows(1).copy_from(&rows(1)), Err(Error::Alias { .. })));
    let halves = device.zeros(DType::F16, &[1, 5000]).expect("there is memory");
    assert!(matches!(rows(1).copy_from(&halves), Err(Error::DType { .. })));
}
