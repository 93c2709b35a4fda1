//! A decode loop of one's own, for a batch of prompts: every token is chosen here.
//!
//! `cargo run --release -p gruff --example own_loop [MODEL]`

use std::error::Error;

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED};

const MOST_TOKENS: usize = 24;

/// Goes on with all prompts at once, greedily. A sequence that has ended takes no part in later steps.
pub(crate) fn generate(
    model: &AutoModelForCausalLM,
    prompts: &[Vec<u32>],
) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let mut cache = model.new_cache(prompts.len(), longest + MOST_TOKENS)?;
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut input = prompts.to_vec();
    for _ in 0..MOST_TOKENS {
        let output = model.forward(input, &mut cache)?;
        input = vec![Vec::new(); prompts.len()];
        for (sequence, answer) in answers.iter_mut().enumerate() {
            // None where the sequence took no part.
            let Some(next) = output.argmax(sequence) else { continue };
            if !model.end_tokens().contains(&next) {
                answer.push(next);
                input[sequence] = vec![next];
            }
        }
        if input.iter().all(Vec::is_empty) {
            break;
        }
    }
    Ok(answers)
}

pub(crate) fn run(id: &str) -> Result<(), Box<dyn Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;
    let texts = ["The capital of France is", "The sun", "It was a dark and stormy night, and"];
    let prompts = texts.iter().map(|text| tokenizer.encode(text)).collect::<Result<Vec<_>, _>>()?;
    for (text, answer) in texts.iter().zip(generate(&model, &prompts)?) {
        println!("{text}{}", tokenizer.decode(&answer, true));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or(BUNDLED.to_owned()))
}
