//! What a card's memory is taken for, counted by the driver of `tools/emulator`; tools/checks/cuda_emulated.sh runs it with a file
//! for faults on demand.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use gruff_blocks::{BlockType, synthetic::random_blocks};
use gruff_kernels::{
    Activation, CudaOptions, DType, Device, Error, PackedTensor, Recordings, Step, StepSequence, Tensor,
    cuda, matmul,
};

/// The emulated card, which is nobody else's as long as the guard lives, and no faults.
struct Card {
    device: Device,
    faults: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Card {
    fn new() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let faults = PathBuf::from(std::env::var_os("CUDA_EMULATOR_FAULTS")?);
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = Device::cuda(0, CudaOptions::default()).expect("the emulator is there");
        let card = Self { device, faults, _alone: alone };
        card.no_limit();
        Some(card)
    }

    /// From now on there is no memory beside what is taken.
    fn limit(&self) {
        self.wish(&format!("memory {}", self.all() - self.free()));
    }

    fn no_limit(&self) {
        self.wish("");
    }

    fn wish(&self, faults: &str) {
        // Files are told apart by their times.
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&self.faults, faults).expect("a file");
    }

    /// What the card has, whoever holds it.
    fn all(&self) -> usize {
        cuda::cards().expect("a card")[0].memory_bytes
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
        let out = device.scratch(DType::F32, &[columns, shape[0]]).expect("it fits");
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

/// A matrix with which products of many columns take more memory beside tensors than with fewer; and its result.
struct Product {
    weight: PackedTensor,
    x: Activation,
    out: Tensor,
}

impl Product {
    fn new(device: &Device, shape: [usize; 2], columns: usize) -> Self {
        let (weight, x) = operands(device, shape, columns);
        // The form of x that products read is made with a matrix whose products take nothing beside.
        let (long, _) = operands(device, [4096, shape[1]], 1);
        let out = device.zeros(DType::F32, &[columns, 4096]).expect("it fits");
        matmul::linear(&x, &long, None, &out).expect("it runs");
        let out = device.zeros(DType::F32, &[columns, shape[0]]).expect("it fits");
        Self { weight, x, out }
    }

    fn run(&self) -> Result<(), Error> {
        matmul::linear(&self.x, &self.weight, None, &self.out)
    }

    fn bits(&self) -> Vec<u32> {
        self.out.to_vec_f32().expect("it comes back").into_iter().map(f32::to_bits).collect()
    }

    /// Bytes that it takes.
    fn beside(&self) -> usize {
        let shape = [self.weight.rows(), self.weight.cols()];
        self.weight.device().product_bytes(self.weight.block_type(), shape, self.x.rows())
    }
}

#[test]
fn an_operation_that_finds_no_memory_has_what_is_kept() {
    let Some(card) = Card::new() else { return };
    let device = &card.device;
    let shape = [72, 1280];
    let [few, many] = [17, 64].map(|columns| Product::new(device, shape, columns));
    assert!(0 < few.beside() && few.beside() < many.beside());
    let expected = [&few, &many].map(|product| {
        let other =
            Product::new(&Device::cuda(0, CudaOptions::default()).expect("a card"), shape, product.x.rows());
        other.run().expect("there is memory");
        other.bits()
    });

    // What an operation has kept for the next one of its size.
    many.run().expect("there is memory");
    card.limit();
    few.run().expect("what another operation took is given back");
    assert!(few.bits() == expected[0]);
    // Scratch memory.
    card.no_limit();
    drop(device.scratch(DType::F32, &[1 << 20]).expect("there is memory"));
    card.limit();
    many.run().expect("what was scratch memory is given back");
    assert!(many.bits() == expected[1]);

    // Neither is there now.
    card.no_limit();
    let large = Product::new(device, [140, 2560], 64);
    drop(device.zeros(DType::F32, &[1 << 50]));
    card.limit();
    let told = large.run().expect_err("there is no memory");
    assert!(matches!(&told, Error::OutOfMemory { .. }), "{told}");
    assert!(device.lost().is_none());
    card.no_limit();
    large.run().expect("there is memory again");
    many.run().expect("there is memory again");
    assert!(many.bits() == expected[1]);
}

#[test]
fn weights_that_find_no_memory_have_what_is_kept() {
    let Some(card) = Card::new() else { return };
    let device = &card.device;
    let packed = random_blocks(BlockType::Q4_K, 1024, 3);
    for block_type in [BlockType::Q4_K, BlockType::F32] {
        drop(device.scratch(DType::F32, &[1 << 20]).expect("there is memory"));
        card.limit();
        let cols = packed.len() / block_type.bytes() * block_type.values() / 4;
        let weight = PackedTensor::from_bytes(device, &packed, block_type, [1, 4, cols]);
        weight.expect("scratch memory is given back");
        card.no_limit();
    }
}

#[test]
fn recordings_give_way_to_an_operation_and_are_made_anew() {
    let Some(card) = Card::new() else { return };
    let device = &card.device;
    let small = Product::new(device, [72, 1280], 64);
    let large = Product::new(device, [144, 1280], 64);
    small.run().expect("there is memory");
    large.run().expect("there is memory");
    let expected = [small.bits(), large.bits()];
    let recordings = Recordings::default();
    let step = || {
        let part = StepSequence { len: 1, past: 0, slot: 0, pages: vec![0] };
        let step = Step::text(vec![1], vec![part]).expect("sound");
        let out = recordings.run(&[device], &step, 1, || -> Result<Tensor, Error> {
            let out = device.scratch(DType::F32, small.out.shape())?;
            matmul::linear(&small.x, &small.weight, None, &out)?;
            Ok(out)
        });
        out.expect("it runs").to_vec_f32().expect("it comes back")
    };
    for _ in 0..2 {
        // Nothing is kept from before.
        drop(device.zeros(DType::F32, &[1 << 50]));
        small.run().expect("there is memory");
        for _ in 0..3 {
            assert!(step().into_iter().map(f32::to_bits).eq(expected[0].iter().copied()));
        }
        assert!(format!("{recordings:?}").starts_with("1 recordings"));
        // What an operation kept is half of what is needed, and recordings have as much.
        assert_eq!(large.beside(), 2 * small.beside());
        card.limit();
        large.run().expect("recordings give way");
        assert!(large.bits() == expected[1]);
        card.no_limit();
    }
    assert!(step().into_iter().map(f32::to_bits).eq(expected[0].iter().copied()));
}
