//! What a user of `generate` sees: a short prompt, 128 tokens, everything included.

use std::time::Instant;

use gruff::{AutoModelForCausalLM, AutoTokenizer, GenerationConfig};

use super::measure::{Outcome, Test};

/// Twelve tokens for the vocabularies of Qwen.
const PROMPT: &str = "The capital of France is Paris. The capital of Germany is";
/// Tokens generated, neither fewer nor more.
const NEW_TOKENS: usize = 128;

/// The prompt's ids; of a file without a vocabulary as many others.
pub(super) fn prompt(tokenizer: Option<&AutoTokenizer>) -> anyhow::Result<Vec<u32>> {
    Ok(tokenizer.map_or_else(|| Ok((1..=12).collect()), |tokenizer| tokenizer.encode(PROMPT))?)
}

/// Generates after a warm-up, each time from nothing: what an earlier run has left in caches is dropped.
pub(super) fn measure(
    model: &AutoModelForCausalLM,
    prompt: &[u32],
    sequences: usize,
    repetitions: u32,
) -> anyhow::Result<Outcome> {
    let prompts = vec![prompt.to_vec(); sequences];
    let config = GenerationConfig {
        max_new_tokens: Some(NEW_TOKENS),
        do_sample: Some(false),
        repetition_penalty: Some(1.0),
        // No token ends the answer.
        eos_token_id: Some(Vec::new()),
        ..GenerationConfig::default()
    };
    model.generate(prompts.clone(), &config)?;
    let began = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut times = Vec::new();
    for _ in 0..repetitions {
        model.clear_caches();
        model.memory()?;
        let started = Instant::now();
        model.generate(prompts.clone(), &config)?;
        times.push(started.elapsed());
    }
    let test = Test { prompt: prompt.len(), generated: NEW_TOKENS, depth: 0 };
    let mut label = format!("generate{NEW_TOKENS}");
    if sequences > 1 {
        label.push_str(&format!(" x{sequences}"));
    }
    Ok(Outcome { test, label, best: true, tokens: sequences * NEW_TOKENS, began, times, profile: None })
}
