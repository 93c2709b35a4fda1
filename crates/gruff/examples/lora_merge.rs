//! A low-rank change of a weight, beside the packed weight and merged into it.
//!
//! `cargo run --release -p gruff --example lora_merge [MODEL]`

use std::error::Error;

use gruff::floors::blocks::BlockType;
use gruff::floors::models::Lora;
use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, Dtype, Weight};

const MODULE: &str = "model.layers.0.mlp.down_proj";
const RANK: usize = 4;
const FACTOR: f32 = 0.5;

/// Squared distance of the merged model's logits to those with the adapter beside, relative to how far the adapter moved
/// them.
pub(crate) fn run(id: &str) -> Result<f64, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).dtype(Dtype::F32).load()?;
    let prompt = tokenizer.encode("The capital of France is")?;
    let logits = || -> Result<Vec<f32>, gruff::Error> {
        let mut cache = model.new_cache(1, prompt.len())?;
        Ok(model.forward(prompt.clone(), &mut cache)?.logits(0).to_vec())
    };
    let plain = logits()?;

    let name = format!("{MODULE}.weight");
    let own = model.weight(&name)?;
    let (outputs, inputs) = (own.shape()[0], own.shape()[1]);
    // Trained matrices would come from a file; `load_adapter` reads them.
    let some = |rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| (i as f32 * 0.7).sin() * 0.1).collect()
    };
    let (a, b) = (some(RANK, inputs), some(outputs, RANK));

    let mut lora = Lora::new();
    let dense = |values: &[f32], shape: &[usize]| Weight::dense(model.device(), values, shape);
    lora.add(&**model.model(), MODULE, &dense(&a, &[RANK, inputs])?, &dense(&b, &[outputs, RANK])?, FACTOR)?;
    model.model().adapters().add("example", lora, 1.0)?;
    let beside = logits()?;
    model.unload_adapter("example")?;

    let mut merged = own.to_vec_f32()?;
    for (row, b) in merged.chunks_exact_mut(inputs).zip(b.chunks_exact(RANK)) {
        for (b, a) in b.iter().zip(a.chunks_exact(inputs)) {
            row.iter_mut().zip(a).for_each(|(weight, a)| *weight += FACTOR * b * a);
        }
    }
    // Packing it again, in BlockType::Q8_0 say, would round it; F32 keeps it.
    model.set_weight(&name, Weight::pack(model.device(), &merged, BlockType::F32, &[outputs, inputs])?)?;
    let merged = logits()?;

    let distance =
        |x: &[f32], y: &[f32]| -> f64 { x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum() };
    let relative = distance(&merged, &beside) / distance(&plain, &beside);
    println!("the adapter moves logits by {:.3}", distance(&plain, &beside).sqrt());
    println!("merged and beside differ by {relative:.1e} of that, squared");
    Ok(relative)
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or(BUNDLED.to_owned())).map(|_| ())
}
