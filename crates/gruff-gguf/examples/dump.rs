//! Prints what is in GGUF files as JSON, one line a file: every key with its type, every tensor with its place,
//! and SHA-256 sums of values and data, which `tools/checks/container.py` compares with those of another reader.
//!
//! `cargo run -p gruff-gguf --example dump -- FILE...`

use std::process::ExitCode;

use gruff_gguf::{Array, Endian, Error, Gguf, Value};
use serde_json::json;
use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    let mut failed = false;
    for path in std::env::args_os().skip(1) {
        match Gguf::open(&path).and_then(|model| dump(&model)) {
            Ok(dump) => println!("{dump}"),
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn dump(model: &Gguf) -> Result<serde_json::Value, Error> {
    let metadata: Vec<_> = model
        .metadata()
        .iter()
        .map(|(key, value)| json!([key, value_type(value), sum(|hash| add_value(hash, value))]))
        .collect();
    let mut tensors = Vec::new();
    for tensor in model.tensors() {
        let data = model.data(tensor)?;
        let sum = sum(|hash| hash.update(&*data));
        let (name, shape, id) = (tensor.name(), tensor.shape(), tensor.type_id());
        tensors.push(json!([name, shape, id, tensor.offset(), data.len(), sum]));
    }
    let endian = if model.endian() == Endian::Big { "big" } else { "little" };
    Ok(json!({"version": model.version(), "endian": endian, "metadata": metadata, "tensors": tensors}))
}

fn value_type(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        single => single.value_type().to_string(),
    }
}

fn sum(add: impl FnOnce(&mut Sha256)) -> String {
    let mut hash = Sha256::new();
    add(&mut hash);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Little-endian bytes, integers as 64 bits, strings after their lengths.
fn add_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::String(text) => add_string(hash, text),
        Value::Bool(v) => hash.update([u8::from(*v)]),
        Value::F32(v) => hash.update(v.to_le_bytes()),
        Value::F64(v) => hash.update(v.to_le_bytes()),
        Value::Array(array) => add_array(hash, array),
        integer => add_integer(hash, integer.as_int().unwrap_or_default()),
    }
}

fn add_array(hash: &mut Sha256, array: &Array) {
    match array {
        Array::String(v) => v.iter().for_each(|text| add_string(hash, text)),
        Array::Bool(v) => v.iter().for_each(|&v| hash.update([u8::from(v)])),
        Array::F32(v) => v.iter().for_each(|v| hash.update(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| hash.update(v.to_le_bytes())),
        Array::Array(v) => v.iter().for_each(|array| add_array(hash, array)),
        integers => integers.ints().into_iter().flatten().for_each(|v| add_integer(hash, v)),
    }
}

fn add_string(hash: &mut Sha256, text: &[u8]) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

fn add_integer(hash: &mut Sha256, integer: i128) {
    hash.update((integer as u64).to_le_bytes());
}
