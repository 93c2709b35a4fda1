//! The models of this repository from end to end: their answers are the ones that transformers gives with the same
//! weights (recorded by tools/tiny/record.py).

use std::path::Path;

use gruff::floors::gguf::Gguf;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, ChatOptions, Dtype, GenerationConfig, HAS_BUNDLED, Message,
    Pretrained,
};
use serde_json::Value;

const MOE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-moe-Q4_K_M.gguf");
const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

fn answers(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("bundled/answers.json")).unwrap();
    all[kind].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn prompt(tokenizer: &AutoTokenizer, record: &Value) -> Vec<u32> {
    if let Some(text) = record["raw"].as_str() {
        return tokenizer.encode(text).unwrap();
    }
    let messages: Vec<Message> = record["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let text = message["content"].as_str().unwrap();
            if message["role"] == "user" { Message::user(text) } else { Message::assistant(text) }
        })
        .collect();
    tokenizer.apply_chat_template(&messages, &ChatOptions::prompt()).unwrap()
}

/// Asks a model everything that is recorded; in the fast path, what rounding activations cannot change.
fn answers_as_recorded(id: &str, kind: &str, dtype: Dtype) {
    let tokenizer = AutoTokenizer::from_pretrained(id).load().unwrap();
    let model = AutoModelForCausalLM::from_pretrained(id).dtype(dtype).load().unwrap();
    let mut asked = 0;
    for record in answers(kind) {
        let prompt = prompt(&tokenizer, &record);
        assert_eq!(prompt, ids(&record["prompt"]), "{record}");
        if dtype == Dtype::Auto && record["clear"] == false {
            continue;
        }
        let wanted = ids(&record["ids"]);
        let config = GenerationConfig {
            max_new_tokens: Some(if record["raw"].is_string() { wanted.len() } else { 64 }),
            temperature: Some(0.0),
            ..GenerationConfig::default()
        };
        let output = model.generate(prompt, &config).unwrap();
        assert_eq!(output.new_tokens(0), wanted, "{kind}, {dtype:?}: {}", record["text"]);
        asked += 1;
    }
    assert!(asked >= 3, "{kind}, {dtype:?}: only {asked} of the recorded answers are clear");
}

#[test]
fn the_dense_model_answers_as_in_transformers() {
    answers_as_recorded(DENSE, "dense", Dtype::F32);
}

#[test]
fn the_dense_model_answers_alike_on_the_fast_path() {
    answers_as_recorded(DENSE, "dense", Dtype::Auto);
}

#[test]
fn the_mixture_of_experts_answers_as_in_transformers() {
    answers_as_recorded(MOE, "moe", Dtype::F32);
}

#[test]
fn the_mixture_of_experts_answers_alike_on_the_fast_path() {
    answers_as_recorded(MOE, "moe", Dtype::Auto);
}

#[test]
fn the_bundled_model_is_the_file() {
    let bundled = Pretrained::<AutoTokenizer>::new(gruff::BUNDLED).checkpoint();
    if !HAS_BUNDLED {
        assert!(bundled.err().unwrap().to_string().contains("bundled-model"));
        return;
    }
    let bundled = bundled.unwrap();
    let file = Pretrained::<AutoTokenizer>::new(DENSE).checkpoint().unwrap();
    assert_eq!(bundled.name(), "bundled");
    assert!(bundled.files().parts.is_empty());
    assert_eq!(file.name(), DENSE);
    assert!(Path::new(DENSE).metadata().unwrap().len() < 8 << 20);
    assert!(Path::new(MOE).metadata().unwrap().len() < 4 << 20);
    for (own, other) in bundled.gguf().tensors().zip(file.gguf().tensors()) {
        let (own, other) = (bundled.gguf().data(own).unwrap(), file.gguf().data(other).unwrap());
        assert_eq!(own.as_ptr() as usize % 32, 0);
        assert!(*own == *other);
    }
    let choosing = Pretrained::<AutoTokenizer>::new(gruff::BUNDLED).gguf_file("other.gguf").checkpoint();
    assert!(choosing.err().unwrap().to_string().contains("no files"));
}

#[test]
fn a_header_is_read_from_the_beginning_of_a_file() {
    let (bytes, whole) = (std::fs::read(DENSE).unwrap(), Gguf::open(DENSE).unwrap());
    let size = bytes.len() as u64;
    for length in (0..1 << 16).step_by(61).chain([1 << 17]) {
        // Less than the magic number is no GGUF file yet.
        let beginning = if length < 4 { continue } else { Gguf::from_beginning(&bytes[..length], size) };
        assert!(beginning.unwrap().is_none(), "{length}");
    }
    let header = Gguf::from_beginning(&bytes[..1 << 20], size).unwrap().expect("1 MiB hold the header");
    assert_eq!(header.tensors().len(), whole.tensors().len());
    for (own, other) in header.tensors().zip(whole.tensors()) {
        assert_eq!(
            (own.name(), own.shape(), own.offset(), own.bytes()),
            (other.name(), other.shape(), other.offset(), other.bytes())
        );
    }
    let last = header.tensors().last().unwrap();
    assert!(header.data(last).is_err());
    assert!(Gguf::from_beginning(&bytes[..1 << 20], 1 << 20).is_err(), "tensors lie behind the end");
}
