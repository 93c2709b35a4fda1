//! Products with plain floats in the sizes of Qwen3.5: the router of 35B-A3B and a feed-forward's matrix of 4B. Up to 32 columns are
//! a replayed recording of [`REPEATS`] products, more are timed by the host. The input is a new one for each product, so that
//! making its terms is within the time; `shared` is without.

use std::error::Error;

use gruff_blocks::BlockType;
use gruff_kernels::matmul::linear;
use gruff_kernels::{Activation, DType, Device, PackedTensor, Recordings, Tensor};

use super::{layers, matrices, seconds};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Products of a recording.
const REPEATS: usize = 20;
/// The most columns that are recorded.
const RECORDED: usize = 32;
const COLUMNS: [usize; 5] = [1, 8, 32, 512, 4096];
const CASES: [(BlockType, usize, usize); 4] = [
    (BlockType::F32, 256, 2048),
    (BlockType::F16, 9216, 2560),
    (BlockType::BF16, 9216, 2560),
    (BlockType::F32, 9216, 2560),
];

/// Prints the times, a line each.
pub(crate) fn print(device: &Device) -> Outcome<()> {
    for (block_type, rows, cols) in CASES {
        let weights = matrices(device, block_type, rows, cols)?;
        for columns in COLUMNS {
            let x = layers::tensor(device, &[columns, cols], 1.5)?;
            let all = time(device, &weights, &x)?;
            let name = block_type.name();
            print!("linear {name} {rows}x{cols} x {columns}: {:.1} us", all * 1e6);
            if columns <= RECORDED {
                println!(", {:.0} GB/s", weights[0].packed_bytes() as f64 / all / 1e9);
                continue;
            }
            let activation = Activation::new(&x)?;
            let out = device.zeros(DType::F32, &[columns, rows])?;
            let mut next = 0;
            let shared = seconds(&out, || {
                next += 1;
                Ok(linear(&activation, &weights[next % weights.len()], None, &out)?)
            })?;
            let operations = (rows * cols * columns) as f64;
            println!(", shared {:.1} us, {:.0} T multiply-adds/s", shared * 1e6, operations / shared / 1e12);
        }
    }
    Ok(())
}

/// Seconds of a product with an input of its own.
fn time(device: &Device, weights: &[PackedTensor], x: &Tensor) -> Outcome<f64> {
    let shape = [x.shape()[0], weights[0].rows()];
    let product = |i: usize| -> Outcome<Tensor> {
        let out = device.scratch(DType::F32, &shape)?;
        linear(&Activation::new(x)?, &weights[i % weights.len()], None, &out)?;
        Ok(out)
    };
    if shape[0] > RECORDED {
        let (read, mut next) = (device.zeros(DType::F32, &[1, 1])?, 0);
        return seconds(&read, || {
            next += 1;
            product(next).map(drop)
        });
    }
    let step = layers::step(shape[0], 0, 1)?;
    let (recordings, read) = (Recordings::default(), device.zeros(DType::F32, &[1, 1])?);
    let pass = || (1..REPEATS).try_fold(product(0)?, |_, i| product(i));
    Ok(seconds(&read, || recordings.run(&[device], &step, 0, pass).map(drop))? / REPEATS as f64)
}
