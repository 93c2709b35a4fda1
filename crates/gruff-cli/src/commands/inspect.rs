use std::io::Write;

use clap::Args;
use gruff::floors::gguf::{Array, Endian, TensorInfo, Value};
use gruff::floors::models::supported_architectures;
use gruff::floors::text::chat::ChatTemplate;
use gruff::{Checkpoint, TypeShare};
use serde_json::{Map, Value as Json, json};

use crate::args::SourceArgs;
use crate::console::{Console, stdout};
use crate::size::Bytes;

/// Show what a GGUF file holds
///
/// Only the header is read, whatever the size of the file. Files of architectures that gruff cannot run are
/// shown too.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gruff inspect model.gguf\n  gruff inspect model.gguf --metadata --tensors\n  \
                  gruff inspect model.gguf --tensors --json | jq '.tensors[].name'"
)]
pub(crate) struct Inspect {
    /// The model
    model: String,
    /// Show every tensor
    #[arg(long)]
    tensors: bool,
    /// Show every metadata key
    #[arg(long)]
    metadata: bool,
    /// Print a JSON object; arrays are whole there
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// Elements of an array that are shown to people.
const SHOWN: usize = 6;
/// Characters of a text that are shown to people.
const SHOWN_CHARS: usize = 72;

impl Inspect {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let checkpoint = self.source.open(&self.model, console)?;
        let mut out = std::io::BufWriter::new(stdout());
        if self.json {
            writeln!(out, "{:#}", self.as_json(&checkpoint))?;
            return Ok(out.flush()?);
        }
        for (name, value) in summary(&checkpoint) {
            writeln!(out, "{name:<14} {value}")?;
        }
        writeln!(out, "{:<14} {:>8} {:>12} {:>12}", "types", "tensors", "values", "size")?;
        for TypeShare { name, tensors, values, bytes } in checkpoint.types() {
            writeln!(out, "  {name:<12} {tensors:>8} {values:>12} {:>12}", Bytes(bytes))?;
        }
        if self.metadata {
            writeln!(out, "\nmetadata")?;
            for (key, value) in checkpoint.gguf().metadata().iter() {
                writeln!(out, "  {} = {}", shown(key), describe(value))?;
            }
        }
        if self.tensors {
            writeln!(out, "\ntensors (row length first)")?;
            for tensor in checkpoint.gguf().tensors() {
                let size = tensor.bytes().map_or_else(|| "?".to_owned(), |bytes| Bytes(bytes).to_string());
                let shape = format!("{:?}", tensor.shape());
                writeln!(
                    out,
                    "  {:<44} {shape:<20} {:<8} {size:>12}",
                    shown(tensor.name()),
                    type_of(tensor)
                )?;
            }
        }
        Ok(out.flush()?)
    }

    fn as_json(&self, checkpoint: &Checkpoint) -> Json {
        let gguf = checkpoint.gguf();
        let types: Vec<Json> = checkpoint
            .types()
            .iter()
            .map(|share| {
                json!({ "type": share.name, "tensors": share.tensors, "values": share.values, "bytes": share.bytes })
            })
            .collect();
        let mut object = json!({
            "id": checkpoint.files().id,
            "files": gguf.paths(),
            "size": gguf.file_size(),
            "version": gguf.version(),
            "big_endian": gguf.endian() == Endian::Big,
            "architecture": text(checkpoint, "general.architecture"),
            "name": text(checkpoint, "general.name"),
            "supported": is_supported(checkpoint),
            "parameters": checkpoint.parameters(),
            "tensor_count": gguf.tensors().len(),
            "types": types,
        });
        if self.metadata {
            let metadata: Map<String, Json> =
                gguf.metadata().iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect();
            object["metadata"] = Json::Object(metadata);
        }
        if self.tensors {
            let tensor = |tensor: &TensorInfo| {
                json!({
                    "name": tensor.name(),
                    "shape": tensor.shape(),
                    "type": type_of(tensor),
                    "offset": tensor.offset(),
                    "bytes": tensor.bytes(),
                    "part": tensor.part(),
                })
            };
            object["tensors"] = gguf.tensors().map(tensor).collect();
        }
        object
    }
}

