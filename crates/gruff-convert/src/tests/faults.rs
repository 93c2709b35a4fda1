//! What is wrong with a folder is named, and nothing is left under the new name.

use std::fs;

use super::folder::{Folder, MODELS};
use crate::{ConvertOptions, DequantizeOptions, convert, dequantize};

fn llama() -> Folder {
    Folder::new(MODELS.iter().find(|model| model.class == "LlamaForCausalLM").unwrap())
}

/// Converting fails with a message that has all of `parts`, and leaves nothing.
fn refused(folder: &Folder, parts: &[&str]) {
    let out = folder.path().join("out.gguf");
    let error = convert(folder.path(), &out, &ConvertOptions::default(), &()).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains(".gguf")).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn with_config(change: impl FnOnce(&mut serde_json::Value)) -> Folder {
    let folder = llama();
    let mut config = serde_json::from_str(&folder.read("config.json")).unwrap();
    change(&mut config);
    folder.write("config.json", &config.to_string());
    folder
}

#[test]
fn files_that_are_damaged() {
    let folder = llama();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for (bytes, part) in [
        (&whole[..whole.len() / 2], "cut short"),
        (&whole[..header / 2], "cut short"),
        (&whole[..3], "3 bytes"),
        (&b"version https://git-lfs.github.com/spec/v1"[..], "git lfs pull"),
        (&[255; 64][..], "header of"),
    ] {
        fs::write(&path, bytes).unwrap();
        refused(&folder, &["model.safetensors", part]);
    }
    let hostile =
        br#"{"a":{"dtype":"F32","shape":[9000000000000000000,9],"data_offsets":[0,18446744073709551615]}}"#;
    fs::write(&path, [&(hostile.len() as u64).to_le_bytes()[..], hostile].concat()).unwrap();
    refused(&folder, &["model.safetensors", "\"a\""]);
    fs::remove_file(&path).unwrap();
    refused(&folder, &["safetensors"]);
}

#[test]
fn tensors_that_are_missing_misshapen_or_unknown() {
    let mut folder = llama();
    let name = "model.layers.1.mlp.up_proj.weight";
    let tensor = folder.tensors_mut().remove(name).unwrap();
    folder.write_tensors();
    refused(&folder, &[name, "missing"]);
    folder.tensors_mut().insert(name.to_owned(), (vec![32, 24], tensor.1.clone()));
    folder.write_tensors();
    refused(&folder, &[name, "[32, 24]", "[24, 32]"]);
    folder.tensors_mut().insert(name.to_owned(), tensor);
    folder.tensors_mut().insert("model.layers.0.mlp.side_proj.weight".to_owned(), (vec![1], vec![0.0]));
    folder.write_tensors();
    refused(&folder, &["side_proj", "no place", "llama"]);
}

#[test]
fn shards_that_do_not_agree_with_their_index() {
    let folder = llama();
    let index =
        |map: &str| folder.write("model.safetensors.index.json", &format!(r#"{{"weight_map": {map}}}"#));
    index(r#"{"lm_head.weight": "model-00002-of-00002.safetensors"}"#);
    refused(&folder, &["model-00002-of-00002.safetensors"]);
    index(r#"{"absent.weight": "model.safetensors"}"#);
    refused(&folder, &["absent.weight", "model.safetensors.index.json"]);
    index(r#"{"lm_head.weight": "../model.safetensors"}"#);
    refused(&folder, &["lm_head.weight", "file name"]);
    folder.write("model.safetensors.index.json", "{}");
    refused(&folder, &["weight_map"]);
}

#[test]
fn configurations_that_cannot_be() {
    refused(
        &with_config(|config| config["architectures"] = serde_json::json!(["FalconForCausalLM"])),
        &["FalconForCausalLM", "LlamaForCausalLM"],
    );
    refused(&with_config(|config| config["hidden_size"] = "wide".into()), &["hidden_size", "whole number"]);
    refused(&with_config(|config| config["hidden_size"] = 0.into()), &["hidden_size", "0"]);
    refused(&with_config(|config| config["num_attention_heads"] = 5.into()), &["num_attention_heads", "5"]);
    refused(
        &with_config(|config| drop(config.as_object_mut().unwrap().remove("num_hidden_layers"))),
        &["num_hidden_layers"],
    );
    refused(
        &with_config(|config| config["num_hidden_layers"] = 4_000_000_000_u64.into()),
        &["num_hidden_layers"],
    );
    refused(
        &with_config(|config| config["num_hidden_layers"] = 16_000_000.into()),
        &["num_hidden_layers", "more than the folder has tensors"],
    );
    refused(&with_config(|config| config["vocab_size"] = 100.into()), &["[259, 32]", "[100, 32]"]);
    refused(
        &with_config(|config| config["quantization_config"] = serde_json::json!({"quant_method": "gptq"})),
        &["quantization_config", "gptq"],
    );
    refused(
        &with_config(|config| config["rope_parameters"] = serde_json::json!({"rope_type": "spiral"})),
        &["spiral"],
    );
    let folder = llama();
    folder.write("config.json", "{");
    refused(&folder, &["config.json", "JSON"]);
}

#[test]
fn tokenizers_that_cannot_be() {
    let folder = llama();
    let json: serde_json::Value = serde_json::from_str(&folder.read("tokenizer.json")).unwrap();
    let with = |path: &str, value: serde_json::Value| {
        let mut json = json.clone();
        *json.pointer_mut(path).unwrap() = value;
        folder.write("tokenizer.json", &json.to_string());
    };
    with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "x+".into());
    refused(&folder, &["pre_tokenizer", "--pre-tokenizer"]);
    with("/model/type", "Unigram".into());
    refused(&folder, &["Unigram"]);
    with("/model/merges/0", "broken".into());
    refused(&folder, &["merge"]);
    with("/model/vocab/he", 1000.into());
    refused(&folder, &["1000", "259"]);
    let first = json.pointer("/model/vocab").unwrap().as_object().unwrap().iter().next().unwrap();
    with("/model/vocab/he", first.1.clone());
    refused(&folder, &["\"he\"", first.0, "under one id"]);
    with("/added_tokens/0/id", 5000.into());
    refused(&folder, &["5000"]);
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    refused(&folder, &["tokenizer.json"]);
}

#[test]
fn targets_that_exist() {
    let folder = llama();
    let out = folder.path().join("there.gguf");
    fs::write(&out, "mine").unwrap();
    let mut options = ConvertOptions::default();
    let error = convert(folder.path(), &out, &options, &()).unwrap_err().to_string();
    assert!(error.contains("there.gguf") && error.contains("exists"), "{error}");
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    options.overwrite = true;
    convert(folder.path(), &out, &options, &()).unwrap();
    let weights = folder.path().join("model.safetensors");
    let error = convert(folder.path(), &weights, &options, &()).unwrap_err().to_string();
    assert!(error.contains("a file of the model itself"), "{error}");
    let gguf = gruff_gguf::Gguf::open(&out).unwrap();
    let full = folder.path().join("full");
    fs::create_dir(&full).unwrap();
    dequantize(&gguf, &full, &DequantizeOptions::default(), &()).unwrap();
    let error = dequantize(&gguf, &full, &DequantizeOptions::default(), &()).unwrap_err().to_string();
    assert!(error.contains("full") && error.contains("exists"), "{error}");
    let nowhere = folder.path().join("no/such/folder");
    assert!(dequantize(&gguf, &nowhere, &DequantizeOptions::default(), &()).is_err());
    assert!(convert(folder.path(), &nowhere, &ConvertOptions::default(), &()).is_err());
}
