//! Products with packed weights on all cores, beside what the machine could do at most:
//! `cargo bench -p gruff-kernels --bench matmul [-- TYPE]`.
//!
//! Few columns read weights from memory, so their bytes are what counts; many columns multiply weights that the caches hold.
//! The example `matmul_speed` makes one table of the same.

mod ceilings;

use std::time::Duration;

use ceilings::{Ceilings, Work};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gruff_blocks::{BlockType, synthetic};
use gruff_kernels::matmul::linear;
use gruff_kernels::{Activation, CpuOptions, DType, Device, PackedTensor, Result, Tensor};

/// Bytes of weights for few columns: more than the caches hold.
const BYTES: usize = 128 << 20;

/// The types of the presets that people use most, and floats.
const TYPES: [BlockType; 9] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q8_0,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::IQ4_XS,
    BlockType::F16,
    BlockType::F32,
];

struct Case {
    weight: PackedTensor,
    x: Tensor,
    out: Tensor,
    bytes: usize,
}

impl Case {
    fn new(device: &Device, block_type: BlockType, [rows, cols, tokens]: [usize; 3]) -> Result<Self> {
        let packed = synthetic::random_blocks(block_type, rows * cols / block_type.values(), 1);
        let values: Vec<f32> = (0..tokens * cols).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
        Ok(Self {
            weight: PackedTensor::from_bytes(device, &packed, block_type, [1, rows, cols])?,
            x: device.tensor_f32(&values, &[tokens, cols])?,
            out: device.zeros(DType::F32, &[tokens, rows])?,
            bytes: packed.len(),
        })
    }

    fn run(&self) -> Result<()> {
        linear(&Activation::new(&self.x)?, &self.weight, None, &self.out)
    }
}

fn benches_of_types(c: &mut Criterion) {
    let ceilings = Ceilings::measure();
    let device = Device::cpu(CpuOptions::default()).expect("the CPU");
    for block_type in TYPES {
        let mut group = c.benchmark_group(format!("linear {block_type}"));
        let cols = 2048;
        let rows = BYTES / block_type.row_bytes(cols).expect("whole blocks");
        let few = [1, 2, 4, 8].map(|tokens| [rows, cols, tokens]);
        let many = [16, 64, 512].map(|tokens| [1024, 1024, tokens]);
        for shape in few.into_iter().chain(many) {
            let case = Case::new(&device, block_type, shape).expect("memory");
            let [rows, cols, tokens] = shape;
            let work =
                Work { bytes: case.bytes, products: rows * cols * tokens, int8: !block_type.is_scalar() };
            ceilings.bench(&mut group, BenchmarkId::new("columns", tokens), work, || case.run());
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = benches_of_types
}
criterion_main!(benches);
