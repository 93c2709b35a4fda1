//! Byte-level BPE from tokenizer.json.

use gruff_gguf::{Metadata, Strings};
use gruff_text::{TokenType, pre_tokenizer_name};
use serde_json::Value;

use super::{Files, Table, added_tokens};
use crate::json::Document;
use crate::{Error, Result};

/// U+0020 as byte-level tokenizers write it.
const SPACE: &str = "\u{120}";

pub(super) fn describe(
    tokenizer: &Document,
    files: &Files,
    vocab: usize,
    pre_tokenizer: Option<&str>,
    metadata: &mut Metadata,
) -> Result<()> {
    let model = tokenizer.section("model")?.ok_or_else(|| tokenizer.refuse("model", "is missing"))?;
    // Early files leave the type out.
    let kind = model.str("type")?.unwrap_or("BPE");
    if kind != "BPE" {
        let fault = format!("is {kind:?}; only BPE tokenizers can be converted");
        return Err(tokenizer.refuse("model.type", fault));
    }
    let pre = match pre_tokenizer {
        Some(name) => name.to_owned(),
        None => detect(tokenizer, &model)?.to_owned(),
    };
    let mut table = Table::new(vocab);
    for (text, id) in model.get("vocab").and_then(Value::as_object).into_iter().flatten() {
        let Some(id) = id.as_u64().and_then(|id| usize::try_from(id).ok()) else {
            return Err(tokenizer.refuse("model.vocab", format!("has {id} as the id of {text:?}")));
        };
        if let Some(other) = table.text(id) {
            let fault = format!("has {other:?} and {text:?} under one id, {id}");
            return Err(tokenizer.refuse("model.vocab", fault));
        }
        table.set(tokenizer, id, text.clone(), TokenType::Normal)?;
    }
    for token in added_tokens(files)? {
        let kind = token.kind();
        let text =
            if kind == TokenType::UserDefined { token.text.replace('\u{2581}', " ") } else { token.text };
        table.set(tokenizer, token.id, text, kind)?;
    }
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", pre);
    table.describe(metadata);
    metadata.insert("tokenizer.ggml.merges", merges(tokenizer, &model)?);
    Ok(())
}

/// The name of the pre-tokenizer, by what it does.
fn detect(tokenizer: &Document, model: &Document) -> Result<&'static str> {
    let ignore_merges = model.bool("ignore_merges")?.unwrap_or(false);
    let steps = tokenizer.get("pre_tokenizer").unwrap_or(&Value::Null);
    pre_tokenizer_name(steps, ignore_merges).ok_or_else(|| {
        let fault = "is none that GGUF has a name for; name the one to take instead with `--pre-tokenizer NAME` if \
                     it cuts text in the same way";
        Error::key(tokenizer.path(), "pre_tokenizer", fault)
    })
}

/// Merges as `left right`: tokenizer.json has them so, or as pairs.
fn merges(tokenizer: &Document, model: &Document) -> Result<Strings> {
    let refuse = || tokenizer.refuse("model.merges", "should be an array of pairs of tokens");
    let all = model.get("merges").and_then(Value::as_array).ok_or_else(refuse)?;
    let mut strings = Strings::with_capacity(all.len(), all.len() * 8);
    for merge in all {
        match merge {
            Value::String(pair) => strings.push(pair),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => {
                    strings.push(format!("{} {}", left.replace(' ', SPACE), right.replace(' ', SPACE)));
                }
                _ => return Err(refuse()),
            },
            _ => return Err(refuse()),
        }
    }
    Ok(strings)
}
