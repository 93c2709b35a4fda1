//! Experiment: look at activations with a hook, then change them and see what becomes of the next token.
//!
//! `cargo run --release -p gruff --example experiment [MODEL]`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, HookContext, HookError, Tensor};

/// How long the outputs of the layers' feed-forwards are, on average, and how far the most likely token's logit moves
/// when one of them is left out.
pub(crate) fn run(id: &str) -> Result<BTreeMap<usize, (f32, f32)>, Box<dyn Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;
    let prompt = tokenizer.encode("The capital of France is")?;
    let logits = || -> Result<Vec<f32>, gruff::Error> {
        let mut cache = model.new_cache(1, prompt.len())?;
        Ok(model.forward(prompt.clone(), &mut cache)?.logits(0).to_vec())
    };

    let lengths = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = lengths.clone();
    let guard = model.register_forward_hook("model.layers.*.mlp", move |context, output| {
        let values = output.to_vec_f32()?;
        let rows = values.chunks_exact(output.shape()[1]);
        let count = rows.len() as f32;
        let length =
            rows.map(|row| row.iter().map(|value| value * value).sum::<f32>().sqrt()).sum::<f32>() / count;
        seen.lock().map_err(|_| "a hook panicked")?.insert(context.layer.unwrap_or(0), length);
        Ok(None)
    })?;
    let plain = logits()?;
    drop(guard);
    let lengths = std::mem::take(&mut *lengths.lock().map_err(|_| "a hook panicked")?);

    let best = (0..plain.len()).max_by(|a, b| plain[*a].total_cmp(&plain[*b])).unwrap_or(0);
    println!("next token: {:?}", tokenizer.decode(&[best as u32], false));
    let mut found = BTreeMap::new();
    for (layer, length) in lengths {
        let nothing = |_: &HookContext, x: &Tensor| -> Result<Tensor, HookError> {
            Ok(x.device().zeros(x.dtype(), x.shape())?)
        };
        let _without = model.replace(&format!("model.layers.{layer}.mlp"), Arc::new(nothing))?;
        let change = logits()?[best] - plain[best];
        println!("layer {layer:2}: the feed-forward's output is {length:8.3} long; without it {change:+8.3}");
        found.insert(layer, (length, change));
    }
    Ok(found)
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or(BUNDLED.to_owned())).map(|_| ())
}
