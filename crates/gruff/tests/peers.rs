//! Forward passes of the bundled model are those of transformers (recorded by tools/peers/forward.py): logits, hidden
//! states, attention weights, and logits with a LoRA adapter that PEFT could have saved.

use std::path::Path;

use gruff::{AutoModelForCausalLM, Dtype, ForwardOptions, LogitRows};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

fn record() -> Value {
    serde_json::from_str(include_str!("../../../tests/peers/forward.json")).unwrap()
}

fn model() -> AutoModelForCausalLM {
    AutoModelForCausalLM::from_pretrained(MODEL).dtype(Dtype::F32).load().unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn integers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as usize).collect()
}

fn ids(record: &Value) -> Vec<u32> {
    integers(&record["ids"]).iter().map(|id| *id as u32).collect()
}

/// Squared distance relative to the squared length of what is expected.
fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    error / expected.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()
}

/// The logits that are recorded, of all.
fn sample(record: &Value, output: &gruff::CausalLMOutput) -> Vec<f32> {
    let all: Vec<&[f32]> = output.all_logits(0).collect();
    let step = record["vocabulary_step"].as_u64().unwrap() as usize;
    let positions = integers(&record["positions"]);
    positions.iter().flat_map(|position| all[*position].iter().step_by(step).copied()).collect()
}

fn recorded(logits: &Value) -> Vec<f32> {
    logits.as_array().unwrap().iter().flat_map(floats).collect()
}

#[test]
fn hidden_states_and_attentions_are_transformers() {
    let record = record();
    let model = model();
    let mut cache = model.new_cache(1, 12).unwrap();
    let options =
        ForwardOptions { output_hidden_states: true, output_attentions: true, ..Default::default() };
    let output = model.forward_with(ids(&record), &mut cache, LogitRows::All, &options).unwrap();
    let distance = nmse(&sample(&record, &output), &recorded(&record["logits"]));
    assert!(distance < 1e-8, "logits: {distance}");

    let states = output.hidden_states.as_ref().unwrap();
    let expected = record["hidden_states"].as_array().unwrap();
    assert_eq!(states.len(), expected.len());
    for (number, (state, expected)) in states.iter().zip(expected).enumerate() {
        let (width, values) = (state.shape()[1], state.to_vec_f32().unwrap());
        for (position, expected) in integers(&record["positions"]).iter().zip(expected.as_array().unwrap()) {
            let row = &values[position * width..][..width];
            let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((norm / expected["norm"].as_f64().unwrap() as f32 - 1.0).abs() < 1e-4, "state {number}");
            let distance = nmse(&row[..8], &floats(&expected["first"]));
            assert!(distance < 1e-7, "state {number}, position {position}: {distance}");
        }
    }

    let attentions = output.attentions.as_ref().unwrap();
    let expected = record["attentions"].as_array().unwrap();
    assert_eq!(attentions.iter().map(|own| own.layer).collect::<Vec<_>>(), [3, 7, 11]);
    assert_eq!(attentions.len(), expected.len());
    for (own, expected) in attentions.iter().zip(expected) {
        assert_eq!(own.weights[0].shape(), [4, 12, 12]);
        let values = own.weights[0].to_vec_f32().unwrap();
        for (head, expected) in values.chunks_exact(144).zip(expected.as_array().unwrap()) {
            let distance = nmse(&head[132..], &floats(expected));
            assert!(distance < 1e-7, "layer {}: {distance}", own.layer);
        }
    }
}

/// As `matrix` of tools/peers/forward.py.
fn matrix(seed: i64, count: usize) -> Vec<f32> {
    (0..count as i64).map(|i| (((i * 7919 + seed * 104_729) % 1000) as f32 / 1000.0 - 0.5) * 0.8).collect()
}

