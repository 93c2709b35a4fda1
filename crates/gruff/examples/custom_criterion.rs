//! A stopping criterion of one's own: the answer ends as soon as the model becomes unsure of what it says.
//!
//! `cargo run --release -p gruff --example custom_criterion -- [MODEL] [PROMPT]`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gruff::logits::log_softmax;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, FinishReason, GenerateOptions, GenerationConfig, criterion_fn,
    processor_fn,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or(gruff::BUNDLED.into());
    let prompt = arguments.next().unwrap_or("The capital of France is".into());
    let (text, reason) = run(&id, &prompt)?;
    println!("{prompt}{text} [{reason:?}]");
    Ok(())
}

/// The answer, and why it ended.
pub(crate) fn run(id: &str, prompt: &str) -> Result<(String, FinishReason), Box<dyn std::error::Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;

    // A processor may also just look: here it notes how likely the best token is.
    let unsure = Arc::new(AtomicBool::new(false));
    let noted = unsure.clone();
    let look = processor_fn("look", move |_, logits| {
        let best = log_softmax(logits).into_iter().fold(f64::NEG_INFINITY, f64::max).exp();
        noted.store(best < 0.3, Ordering::Relaxed);
        Ok(())
    });
    let stop = criterion_fn("unsure", move |_| unsure.load(Ordering::Relaxed));

    let options =
        GenerateOptions { logits_processor: vec![look], stopping_criteria: vec![stop], ..Default::default() };
    let config = GenerationConfig { max_new_tokens: Some(60), ..Default::default() };
    let output = model.generate_with_options(tokenizer.encode(prompt)?, &config, options)?;
    Ok((output.text(0, &tokenizer, true), output.finish_reasons[0]))
}
