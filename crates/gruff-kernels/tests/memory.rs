//! What a card's memory is taken for, counted by the driver of `tools/emulator`; tools/checks/cuda_emulated.sh runs it with a file
//! for faults on demand.

use std::sync::{Mutex, MutexGuard};

use gruff_blocks::{BlockType, synthetic::random_blocks};
use gruff_kernels::{Activation, CudaOptions, Device, PackedTensor, matmul};

/// The emulated card, which is nobody else's as long as the guard lives, and no faults.
struct Card {
    device: Device,
    _alone: MutexGuard<'static, ()>,
}

impl Card {
    fn new() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        std::env::var_os("CUDA_EMULATOR_FAULTS")?;
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = Device::cuda(0, CudaOptions::default()).expect("the emulator is there");
        Some(Self { device, _alone: alone })
    }

    fn free(&self) -> usize {
        self.device.free_bytes().expect("it tells")
    }
}

/// A matrix and an activation of so many rows.
fn operands(device: &Device, [rows, cols]: [usize; 2], columns: usize) -> (PackedTensor, Activation) {
    let blocks = random_blocks(BlockType::Q4_K, rows * cols / BlockType::Q4_K.values(), 3);
    let weight =
        PackedTensor::from_bytes(device, &blocks, BlockType::Q4_K, [1, rows, cols]).expect("it fits");
    let values: Vec<f32> = (0..columns * cols).map(|at| (at % 37) as f32 / 18.0 - 1.0).collect();
    let x = device.tensor_f32(&values, &[columns, cols]).expect("it fits");
    (weight, Activation::new(&x).expect("it is a matrix"))
}

#[test]
fn matrices_and_products_take_what_the_card_says() {
    let Some(card) = Card::new() else { return };
    let device = &card.device;
    for (block_type, shape) in
        [(BlockType::Q4_K, [3, 13, 512]), (BlockType::Q8_0, [1, 8, 96]), (BlockType::F16, [1, 7, 40])]
    {
        let values = shape.iter().product::<usize>() / block_type.values();
        let free = card.free();
        let packed = random_blocks(block_type, values, 5);
        let weight = PackedTensor::from_bytes(device, &packed, block_type, shape).expect("it fits");
        assert_eq!(free - card.free(), device.packed_bytes(block_type, shape).expect("sound"), "{weight:?}");
    }
    let free = card.free();
    let dense = device.tensor_f32(&[1.0; 100], &[100]).expect("it fits");
    assert_eq!(free - card.free(), device.dense_bytes(400));
    drop(dense);

    let shape = [72, 1280];
    for columns in [8, 9, 17, 64] {
        // A pool of its own.
        let device = &Device::cuda(0, CudaOptions::default()).expect("a card");
        let (weight, x) = operands(device, shape, columns);
        let out = device.scratch(gruff_kernels::DType::F32, &[columns, shape[0]]).expect("it fits");
        let (free, allocated) = (card.free(), device.allocated_bytes());
        matmul::linear(&x, &weight, None, &out).expect("it runs");
        // The activation's other form is a tensor of the device.
        let tensors = device.allocated_bytes() - allocated;
        let taken = free - card.free() - tensors;
        let told = device.product_bytes(BlockType::Q4_K, shape, columns);
        assert_eq!(told > 0, columns > 8, "few columns need none");
        assert!((told..told + 8192).contains(&taken), "{columns}: took {taken}, told {told}");
    }
}
