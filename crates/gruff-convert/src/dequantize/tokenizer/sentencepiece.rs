//! SentencePiece BPE. Its file has scores, tokenizer.json has merges: each way to cut a piece into two others is a
//! merge, better the better the piece.

use std::collections::HashMap;

use gruff_gguf::Gguf;
use gruff_text::TokenType;
use serde_json::{Map, Value, json};

use super::Vocabulary;
use crate::Result;

/// The space as SentencePiece writes it.
const SPACE: &str = "\u{2581}";

pub(super) fn tokenizer_json(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Map<String, Value>> {
    let metadata = gguf.metadata();
    let scores = metadata.f32_array("tokenizer.ggml.scores")?;
    let prefix = metadata.bool_or("tokenizer.ggml.add_space_prefix", true)?;
    let unknown = vocabulary.unknown();
    let score =
        |id: u32| scores.as_deref().and_then(|scores| scores.get(id as usize)).copied().unwrap_or(0.0);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary.vocab(), "merges": merges(vocabulary, score),
    });
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let normalizer = if prefix {
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]})
    } else {
        replace
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders}, "model": model,
    });
    match json {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}

/// Every merge, the best first; those of one piece in the order of their parts' ids.
fn merges(vocabulary: &Vocabulary, score: impl Fn(u32) -> f32) -> Value {
    let normal = |token_type: TokenType| token_type == TokenType::Normal;
    let ids: HashMap<&str, u32> = vocabulary
        .tokens
        .iter()
        .filter(|(_, _, token_type)| normal(*token_type))
        .map(|(id, text, _)| (text.as_str(), *id))
        .collect();
    let mut merges = Vec::new();
    for (id, text, token_type) in &vocabulary.tokens {
        if !normal(*token_type) {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let Some(parts) = ids.get(left).zip(ids.get(right)) {
                merges.push((score(*id), parts, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    merges.iter().map(|(_, _, left, right)| json!([left, right])).collect()
}
