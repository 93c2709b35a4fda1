//! Fine-tune: hand a packed checkpoint over to ordinary training as a folder that transformers opens, and take what was
//! trained back as an adapter beside the packed weights.
//!
//! `cargo run --release -p gruff --example fine_tune [MODEL [FOLDER [ADAPTER]]]`
//!
//! ```python
//! model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
//! model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
//! # … ordinary training …
//! model.save_pretrained(ADAPTER)
//! ```

use std::error::Error;
use std::path::Path;

use gruff::floors::convert::{DequantizeOptions, dequantize};
use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, GenerationConfig, GgufConfig};

/// Writes the folder; tells how many parameters it holds.
pub(crate) fn run(id: &str, folder: &Path, adapter: Option<&Path>) -> Result<u64, Box<dyn Error>> {
    let checkpoint = AutoTokenizer::from_pretrained(id).checkpoint()?;
    // In Rust the dense weights are at hand by transformers' names too.
    let weights = checkpoint.state_dict(GgufConfig { dequantize: true })?;
    let count = |name: &str| weights.shape(name).map_or(0, |shape| shape.iter().product::<u64>());
    let parameters = weights.names().map(count).sum();
    dequantize(checkpoint.gguf(), folder, &DequantizeOptions::default(), &())?;
    println!("{parameters} parameters in {}", folder.display());

    if let Some(adapter) = adapter {
        let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
        let model = AutoModelForCausalLM::from_pretrained(id).load()?;
        model.load_adapter("trained", adapter)?;
        let config = GenerationConfig { max_new_tokens: Some(32), ..GenerationConfig::default() };
        let output = model.generate(tokenizer.encode("The capital of France is")?, &config)?;
        println!("{}", tokenizer.decode(&output.sequences[0], true));
    }
    Ok(parameters)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (id, folder) = (args.next().unwrap_or(BUNDLED.to_owned()), args.next().unwrap_or("dense".to_owned()));
    let adapter = args.next();
    run(&id, Path::new(&folder), adapter.as_deref().map(Path::new)).map(|_| ())
}
