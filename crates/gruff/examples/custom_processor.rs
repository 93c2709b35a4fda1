//! A logits processor of one's own: an answer without the letter e.
//!
//! `cargo run --release -p gruff --example custom_processor -- [MODEL] [PROMPT]`

use gruff::{
    AutoModelForCausalLM, AutoTokenizer, GenerateOptions, GenerationConfig, LogitsProcessor, TokenContext,
};

/// Rules out every token whose text has the letter.
#[derive(Clone)]
struct WithoutLetter {
    ruled_out: Vec<usize>,
}

impl WithoutLetter {
    fn new(tokenizer: &AutoTokenizer, letter: char) -> Self {
        let size = tokenizer.tokenizer().vocab_size() as u32;
        let has = |id: &u32| tokenizer.decode(&[*id], true).to_lowercase().contains(letter);
        Self { ruled_out: (0..size).filter(has).map(|id| id as usize).collect() }
    }
}

impl LogitsProcessor for WithoutLetter {
    fn name(&self) -> &str {
        "without a letter"
    }

    fn process(&mut self, _: &TokenContext<'_>, logits: &mut [f32]) -> Result<(), gruff::EngineError> {
        for id in &self.ruled_out {
            logits[*id] = f32::NEG_INFINITY;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or(gruff::BUNDLED.into());
    let prompt = arguments.next().unwrap_or("Once upon a time".into());
    println!("{}", run(&id, &prompt)?);
    Ok(())
}

/// The answer.
pub(crate) fn run(id: &str, prompt: &str) -> Result<String, Box<dyn std::error::Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;

    let processor = WithoutLetter::new(&tokenizer, 'e');
    let options = GenerateOptions { logits_processor: vec![Box::new(processor)], ..Default::default() };
    let config = GenerationConfig { max_new_tokens: Some(40), ..Default::default() };
    let output = model.generate_with_options(tokenizer.encode(prompt)?, &config, options)?;
    Ok(output.text(0, &tokenizer, true))
}
