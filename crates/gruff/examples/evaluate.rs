//! Evaluate: perplexity of a text, and an answer among choices by its likelihood, on a quantized checkpoint. `gruff
//! perplexity` has more of this.
//!
//! `cargo run --release -p gruff --example evaluate [MODEL]`

use std::error::Error;

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, Forward};

const TEXT: &str = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be \
                    in want of a wife.";

/// Negative log-likelihoods of a sequence's tokens, from the second on.
fn losses(model: &AutoModelForCausalLM, ids: &[u32]) -> Result<Vec<f64>, gruff::Error> {
    let mut losses = Vec::new();
    let mut targets = ids.iter().skip(1);
    Forward::new(model, ids.len())?.push_all(ids, |logits| {
        if let Some(target) = targets.next() {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
            losses.push(sum.ln() - f64::from(logits[*target as usize] - most));
        }
        Ok::<(), gruff::Error>(())
    })?;
    Ok(losses)
}

/// The text's perplexity, and the index of the likelier ending.
pub(crate) fn run(id: &str) -> Result<(f64, usize), Box<dyn Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;
    let all = losses(&model, &tokenizer.encode(TEXT)?)?;
    let perplexity = (all.iter().sum::<f64>() / all.len() as f64).exp();
    println!("perplexity {perplexity:.2} over {} tokens", all.len());

    let question = "The capital of France is";
    let begin = tokenizer.encode(question)?.len();
    let mut best = (0, f64::INFINITY);
    for (index, choice) in [" Paris", " the", " quickly"].iter().enumerate() {
        let all = losses(&model, &tokenizer.encode(&format!("{question}{choice}"))?)?;
        let ending = &all[begin - 1..];
        let loss = ending.iter().sum::<f64>() / ending.len() as f64;
        println!("{question}{choice}: {loss:.3} nats a token");
        if loss < best.1 {
            best = (index, loss);
        }
    }
    Ok((perplexity, best.0))
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or(BUNDLED.to_owned())).map(|_| ())
}
