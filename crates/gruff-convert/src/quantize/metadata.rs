//! The metadata of the new file.

use gruff_gguf::{Gguf, Metadata, Value};

use super::QuantizeOptions;
use crate::{Error, Result};

/// The version of ggml's quantized formats (`GGML_QNT_VERSION`).
const QUANTIZATION_VERSION: u32 = 2;

/// What the old file has, with what changes.
pub(super) fn of_quantized(model: &Gguf, options: &QuantizeOptions) -> Metadata {
    let mut metadata = model.metadata().clone();
    metadata.insert("general.quantization_version", QUANTIZATION_VERSION);
    if let Some(file_type) = options.preset.file_type() {
        metadata.insert("general.file_type", file_type);
    }
    if let Some(importance) = &options.importance {
        metadata.insert("quantize.imatrix.file", importance.file());
        if let Some(dataset) = importance.datasets().first() {
            metadata.insert("quantize.imatrix.dataset", dataset.as_str());
        }
        let entries = u32::try_from(importance.len()).unwrap_or(u32::MAX);
        metadata.insert("quantize.imatrix.entries_count", entries);
        metadata.insert("quantize.imatrix.chunks_count", importance.chunks());
    }
    for (key, value) in &options.metadata {
        metadata.insert(key, value.clone());
    }
    metadata
}

/// Reads `KEY=TYPE:VALUE` with `int`, `float`, `bool` or `str` as TYPE.
///
/// # Errors
/// [`Error::Argument`] says which part is wrong.
pub fn parse_override(text: &str) -> Result<(String, Value)> {
    let refuse = |fault: &str| Error::Argument(format!("metadata {text:?}: {fault}"));
    let parts = text.split_once('=').and_then(|(key, rest)| Some((key, rest.split_once(':')?)));
    let Some((key, (kind, value))) = parts.filter(|(key, _)| !key.is_empty()) else {
        return Err(refuse("write KEY=TYPE:VALUE, such as tokenizer.ggml.add_bos_token=bool:false"));
    };
    if key.starts_with("split.") {
        return Err(refuse("split.* tell how a model is split; use `gruff split`"));
    }
    let number = || refuse(&format!("{value:?} is no {kind}"));
    let value: Value = match kind {
        // Counts and ids are unsigned in every key that a file needs; others keep their sign.
        "int" => match value.parse::<u32>() {
            Ok(value) => value.into(),
            Err(_) => value.parse::<i64>().map_err(|_| number())?.into(),
        },
        "float" => value.parse::<f32>().map_err(|_| number())?.into(),
        "bool" => value.parse::<bool>().map_err(|_| number())?.into(),
        "str" => value.into(),
        _ => return Err(refuse("the type is int, float, bool or str")),
    };
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_have_types() {
        assert_eq!(parse_override("a.b=int:7").unwrap(), ("a.b".to_owned(), Value::U32(7)));
        assert_eq!(parse_override("a.b=int:-7").unwrap().1, Value::I64(-7));
        assert_eq!(parse_override("a.b=float:0.5").unwrap().1, Value::F32(0.5));
        assert_eq!(parse_override("a.b=bool:true").unwrap().1, Value::Bool(true));
        assert_eq!(parse_override("a.b=str:x=y:z").unwrap().1, Value::from("x=y:z"));
        for text in ["", "a", "a=7", "=int:7", "a=int:x", "a=u8:1", "a=bool:yes", "split.count=int:5"] {
            assert!(parse_override(text).is_err(), "{text}");
        }
    }
}
