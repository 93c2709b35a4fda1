//! How fast products with packed weights, attention and the delta rule are on an NVIDIA card.
//!
//! `cargo run --release -p gruff-kernels --example cuda_speed [-- [--columns N,N..] [--shape ROWSxCOLS,..] TYPE.. attention delta floats norms small]`
//! prints, for each type and shape of matrix, microseconds a product for each number of columns, and with them gigabytes
//! of weights a second (few columns) or tera-operations a second, two for a multiply-add (many). Matrices are taken in
//! turn, more of them than caches hold; the time is the host's around many products, so that a product which is over
//! before the next can be launched shows the time of a launch. `4x` is one launch of four matrices.
//! `attention`, `delta`, `norms` and `small` print microseconds of a layer's operations in the sizes of Qwen3.5's 4B, `floats` those
//! of products with matrices that are not packed.

mod floats;
mod layers;

use std::error::Error;
use std::time::Instant;

use gruff_blocks::{BlockType, synthetic};
use gruff_kernels::matmul::{Projection, linear, linear_many};
use gruff_kernels::{Activation, CudaOptions, DType, Device, PackedTensor, Tensor};

const TYPES: &str = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S \
                     IQ4_NL IQ4_XS MXFP4 NVFP4 F16 BF16 F32";
/// Bytes of matrices that are taken in turn.
const BYTES: usize = 256 << 20;
/// Seconds that a measurement takes, three times over.
const SECONDS: f64 = 0.02;

struct Arguments {
    columns: Vec<usize>,
    shapes: Vec<(usize, usize)>,
    types: Vec<BlockType>,
    layers: Vec<layers::Kind>,
    floats: bool,
}

fn parse() -> Result<Arguments, Box<dyn Error>> {
    let mut parsed = Arguments {
        columns: vec![1, 2, 4, 8, 16, 64, 512, 2048],
        shapes: Vec::new(),
        types: Vec::new(),
        layers: Vec::new(),
        floats: false,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--columns" => {
                let list = rest.next().ok_or("--columns needs numbers")?;
                parsed.columns = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--shape" => {
                for shape in rest.next().ok_or("--shape needs ROWSxCOLS")?.split(',') {
                    let (rows, cols) = shape.split_once('x').ok_or("a shape is ROWSxCOLS")?;
                    parsed.shapes.push((rows.parse()?, cols.parse()?));
                }
            }
            "attention" => parsed.layers.push(layers::Kind::Attention),
            "delta" => parsed.layers.push(layers::Kind::Delta),
            "norms" => parsed.layers.push(layers::Kind::Norms),
            "floats" => parsed.floats = true,
            "small" => parsed.layers.push(layers::Kind::Small),
            name => parsed.types.push(name.parse()?),
        }
    }
    if parsed.shapes.is_empty() {
        parsed.shapes = vec![(14336, 4096), (4096, 14336)];
    }
    if parsed.types.is_empty() && parsed.layers.is_empty() && !parsed.floats {
        parsed.types = TYPES.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    }
    Ok(parsed)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = parse()?;
    let device = Device::cuda(0, CudaOptions::default())?;
    println!("{}", device.name());
    for kind in &arguments.layers {
        layers::print(&device, *kind)?;
    }
    if arguments.floats {
        floats::print(&device)?;
    }
    for block_type in &arguments.types {
        for (rows, cols) in &arguments.shapes {
            let matrices = matrices(&device, *block_type, *rows, *cols)?;
            print!("{:8} {rows}x{cols}", block_type.name());
            for columns in &arguments.columns {
                let bench = Bench::new(&device, &matrices, *rows, *cols, *columns)?;
                print!("  {columns}: {}", bench.line(1)?);
                if *columns == 1 {
                    print!("  4x: {}", bench.line(4)?);
                }
            }
            println!();
        }
    }
    Ok(())
}

/// Copies of a matrix of random blocks, the same few over and over.
fn matrices(
    device: &Device,
    block_type: BlockType,
    rows: usize,
    cols: usize,
) -> Result<Vec<PackedTensor>, Box<dyn Error>> {
    let bytes = rows * block_type.row_bytes(cols)?;
    let some = synthetic::random_blocks(block_type, (1 << 20) / block_type.values() + 1, 1);
    let packed: Vec<u8> = some.iter().copied().cycle().take(bytes).collect();
    let copies = (BYTES / bytes).clamp(4, 32);
    (0..copies).map(|_| Ok(PackedTensor::from_bytes(device, &packed, block_type, [1, rows, cols])?)).collect()
}

/// Seconds of an operation that writes to `out`, `[.., ..]`.
fn seconds(
    out: &Tensor,
    mut operation: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut launch = |times: usize| -> Result<f64, Box<dyn Error>> {
        let begin = Instant::now();
        for _ in 0..times {
            operation()?;
        }
        out.narrow(0, 0, 1)?.narrow(1, 0, 1)?.to_vec_f32()?;
        Ok(begin.elapsed().as_secs_f64())
    };
    launch(3)?;
    let once = launch(20)? / 20.0;
    let times = ((SECONDS / once) as usize).clamp(10, 4000);
    let runs = (0..3).map(|_| launch(times)).collect::<Result<Vec<_>, _>>()?;
    Ok(runs.into_iter().fold(f64::INFINITY, f64::min) / times as f64)
}

struct Bench<'a> {
    matrices: &'a [PackedTensor],
    x: Activation,
    outs: Vec<Tensor>,
    rows: usize,
    cols: usize,
    columns: usize,
}

impl<'a> Bench<'a> {
    fn new(
        device: &Device,
        matrices: &'a [PackedTensor],
        rows: usize,
        cols: usize,
        columns: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let values: Vec<f32> = (0..columns * cols).map(|i| (i as f32 * 0.7391).sin() * 1.5).collect();
        let x = Activation::new(&device.tensor_f32(&values, &[columns, cols])?)?;
        let outs = (0..4).map(|_| device.zeros(DType::F32, &[columns, rows])).collect::<Result<_, _>>()?;
        Ok(Self { matrices, x, outs, rows, cols, columns })
    }

    /// Seconds of one launch of `together` matrices.
    fn seconds(&self, together: usize) -> Result<f64, Box<dyn Error>> {
        let mut next = 0;
        seconds(&self.outs[0], || {
            let matrix = |i: usize| &self.matrices[(next + i) % self.matrices.len()];
            if together == 1 {
                linear(&self.x, matrix(0), None, &self.outs[0])?;
            } else {
                let projections: Vec<Projection> = (0..together)
                    .map(|i| Projection { weight: matrix(i), bias: None, out: &self.outs[i] })
                    .collect();
                linear_many(&self.x, &projections)?;
            }
            next += together;
            Ok(())
        })
    }

    fn line(&self, together: usize) -> Result<String, Box<dyn Error>> {
        let seconds = self.seconds(together)?;
        let micros = seconds * 1e6;
        Ok(if self.columns <= 8 {
            let bytes = together * self.matrices[0].packed_bytes();
            format!("{micros:.1} us {:.0} GB/s", bytes as f64 / seconds / 1e9)
        } else {
            let operations = 2.0 * (together * self.rows * self.cols * self.columns) as f64;
            format!("{micros:.0} us {:.0} T/s", operations / seconds / 1e12)
        })
    }
}
