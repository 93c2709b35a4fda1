//! generation_config.json.

use gruff_gguf::Metadata;
use serde_json::{Map, Value, json};

use crate::convert::tokenizer::role_key;

/// Keys behind `general.sampling.`, and transformers' own.
const SAMPLING: &[(&str, &str)] = &[
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("temp", "temperature"),
    ("penalty_repeat", "repetition_penalty"),
];

/// What the file recommends; values of odd types are left out.
pub(super) fn config(metadata: &Metadata) -> Value {
    let mut config = Map::new();
    let id = |role: &str| metadata.u32(role_key(role)).ok().flatten();
    for role in ["bos", "pad"] {
        if let Some(id) = id(role) {
            config.insert(format!("{role}_token_id"), id.into());
        }
    }
    let mut ends: Vec<u32> = [id("eos"), id("eot")].into_iter().flatten().collect();
    ends.dedup();
    match ends.as_slice() {
        [] => {}
        [end] => drop(config.insert("eos_token_id".into(), (*end).into())),
        several => drop(config.insert("eos_token_id".into(), json!(several))),
    }
    for (from, to) in SAMPLING {
        let Some(value) = metadata.get(&format!("general.sampling.{from}")) else { continue };
        let number = match value.as_int().and_then(|whole| i64::try_from(whole).ok()) {
            Some(whole) => Some(json!(whole)),
            // The shortest number that is this f32.
            None => value.as_f64().and_then(|v| (v as f32).to_string().parse::<f64>().ok()).map(|v| json!(v)),
        };
        if let Some(number) = number {
            config.insert((*to).to_owned(), number);
        }
    }
    // transformers refuses a temperature without sampling.
    let samples = ["temperature", "top_k", "top_p", "min_p"].iter().any(|key| config.contains_key(*key));
    if samples {
        config.insert("do_sample".into(), true.into());
    }
    Value::Object(config)
}
