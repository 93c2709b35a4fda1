//! Validate: hold a checkpoint to another one it should agree with, hidden state by hidden state. Without a second model
//! the fast path is held to the exact one. `gruff compare` has more of this.
//!
//! `cargo run --release -p gruff --example validate [MODEL [ORIGINAL]]`

use std::error::Error;

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, Dtype, ForwardOptions, LogitRows};

/// Squared distance to the original relative to its squared length, of every hidden state, then of the logits.
pub(crate) fn run(id: &str, original: Option<&str>) -> Result<Vec<f64>, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let ids = tokenizer.encode("The sun rises in the east and sets in the west.")?;
    let outputs = |id: &str, dtype: Dtype| -> Result<Vec<Vec<f32>>, gruff::Error> {
        let model = AutoModelForCausalLM::from_pretrained(id).dtype(dtype).load()?;
        let mut cache = model.new_cache(1, ids.len())?;
        let options = ForwardOptions { output_hidden_states: true, ..ForwardOptions::default() };
        let output = model.forward_with(ids.clone(), &mut cache, LogitRows::All, &options)?;
        let mut all = Vec::new();
        for state in output.hidden_states.iter().flatten() {
            all.push(state.to_vec_f32()?);
        }
        all.push(output.all_logits(0).flatten().copied().collect());
        Ok(all)
    };
    let dtype = if original.is_some() { Dtype::F32 } else { Dtype::Auto };
    let (found, expected) = (outputs(id, dtype)?, outputs(original.unwrap_or(id), Dtype::F32)?);
    if found.iter().map(Vec::len).ne(expected.iter().map(Vec::len)) {
        return Err("the two models are not of the same sizes".into());
    }
    let mut distances = Vec::new();
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let pairs = found.iter().zip(expected);
        let error: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let length: f64 = expected.iter().map(|value| f64::from(*value).powi(2)).sum();
        let name =
            if index + 1 < expected.len() { format!("hidden state {index}") } else { "logits".to_owned() };
        println!("{name:>16}: NMSE {:.2e}", error / length);
        distances.push(error / length);
    }
    Ok(distances)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (id, original) = (args.next().unwrap_or(BUNDLED.to_owned()), args.next());
    run(&id, original.as_deref()).map(|_| ())
}
