//! Prints the header of GGUF files as JSON, one line a file: versions, keys, and tensors with hashes of data.
//!
//! `cargo run -p gruff-gguf --example dump -- FILE...`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use gruff_gguf::{Array, Endian, Gguf, Value};

fn main() -> ExitCode {
    let mut failed = false;
    for path in std::env::args_os().skip(1) {
        match Gguf::open(&path).and_then(|model| dump(&model)) {
            Ok(json) => failed |= writeln!(io::stdout(), "{json}").is_err(),
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn dump(model: &Gguf) -> Result<String, gruff_gguf::Error> {
    let endian = if model.endian() == Endian::Big { "big" } else { "little" };
    let mut json = format!("{{\"version\":{},\"endian\":\"{endian}\",\"metadata\":[", model.version());
    for (number, (key, value)) in model.metadata().iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let hash = hash_value(value);
        let kind = match value {
            Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
            single => single.value_type().to_string(),
        };
        let _ = write!(json, "{comma}[{},\"{kind}\",\"{hash:016x}\"]", quote(key));
    }
    json.push_str("],\"tensors\":[");
    for (number, tensor) in model.tensors().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let data = model.data(tensor)?;
        let mut hash = Hash::new();
        hash.add(&data);
        let _ = write!(
            json,
            "{comma}[{},{:?},{},{},{},\"{:016x}\"]",
            quote(tensor.name()),
            tensor.shape(),
            tensor.type_id(),
            tensor.offset(),
            data.len(),
            hash.0
        );
    }
    json.push_str("]}");
    Ok(json)
}

/// FNV-1a over 8-byte little-endian words, the last one filled up with zeros: short to write in any language.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Hashes a value's little-endian bytes; a string is preceded by its length.
fn hash_value(value: &Value) -> u64 {
    let mut hash = Hash::new();
    match value {
        Value::String(text) => add_string(&mut hash, text),
        Value::Bool(v) => hash.add(&[u8::from(*v)]),
        Value::F32(v) => hash.add(&v.to_le_bytes()),
        Value::F64(v) => hash.add(&v.to_le_bytes()),
        Value::Array(array) => add_array(&mut hash, array),
        integer => hash.add(&(integer.as_int().unwrap_or_default() as i64).to_le_bytes()),
    }
    hash.0
}

fn add_string(hash: &mut Hash, text: &[u8]) {
    hash.add(&(text.len() as u64).to_le_bytes());
    hash.add(text);
}

fn add_array(hash: &mut Hash, array: &Array) {
    match array {
        Array::String(strings) => strings.iter().for_each(|text| add_string(hash, text)),
        Array::Bool(v) => v.iter().for_each(|&v| hash.add(&[u8::from(v)])),
        Array::F32(v) => v.iter().for_each(|v| hash.add(&v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| hash.add(&v.to_le_bytes())),
        Array::Array(arrays) => arrays.iter().for_each(|array| add_array(hash, array)),
        integers => {
            for v in integers.ints().into_iter().flatten() {
                hash.add(&(v as i64).to_le_bytes());
            }
        }
    }
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
