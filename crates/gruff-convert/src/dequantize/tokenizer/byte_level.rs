//! Byte-level BPE.

use gruff_gguf::Gguf;
use gruff_text::pre_tokenizer_json;
use serde_json::{Map, Value, json};

use super::Vocabulary;
use crate::dequantize::values::path_of;
use crate::{Error, Result};

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

pub(super) fn tokenizer_json(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Map<String, Value>> {
    let metadata = gguf.metadata();
    let pre = metadata.str_or(PRE, "default")?;
    let Some((pre_tokenizer, ignore_merges)) = pre_tokenizer_json(pre) else {
        let fault = format!("is {pre:?}, which no pre-tokenizer of tokenizer.json does the same as");
        return Err(Error::key(&path_of(gguf), PRE, fault));
    };
    let merges = metadata.require_str_array(MERGES)?;
    let pairs = merges.iter().enumerate().map(|(number, merge)| {
        // Neither half can hold a space: bytes are written as other characters. The first character may be one.
        let text = String::from_utf8_lossy(merge);
        let border = text.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        match border {
            Some(at) => Ok(json!([text[..at], text[at + 1..]])),
            None => {
                Err(Error::key(&path_of(gguf), MERGES, format!("{number} is {text:?}, but should be a pair")))
            }
        }
    });
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
        "vocab": vocabulary.vocab(), "merges": pairs.collect::<Result<Vec<Value>>>()?,
    });
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": byte_level, "model": model,
    });
    match json {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}
