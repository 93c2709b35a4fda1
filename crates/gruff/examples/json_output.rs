//! An answer that is JSON of a schema, whatever the model would rather say.
//!
//! `cargo run --release -p gruff --example json_output -- [MODEL] [QUESTION]`

use gruff::{AutoModelForCausalLM, AutoTokenizer, ChatOptions, Constraint, GenerationConfig, Message};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or(gruff::BUNDLED.into());
    let question = arguments.next().unwrap_or("What is the capital of France?".into());
    println!("{:#}", run(&id, &question)?);
    Ok(())
}

/// The answer.
pub(crate) fn run(id: &str, question: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;

    let schema = json!({
        "type": "object",
        "properties": {
            "answer": {"type": "string", "maxLength": 40},
            "sure": {"type": "boolean"},
            "kind": {"enum": ["place", "person", "thing", "other"]},
        },
        "required": ["answer", "sure", "kind"],
        "additionalProperties": false,
    });
    let chat = ChatOptions::prompt().variable("enable_thinking", false);
    let prompt = tokenizer.apply_chat_template(&[Message::user(question)], &chat)?;
    let config = GenerationConfig {
        constraint: Some(Constraint::json_schema(schema)),
        // A small model may dawdle in the white space that JSON allows.
        max_new_tokens: Some(400),
        ..Default::default()
    };
    let output = model.generate(prompt, &config)?;
    Ok(serde_json::from_str(&output.text(0, &tokenizer, true))?)
}
