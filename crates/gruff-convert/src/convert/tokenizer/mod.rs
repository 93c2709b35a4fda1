//! The tokenizer of a folder as GGUF metadata.

mod byte_level;
mod protobuf;
mod sentencepiece;
mod special;
mod template;

pub(crate) use special::{ADD_SEP, role_key};

use std::path::Path;

use gruff_gguf::{Metadata, Strings};
use gruff_text::{TokenType, Tokenizer, TokenizerOptions};
use serde_json::Value;

use crate::architecture::Config;
use crate::json::Document;
use crate::{Error, Result};

const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// The files that describe a tokenizer.
pub(crate) struct Files {
    /// `tokenizer.json`.
    pub(crate) tokenizer: Option<Document>,
    /// `tokenizer_config.json`.
    pub(crate) config: Option<Document>,
}

impl Files {
    fn read(folder: &Path) -> Result<Self> {
        Ok(Files {
            tokenizer: Document::read_optional(&folder.join("tokenizer.json"))?,
            config: Document::read_optional(&folder.join("tokenizer_config.json"))?,
        })
    }
}

/// Describes the tokenizer of `folder` in `metadata`.
pub(crate) fn describe(
    folder: &Path,
    config: &Config,
    pre_tokenizer: Option<&str>,
    metadata: &mut Metadata,
) -> Result<()> {
    let files = Files::read(folder)?;
    let vocab = config.document.require_u32("vocab_size")? as usize;
    if sentencepiece::applies(folder, &files) {
        sentencepiece::describe(folder, &files, config, vocab, metadata)?;
    } else if let Some(tokenizer) = &files.tokenizer {
        byte_level::describe(tokenizer, &files, vocab, pre_tokenizer, metadata)?;
    } else {
        return Err(Error::file(folder, "has no tokenizer.json; save the tokenizer with the model"));
    }
    special::describe(&files, config, vocab, metadata)?;
    // Llama's own vocabulary begins texts with a token; SmolLM and Granite, known by their size, do not.
    if config.architecture() == "llama" && vocab == 49_152 {
        metadata.insert(ADD_BOS, false);
    }
    settle_bos(folder, &files, metadata)?;
    template::describe(folder, &files, metadata)
}

/// Builds the tokenizer, which has to be sound, and says so where it would begin texts with a token that
/// tokenizer.json does not put there.
fn settle_bos(folder: &Path, files: &Files, metadata: &mut Metadata) -> Result<()> {
    let tokenizer = Tokenizer::from_gguf(metadata, &TokenizerOptions::new())
        .map_err(|error| Error::file(folder, format!("the tokenizer is not sound: {error}")))?;
    let silent = files.tokenizer.as_ref().is_some_and(|json| json.get("post_processor").is_none());
    if silent && tokenizer.add_bos() && !metadata.contains(ADD_BOS) {
        metadata.insert(ADD_BOS, false);
    }
    Ok(())
}

/// A token that is found in the text before anything is split.
pub(crate) struct AddedToken {
    pub(crate) id: usize,
    pub(crate) text: String,
    pub(crate) special: bool,
}

impl AddedToken {
    /// Some tokens that are structure are not marked so in published tokenizers.
    pub(crate) fn kind(&self) -> TokenType {
        let text = &self.text;
        let framed = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
        let looks_special = matches!(text.as_str(), "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
            || framed("<|", "|>")
            || framed("<｜", "｜>")
            || framed("<unused", ">");
        if self.special || looks_special { TokenType::Control } else { TokenType::UserDefined }
    }
}

/// The added tokens of both files, those of tokenizer.json first.
pub(crate) fn added_tokens(files: &Files) -> Result<Vec<AddedToken>> {
    let mut tokens = Vec::new();
    let flag = |token: &Value| token.get("special").and_then(Value::as_bool).unwrap_or(false);
    let text = |token: &Value| token.get("content").and_then(Value::as_str).map(str::to_owned);
    if let Some(document) = &files.tokenizer {
        for token in document.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            let id = token.get("id").and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
            let Some((id, content)) = id.zip(text(token)) else {
                return Err(document.refuse("added_tokens", "should have an id and a content each"));
            };
            tokens.push(AddedToken { id, text: content, special: flag(token) });
        }
    }
    if let Some(document) = &files.config {
        for (key, token) in
            document.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
        {
            let Some((id, content)) = key.parse().ok().zip(text(token)) else {
                let key = format!("added_tokens_decoder.{key}");
                return Err(document.refuse(&key, "should be an id with a content"));
            };
            if !tokens.iter().any(|known: &AddedToken| known.id == id) {
                tokens.push(AddedToken { id, text: content, special: flag(token) });
            }
        }
    }
    Ok(tokens)
}

/// Tokens by id, with room for the places that no token has.
pub(crate) struct Table {
    tokens: Vec<Option<String>>,
    kinds: Vec<TokenType>,
}

impl Table {
    pub(crate) fn new(vocab: usize) -> Self {
        Table { tokens: vec![None; vocab], kinds: vec![TokenType::Unused; vocab] }
    }

    /// The token that has an id so far.
    pub(crate) fn text(&self, id: usize) -> Option<&str> {
        self.tokens.get(id)?.as_deref()
    }

    /// Sets a token; its id must be one of the model's.
    pub(crate) fn set(
        &mut self,
        document: &Document,
        id: usize,
        text: String,
        kind: TokenType,
    ) -> Result<()> {
        let vocab = self.tokens.len();
        let Some((slot, own_kind)) = self.tokens.get_mut(id).zip(self.kinds.get_mut(id)) else {
            let fault = format!("has {text:?} with id {id}, but the model has {vocab} tokens (vocab_size)");
            return Err(Error::file(document.path(), fault));
        };
        *slot = Some(text);
        *own_kind = kind;
        Ok(())
    }

    /// Writes tokens and types.
    pub(crate) fn describe(self, metadata: &mut Metadata) {
        let bytes = self.tokens.iter().flatten().map(String::len).sum();
        let mut strings = Strings::with_capacity(self.tokens.len(), bytes);
        for (id, token) in self.tokens.iter().enumerate() {
            match token {
                Some(text) => strings.push(text),
                None => strings.push(format!("[PAD{id}]")),
            }
        }
        let kinds: Vec<i32> = self.kinds.iter().map(|kind| *kind as i32).collect();
        metadata.insert("tokenizer.ggml.tokens", strings);
        metadata.insert("tokenizer.ggml.token_type", kinds);
    }
}
