//! How fast products with packed weights are here, against the speed of memory.
//!
//! `cargo run --release -p gruff-kernels --example matmul_speed [-- TYPE...]` prints, for each block type and number of
//! threads: gigabytes of weights a second for 1, 2, 4 and 8 columns (weights larger than the caches, and what share of
//! the measured read bandwidth that is), and billions of multiply-adds a second for 16, 64 and 512 columns.

use std::time::{Duration, Instant};

use gruff_blocks::{BlockType, synthetic};
use gruff_kernels::matmul::linear;
use gruff_kernels::{Activation, Activations, CpuOptions, DType, Device, PackedTensor, bandwidth, compute};

const TYPES: &str = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 F16 BF16 F32";

/// Bytes of weights for one column: more than the caches hold.
const BYTES: usize = 128 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let names = if asked.is_empty() { TYPES.split(' ').map(str::to_owned).collect() } else { asked };
    let all = std::thread::available_parallelism()?.get();
    let mut threads = vec![1, all];
    threads.dedup();
    for threads in threads {
        let ceiling = bandwidth::measure(Some(threads))? / 1e9;
        let options = CpuOptions { threads: Some(threads), activations: Activations::Int8, isa: None };
        let device = Device::cpu(options)?;
        let products = compute::measure(Some(threads))?;
        let bytes = products.int8.map_or("-".to_owned(), |speed| format!("{:.0}", speed / 1e9));
        println!(
            "{}: memory is read at {ceiling:.1} GB/s; {bytes} GMAC/s of int8, {:.0} of f32",
            device.name(),
            products.f32 / 1e9
        );
        for name in &names {
            let block_type: BlockType = name.parse()?;
            let cols = 2048;
            let rows = BYTES / block_type.row_bytes(cols)?;
            print!("{name:8} GB/s");
            for columns in [1, 2, 4, 8] {
                let (speed, _) = measure(&device, block_type, rows, cols, columns)?;
                print!("  {columns}: {speed:5.1} = {:3.0} %", 100.0 * speed / ceiling);
            }
            print!("   GMAC/s");
            for columns in [16, 64, 512] {
                let (_, rate) = measure(&device, block_type, 1024, 1024, columns)?;
                print!("  {columns}: {rate:5.1}");
            }
            println!();
        }
    }
    Ok(())
}

/// Gigabytes of weights and billions of multiply-adds a second, at the least time of some runs: on a machine that does
/// something else besides, the one that waited least for a core.
fn measure(
    device: &Device,
    block_type: BlockType,
    rows: usize,
    cols: usize,
    tokens: usize,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let packed = synthetic::random_blocks(block_type, rows * cols / block_type.values(), 1);
    let weight = PackedTensor::from_bytes(device, &packed, block_type, [1, rows, cols])?;
    let values: Vec<f32> = (0..tokens * cols).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    let x = device.tensor_f32(&values, &[tokens, cols])?;
    let out = device.zeros(DType::F32, &[tokens, rows])?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || (begin.elapsed() < Duration::from_millis(300) && times.len() < 1000) {
        let start = Instant::now();
        linear(&Activation::new(&x)?, &weight, None, &out)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let least = times.into_iter().fold(f64::INFINITY, f64::min);
    Ok((packed.len() as f64 / least / 1e9, (rows * cols * tokens) as f64 / least / 1e9))
}