/// What people want to know first.
fn summary(checkpoint: &Checkpoint) -> Vec<(&'static str, String)> {
    let gguf = checkpoint.gguf();
    let metadata = gguf.metadata();
    let order = if gguf.endian() == Endian::Big { ", big-endian" } else { "" };
    let mut lines = vec![("file", checkpoint.name())];
    if gguf.paths().len() > 1 {
        lines.push(("parts", gguf.paths().len().to_string()));
    }
    lines.push(("size", format!("{} (GGUF version {}{order})", Bytes(gguf.file_size()), gguf.version())));
    if let Some(architecture) = text(checkpoint, "general.architecture") {
        let note = if is_supported(checkpoint) { "" } else { " (gruff cannot run it)" };
        lines.push(("architecture", format!("{}{note}", shown(architecture))));
        let number = |key: &str| metadata.get(&format!("{architecture}.{key}")).and_then(Value::as_int);
        for (name, key) in
            [("layers", "block_count"), ("width", "embedding_length"), ("context", "context_length")]
        {
            if let Some(value) = number(key) {
                lines.push((name, value.to_string()));
            }
        }
        if let (Some(experts), Some(used)) = (number("expert_count"), number("expert_used_count")) {
            lines.push(("experts", format!("{used} of {experts}")));
        }
    }
    if let Some(name) = text(checkpoint, "general.name") {
        lines.push(("name", shown(name)));
    }
    lines.push(("parameters", checkpoint.parameters().to_string()));
    if let Some(model) = text(checkpoint, "tokenizer.ggml.model") {
        let pre =
            text(checkpoint, "tokenizer.ggml.pre").map(|pre| format!(", {}", shown(pre))).unwrap_or_default();
        let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array).map_or(0, Array::len);
        lines.push(("tokenizer", format!("{}{pre}, {tokens} tokens", shown(model))));
    }
    let named = ChatTemplate::names(metadata);
    let template = match (metadata.contains("tokenizer.chat_template"), named.is_empty()) {
        (true, true) => "yes".to_owned(),
        (true, false) => format!("yes, and {}", named.join(", ")),
        (false, true) => "none".to_owned(),
        (false, false) => named.join(", "),
    };
    lines.push(("chat template", shown(&template)));
    lines
}

fn text<'a>(checkpoint: &'a Checkpoint, key: &str) -> Option<&'a str> {
    checkpoint.gguf().metadata().get(key).and_then(Value::as_str)
}

fn is_supported(checkpoint: &Checkpoint) -> bool {
    let architecture = text(checkpoint, "general.architecture");
    supported_architectures().any(|known| Some(known) == architecture)
}

fn type_of(tensor: &TensorInfo) -> String {
    match tensor.block_type() {
        Ok(block_type) => block_type.to_string(),
        Err(_) => format!("type {}", tensor.type_id()),
    }
}

/// Text of a file for a terminal: control characters would be obeyed there.
fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A value in one line, with its type.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(array) => {
            let more = if array.len() > SHOWN { ", …" } else { "" };
            let head: Vec<String> = elements(array, SHOWN).iter().map(one_line).collect();
            format!("[{}{more}] ({} {})", head.join(", "), array.len(), array.element_type())
        }
        value => format!("{} ({})", one_line(&to_json(value)), value.value_type()),
    }
}

/// A JSON value cut to what fits beside its key.
fn one_line(value: &Json) -> String {
    let text = shown(&value.to_string());
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Array(array) => Json::Array(elements(array, usize::MAX)),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Bool(value) => json!(value),
        Value::F32(value) => float(f64::from(*value), *value),
        Value::F64(value) => float(*value, *value),
        value => value.as_int().map_or(Json::Null, integer),
    }
}

/// The first elements of an array.
fn elements(array: &Array, most: usize) -> Vec<Json> {
    match array {
        Array::Array(inner) => {
            inner.iter().take(most).map(|array| Json::Array(elements(array, most))).collect()
        }
        Array::String(strings) => {
            strings.iter().take(most).map(|bytes| String::from_utf8_lossy(bytes).into()).collect()
        }
        Array::Bool(values) => values.iter().take(most).map(|value| json!(value)).collect(),
        Array::F32(values) => {
            values.iter().take(most).map(|value| float(f64::from(*value), *value)).collect()
        }
        Array::F64(values) => values.iter().take(most).map(|value| float(*value, *value)).collect(),
        array => array.ints().into_iter().flatten().take(most).map(integer).collect(),
    }
}

/// A number with as many digits as its type needs; JSON has no infinities.
fn float(value: f64, as_written: impl serde::Serialize + std::fmt::Display) -> Json {
    if value.is_finite() { json!(as_written) } else { as_written.to_string().into() }
}

fn integer(value: i128) -> Json {
    i64::try_from(value)
        .map(Json::from)
        .or_else(|_| u64::try_from(value).map(Json::from))
        .unwrap_or(Json::Null)
}
