//! The examples, on the bundled model.
#![cfg(feature = "bundled-model")]
#![allow(dead_code, reason = "their main functions are for the command line")]

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, FinishReason, GenerationConfig};

#[path = "../examples/custom_criterion.rs"]
mod custom_criterion;
#[path = "../examples/custom_processor.rs"]
mod custom_processor;
#[path = "../examples/evaluate.rs"]
mod evaluate;
#[path = "../examples/experiment.rs"]
mod experiment;
#[path = "../examples/fine_tune.rs"]
mod fine_tune;
#[path = "../examples/hook_cost.rs"]
mod hook_cost;
#[path = "../examples/json_output.rs"]
mod json_output;
#[path = "../examples/lora_merge.rs"]
mod lora_merge;
#[path = "../examples/own_loop.rs"]
mod own_loop;
#[path = "../examples/speculative_decoding.rs"]
mod speculative_decoding;
#[path = "../examples/validate.rs"]
mod validate;

#[test]
fn activations_are_seen_and_left_out() {
    let found = experiment::run(BUNDLED).unwrap();
    assert_eq!(found.len(), 12);
    assert!(found.values().all(|(length, change)| *length > 0.0 && *change != 0.0));
}

#[test]
fn hooks_that_are_gone_cost_nothing() {
    // The least of few rounds on a machine that does other things too: only what is far off shows here.
    let times = hook_cost::run(BUNDLED, 6).unwrap();
    let [(_, none), (_, gone), ..] = times[..] else { panic!("{times:?}") };
    assert!(gone < none.mul_f64(1.5) && none < gone.mul_f64(1.5), "{times:?}");
}

#[test]
fn a_checkpoint_is_evaluated() {
    let (perplexity, best) = evaluate::run(BUNDLED).unwrap();
    assert!(perplexity > 1.0 && perplexity < 4096.0, "{perplexity}");
    assert!(best < 3);
}

#[test]
fn a_checkpoint_is_held_to_another() {
    let distances = validate::run(BUNDLED, None).unwrap();
    assert_eq!(distances.len(), 14);
    assert!(distances.iter().all(|distance| *distance < 1e-2), "{distances:?}");
    assert!(distances.iter().skip(1).all(|distance| *distance > 0.0), "the fast path rounds");
    assert!(validate::run(BUNDLED, Some(BUNDLED)).unwrap().iter().all(|distance| *distance == 0.0));
}

#[test]
fn a_loop_of_ones_own_is_generate() {
    own_loop::run(BUNDLED).unwrap();
    let tokenizer = AutoTokenizer::from_pretrained(BUNDLED).load().unwrap();
    let model = AutoModelForCausalLM::from_pretrained(BUNDLED).load().unwrap();
    let texts = ["The capital of France is", "The", "Once upon a time there was a king who had three sons"];
    let prompts: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
    let own = own_loop::generate(&model, &prompts).unwrap();
    let config = GenerationConfig {
        max_new_tokens: Some(24),
        do_sample: Some(false),
        repetition_penalty: Some(1.0),
        ..GenerationConfig::default()
    };
    let output = model.generate(prompts, &config).unwrap();
    for (index, own) in own.iter().enumerate() {
        let generated = output.new_tokens(index);
        let end = generated.iter().position(|id| model.end_tokens().contains(id)).unwrap_or(generated.len());
        assert_eq!(own, &generated[..end], "{}", texts[index]);
    }
}

#[test]
fn a_checkpoint_is_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let dense = folder.path().join("dense");
    assert_eq!(fine_tune::run(BUNDLED, &dense, None).unwrap(), 8_957_192);
    assert!(dense.join("model.safetensors").exists() && dense.join("config.json").exists());
}

#[test]
fn a_merged_adapter_is_the_adapter() {
    let relative = lora_merge::run(BUNDLED).unwrap();
    assert!(relative < 1e-8, "{relative}");
}

#[test]
fn a_processor_of_ones_own_rules_out_a_letter() {
    let text = custom_processor::run(BUNDLED, "Once upon a time").unwrap();
    assert!(text.len() > 20 && !text.contains(['e', 'E']), "{text}");
}

#[test]
fn a_criterion_of_ones_own_ends_an_answer() {
    let (text, reason) = custom_criterion::run(BUNDLED, "The").unwrap();
    assert_eq!(reason, FinishReason::Criterion, "{text}");
}

#[test]
fn an_answer_is_json_of_its_schema() {
    let answer = json_output::run(BUNDLED, "What is the capital of France?").unwrap();
    assert!(answer["answer"].is_string() && answer["sure"].is_boolean(), "{answer}");
    assert!(["place", "person", "thing", "other"].contains(&answer["kind"].as_str().unwrap()), "{answer}");
    assert_eq!(answer.as_object().unwrap().len(), 3);
}

#[test]
fn drafts_save_steps_and_change_nothing() {
    let outputs = speculative_decoding::run(BUNDLED, Some(BUNDLED)).unwrap();
    assert_eq!(outputs.len(), 3);
    assert!(outputs.iter().all(|output| output.sequences == outputs[0].sequences));
    let drafted = |index: usize| outputs[index].usage[0].drafted_tokens;
    assert!(drafted(0) == 0 && drafted(1) > 0 && drafted(2) > 0);
    // A model that drafts for itself is right.
    assert_eq!(outputs[2].usage[0].acceptance(), Some(1.0));
}
