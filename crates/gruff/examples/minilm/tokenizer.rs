//! BERT's vocabulary as GGUF would write it.

use std::error::Error;
use std::path::Path;

use gruff::floors::gguf::{Metadata, Strings};
use gruff::floors::text::{EncodeOptions, Tokenizer, TokenizerOptions};

/// Positions that the model has.
const LONGEST: usize = 512;

/// Reads `vocab.txt`, one token a line.
pub(crate) fn load(path: &Path) -> Result<Tokenizer, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let own: Vec<&str> = text.lines().collect();
    let id = |token: &str| -> Result<u32, String> {
        let at = own.iter().position(|known| *known == token);
        at.map(|at| at as u32).ok_or_else(|| format!("{} has no {token}", path.display()))
    };
    let is_special = |token: &str| token.starts_with('[') && token.ends_with(']') && token.len() > 2;
    // GGUF marks pieces that begin a word, BERT those that go on with one.
    let tokens: Strings = own
        .iter()
        .map(|token| match token.strip_prefix("##") {
            Some(rest) => rest.to_owned(),
            None if is_special(token) => (*token).to_owned(),
            None => format!("\u{2581}{token}"),
        })
        .collect();
    let types: Vec<i32> = own.iter().map(|token| if is_special(token) { 3 } else { 1 }).collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "bert");
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.token_type", types);
    for (key, token) in [
        ("unknown", "[UNK]"),
        ("seperator", "[SEP]"),
        ("padding", "[PAD]"),
        ("cls", "[CLS]"),
        ("bos", "[CLS]"),
    ] {
        metadata.insert(&format!("tokenizer.ggml.{key}_token_id"), id(token)?);
    }
    Ok(Tokenizer::from_gguf(&metadata, &TokenizerOptions::new())?)
}

/// A text's ids between `[CLS]` and `[SEP]`, cut to what the model can read.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut ids = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })?;
    if ids.len() > LONGEST {
        let end = ids.last().copied();
        ids.truncate(LONGEST - 1);
        ids.extend(end);
    }
    Ok(ids)
}
