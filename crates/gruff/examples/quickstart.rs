//! The article's example in Rust: load a GGUF by name, ask it something, print the answer.
//!
//! `cargo run --release -p gruff --example quickstart -- MODEL "Why is the sky blue?"`

use gruff::{AutoModelForCausalLM, AutoTokenizer, ChatOptions, GenerationConfig, Message};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or("unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q4_K_M.gguf".into());
    let question = arguments.next().unwrap_or("What is the capital of France?".into());

    let tokenizer = AutoTokenizer::from_pretrained(&id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(&id).load()?;

    let inputs = tokenizer.apply_chat_template(&[Message::user(question)], &ChatOptions::prompt())?;
    let config = GenerationConfig { max_new_tokens: Some(256), ..Default::default() };
    let outputs = model.generate(inputs, &config)?;

    println!("{}", tokenizer.decode(outputs.new_tokens(0), true));
    Ok(())
}
