//! The same answer in fewer steps: drafts from the text itself, and from a draft model.
//!
//! `cargo run --release -p gruff --example speculative_decoding -- [MODEL] [DRAFT_MODEL]`

use std::time::Instant;

use gruff::{AutoModelForCausalLM, AutoTokenizer, GenerateOptions, GenerateOutput, GenerationConfig};

const TEXT: &str = "fn add(a: i32, b: i32) -> i32 { a + b }\nfn sub(a: i32, b: i32) -> i32 { a - b }\nfn mul(a: i32, b: \
                    i32) -> i32 {";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let id = arguments.next().unwrap_or(gruff::BUNDLED.into());
    let outputs = run(&id, arguments.next().as_deref())?;
    assert!(outputs.iter().all(|output| output.sequences == outputs[0].sequences), "drafts change nothing");
    Ok(())
}

/// The answers without drafts, with those of the text itself, and with those of a draft model if there is one.
pub(crate) fn run(id: &str, draft: Option<&str>) -> Result<Vec<GenerateOutput>, Box<dyn std::error::Error>> {
    let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
    let model = AutoModelForCausalLM::from_pretrained(id).load()?;
    let assistant = draft.map(|draft| AutoModelForCausalLM::from_pretrained(draft).load()).transpose()?;

    let prompt = tokenizer.encode(TEXT)?;
    let plain = GenerationConfig {
        max_new_tokens: Some(64),
        temperature: Some(0.0),
        eos_token_id: Some(vec![]),
        ..Default::default()
    };
    let lookup = GenerationConfig { prompt_lookup_num_tokens: Some(8), ..plain.clone() };
    let runs = [
        ("plain", &plain, None),
        ("prompt lookup", &lookup, None),
        ("draft model", &plain, assistant.as_ref()),
    ];
    let mut outputs = Vec::new();
    for (name, config, assistant_model) in runs {
        if name == "draft model" && assistant_model.is_none() {
            continue;
        }
        let options = GenerateOptions { assistant_model, ..Default::default() };
        let start = Instant::now();
        let output = model.generate_with_options(prompt.clone(), config, options)?;
        let usage = &output.usage[0];
        println!(
            "{name:13}: {} tokens in {:.2} s, {} of {} drafted tokens were right",
            usage.new_tokens,
            start.elapsed().as_secs_f64(),
            usage.accepted_tokens,
            usage.drafted_tokens,
        );
        outputs.push(output);
    }
    Ok(outputs)
}