/// A safetensors file of f32 matrices.
fn safetensors(tensors: &[(String, [usize; 2], Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry =
            serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A folder as PEFT saves it: the recorded adapter.
fn peft(record: &Value, folder: &Path) {
    let dense = gruff::AutoTokenizer::from_pretrained(MODEL).checkpoint().unwrap();
    let dense = dense.state_dict(gruff::GgufConfig { dequantize: true }).unwrap();
    let lora = &record["lora"];
    let mut tensors = Vec::new();
    for (seed, module) in (0..).zip(lora["modules"].as_array().unwrap()) {
        let module = module.as_str().unwrap();
        let [outputs, inputs] = *dense.shape(&format!("{module}.weight")).unwrap() else {
            panic!("{module}")
        };
        let (outputs, inputs) = (outputs as usize, inputs as usize);
        let rank = if module.ends_with("layers.5.mlp.down_proj") { 2 } else { 4 };
        let name = |side: &str| format!("base_model.model.{module}.{side}.weight");
        tensors.push((name("lora_A"), [rank, inputs], matrix(2 * seed, rank * inputs)));
        tensors.push((name("lora_B"), [outputs, rank], matrix(2 * seed + 1, outputs * rank)));
    }
    std::fs::write(folder.join("adapter_model.safetensors"), safetensors(&tensors)).unwrap();
    std::fs::write(folder.join("adapter_config.json"), lora["config"].to_string()).unwrap();
}

#[test]
fn an_adapter_of_pefts_gives_transformers_logits() {
    let record = record();
    let folder = tempfile::tempdir().unwrap();
    peft(&record, folder.path());
    let model = model();
    model.load_adapter("trained", folder.path()).unwrap();
    let logits = || {
        let mut cache = model.new_cache(1, 12).unwrap();
        let plain = ForwardOptions::default();
        let output = model.forward_with(ids(&record), &mut cache, LogitRows::All, &plain).unwrap();
        sample(&record, &output)
    };
    let with = recorded(&record["lora"]["logits"]);
    let without = recorded(&record["logits"]);
    assert!(nmse(&with, &without) > 1e-3, "the adapter moves logits");
    let distance = nmse(&logits(), &with);
    assert!(distance < 1e-8, "{distance}");
    model.set_adapter_scale("trained", 0.0).unwrap();
    let distance = nmse(&logits(), &without);
    assert!(distance < 1e-8, "{distance}");
    assert_eq!(model.adapters().get("trained"), Some(&0.0));
    model.unload_adapter("trained").unwrap();
    assert!(model.adapters().is_empty() && model.unload_adapter("trained").is_err());
}

#[test]
fn adapters_that_cannot_be_applied_are_refused() {
    let record = record();
    let folder = tempfile::tempdir().unwrap();
    peft(&record, folder.path());
    let model = model();
    let config_path = folder.path().join("adapter_config.json");
    for (field, value, expected) in [
        ("peft_type", Value::from("IA3"), "only LORA"),
        ("use_dora", Value::from(true), "use_dora"),
        ("fan_in_fan_out", Value::from(true), "fan_in_fan_out"),
        ("bias", Value::from("all"), "biases"),
        ("modules_to_save", serde_json::json!(["lm_head"]), "modules_to_save"),
        ("r", Value::from(0), "rank 0"),
        ("lora_alpha", Value::from("much"), "invalid type"),
    ] {
        let mut config = record["lora"]["config"].clone();
        config[field] = value;
        std::fs::write(&config_path, config.to_string()).unwrap();
        let error = model.load_adapter("a", folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("adapter_config.json"), "{error}");
    }
    std::fs::write(&config_path, record["lora"]["config"].to_string()).unwrap();
    let weights = folder.path().join("adapter_model.safetensors");
    let module = "base_model.model.model.layers.3.self_attn.v_proj";
    let pair = |a: [usize; 2], b: [usize; 2]| {
        let matrix = |shape: [usize; 2]| vec![0.1; shape[0] * shape[1]];
        let name = |side: &str| format!("{module}.{side}.weight");
        safetensors(&[(name("lora_A"), a, matrix(a)), (name("lora_B"), b, matrix(b))])
    };
    let one = safetensors(&[(format!("{module}.lora_A.weight"), [1, 256], vec![0.1; 256])]);
    let other = safetensors(&[(
        "base_model.model.model.layers.0.mlp.fc1.lora_A.weight".into(),
        [1, 2],
        vec![0.1; 2],
    )]);
    let strange = safetensors(&[(format!("{module}.lora_magnitude_vector"), [1, 2], vec![0.1; 2])]);
    for (bytes, expected) in [
        (pair([2, 256], [128, 3]), "ranks differ"),
        (pair([2, 512], [128, 2]), "another base model"),
        (pair([2, 256], [64, 2]), "another base model"),
        (one, "only one of the two"),
        (other, "only one of the two"),
        (strange, "no part of a LoRA"),
        (safetensors(&[]), "no matrices"),
        (b"nonsense".to_vec(), "adapter_model.safetensors"),
    ] {
        std::fs::write(&weights, bytes).unwrap();
        let error = model.load_adapter("a", folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert!(model.adapters().is_empty());
    let error = model.load_adapter("a", MODEL).unwrap_err().to_string();
    assert!(error.contains("not an adapter"), "{error}");
}
