//! Writes a GGUF file that has the shape of a Qwen3.5 model (metadata, tensors, block types) and random weights.
//!
//! Speed and memory depend on shapes and types alone, so such a file stands in for a download in benchmarks; the
//! weights are scaled so that activations stay finite and alive through all layers.
//!
//! ```text
//! cargo run --release -p gruff-gguf --example make_shape -- \
//!     --model 0.8B --mix Q4_K_M --vocab ggml-vocab-qwen35.gguf --out qwen35-0.8b-shape-Q4_K_M.gguf
//! ```

mod fill;
mod metadata;
mod mix;
mod shape;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use gruff_gguf::{Gguf, Writer};

use mix::Mix;
use shape::Shape;

/// Write a GGUF file with the shape of a Qwen3.5 model and random weights.
#[derive(Parser)]
struct Arguments {
    /// Which model: 0.8B, 2B, 4B, 9B, 27B or 35B-A3B.
    #[arg(long)]
    model: String,
    /// Q4_K_M (llama-quantize's rule), or a block type for every matrix: Q8_0, Q6_K, IQ4_XS, F16, ..
    #[arg(long, default_value = "Q4_K_M")]
    mix: Mix,
    /// A GGUF file whose tokenizer is taken over; dummy tokens fill it up to the model's vocabulary.
    #[arg(long)]
    vocab: PathBuf,
    /// Keep only the first layers: a smaller file whose layers have the true shape.
    #[arg(long)]
    layers: Option<u32>,
    /// Seed of the random weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file to write.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut shape = Shape::named(&arguments.model)?;
    shape.layers = arguments.layers.unwrap_or(shape.layers).min(shape.layers);
    let vocab = Gguf::open(&arguments.vocab)?;

    let tensors = shape.tensors();
    let mut writer = Writer::new(metadata::describe(&shape, &arguments.mix, vocab.metadata())?);
    for tensor in &tensors {
        writer.add(tensor.name.as_str(), &tensor.shape, arguments.mix.block_type(tensor, &shape)?)?;
    }
    let mut file = writer.create(&arguments.out)?;
    for tensor in &tensors {
        fill::write(&mut file, tensor, arguments.mix.block_type(tensor, &shape)?, arguments.seed)?;
    }
    for path in file.finish()? {
        let model = Gguf::open(&path)?;
        println!("{}: {} tensors, {} bytes", path.display(), model.tensors().len(), model.file_size());
    }
    Ok(())
}
