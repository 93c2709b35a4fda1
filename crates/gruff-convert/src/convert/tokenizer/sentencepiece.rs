//! SentencePiece BPE, from tokenizer.model or from a tokenizer.json that was made of one.

use std::collections::HashMap;
use std::path::Path;

use gruff_gguf::{Metadata, Strings};
use gruff_text::TokenType;
use serde_json::Value;

use super::protobuf::Message;
use super::{Files, added_tokens};
use crate::architecture::Config;
use crate::json::Document;
use crate::{Error, Result};

/// Scores of places that no token has, and of added tokens: below all merges, as llama.cpp's converter sets them.
const PADDING_SCORE: f32 = -10_000.0;
const ADDED_SCORE: f32 = -1000.0;
/// The space as SentencePiece writes it.
const SPACE: char = '\u{2581}';

/// A token of the model.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    text: String,
    score: f32,
    kind: TokenType,
}

/// The pieces, and whether a space is put before the text.
struct Model {
    pieces: Vec<Piece>,
    add_space_prefix: Option<bool>,
}

/// Whether the tokenizer is of this kind: a tokenizer.model, or BPE with byte fallback.
pub(super) fn applies(folder: &Path, files: &Files) -> bool {
    let fallback = files.tokenizer.as_ref().is_some_and(is_json_form);
    fallback || (folder.join("tokenizer.model").is_file() && files.tokenizer.is_none())
}

fn is_json_form(tokenizer: &Document) -> bool {
    let model = tokenizer.get("model");
    let is = |key: &str, wanted: Value| model.and_then(|model| model.get(key)) == Some(&wanted);
    is("type", Value::from("BPE")) && is("byte_fallback", Value::from(true))
}

pub(super) fn describe(
    folder: &Path,
    files: &Files,
    config: &Config,
    vocab: usize,
    metadata: &mut Metadata,
) -> Result<()> {
    let path = folder.join("tokenizer.model");
    let model = match &files.tokenizer {
        _ if path.is_file() => read_model(&path)?,
        Some(tokenizer) => from_json(tokenizer)?,
        None => return Err(Error::file(folder, "has neither tokenizer.model nor tokenizer.json")),
    };
    let mut pieces = model.pieces;
    if pieces.len() > vocab {
        let fault = format!("has {} tokens, but the model has {vocab} (vocab_size)", pieces.len());
        return Err(Error::file(folder, fault));
    }
    for id in pieces.len()..vocab {
        pieces.push(Piece { text: format!("[PAD{id}]"), score: PADDING_SCORE, kind: TokenType::Unused });
    }
    for token in added_tokens(files)? {
        let Some(piece) = pieces.get_mut(token.id) else {
            let fault = format!(
                "has the added token {:?} with id {}, but the model has {vocab} tokens",
                token.text, token.id
            );
            return Err(Error::file(folder, fault));
        };
        // The token for the unknown is both.
        let is_unknown = piece.kind == TokenType::Unknown && piece.text == token.text;
        let kind = if is_unknown { TokenType::Unknown } else { token.kind() };
        let text = if kind == TokenType::UserDefined { token.text.replace(SPACE, " ") } else { token.text };
        *piece = Piece { text, score: ADDED_SCORE, kind };
    }
    let mut tokens = Strings::with_capacity(vocab, pieces.iter().map(|piece| piece.text.len()).sum());
    pieces.iter().for_each(|piece| tokens.push(&piece.text));
    metadata.insert("tokenizer.ggml.model", "llama");
    metadata.insert("tokenizer.ggml.pre", "default");
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.scores", pieces.iter().map(|piece| piece.score).collect::<Vec<f32>>());
    metadata.insert(
        "tokenizer.ggml.token_type",
        pieces.iter().map(|piece| piece.kind as i32).collect::<Vec<i32>>(),
    );
    let stated = match &files.config {
        Some(config) => config.bool("add_prefix_space")?,
        None => None,
    };
    let never = (config.architecture() == "gemma3").then_some(false);
    if let Some(add) = never.or(stated).or(model.add_space_prefix) {
        metadata.insert("tokenizer.ggml.add_space_prefix", add);
    }
    Ok(())
}

/// Reads SentencePiece's own file: <https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto>.
fn read_model(path: &Path) -> Result<Model> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let damaged = || Error::file(path, "is no SentencePiece model, or damaged");
    let mut model = Model { pieces: Vec::new(), add_space_prefix: None };
    for field in Message(&bytes) {
        let field = field.ok_or_else(damaged)?;
        match field.number {
            1 => model.pieces.push(piece(field.bytes.ok_or_else(damaged)?).ok_or_else(damaged)?),
            // The normalizer's `add_dummy_prefix`.
            3 => {
                for field in Message(field.bytes.ok_or_else(damaged)?) {
                    let field = field.ok_or_else(damaged)?;
                    if field.number == 3 && field.value == 0 {
                        model.add_space_prefix = Some(false);
                    }
                }
            }
            _ => {}
        }
    }
    if model.pieces.is_empty() { Err(damaged()) } else { Ok(model) }
}

fn piece(bytes: &[u8]) -> Option<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: TokenType::Normal };
    for field in Message(bytes) {
        let field = field?;
        match field.number {
            1 => piece.text = std::str::from_utf8(field.bytes?).ok()?.to_owned(),
            2 => piece.score = f32::from_bits(field.value as u32),
            3 => {
                piece.kind = match field.value {
                    2 => TokenType::Unknown,
                    3 => TokenType::Control,
                    5 => TokenType::Unused,
                    6 => TokenType::Byte,
                    // Pieces that users defined are found by their scores like others.
                    _ => TokenType::Normal,
                }
            }
            _ => {}
        }
    }
    Some(piece).filter(|piece| !piece.score.is_nan())
}

/// Takes scores from the order of merges: the earlier a merge, the better the piece that it makes.
fn from_json(tokenizer: &Document) -> Result<Model> {
    let model = tokenizer.section("model")?.ok_or_else(|| tokenizer.refuse("model", "is missing"))?;
    let refuse = |key: &str| tokenizer.refuse(key, "is not what a BPE tokenizer has there");
    let vocab = model.get("vocab").and_then(Value::as_object).ok_or_else(|| refuse("model.vocab"))?;
    let merges = model.get("merges").and_then(Value::as_array).ok_or_else(|| refuse("model.merges"))?;
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let whole = match merge {
            Value::String(pair) => pair.split_once(' ').map(|(left, right)| format!("{left}{right}")),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some(format!("{left}{right}")),
                _ => None,
            },
            _ => None,
        };
        ranks.entry(whole.ok_or_else(|| refuse("model.merges"))?).or_insert(rank);
    }
    let unknown = model.str("unk_token")?;
    let mut pieces = vec![None; vocab.len()];
    for (text, id) in vocab {
        let slot = id.as_u64().and_then(|id| pieces.get_mut(usize::try_from(id).ok()?));
        // Added tokens may fill holes, but a hole of the vocabulary itself makes ids meaningless.
        let slot = slot.ok_or_else(|| refuse("model.vocab"))?;
        let (kind, score) = if unknown == Some(text) {
            (TokenType::Unknown, 0.0)
        } else if is_byte(text) {
            (TokenType::Byte, 0.0)
        } else {
            let rank = ranks.get(text).copied().unwrap_or(merges.len());
            (TokenType::Normal, -(rank as f32))
        };
        *slot = Some(Piece { text: text.clone(), score, kind });
    }
    let pieces = pieces.into_iter().collect::<Option<_>>().ok_or_else(|| refuse("model.vocab"))?;
    // A space is put there unless a file says otherwise.
    let add_space_prefix = (!prepends_space(tokenizer)).then_some(false);
    Ok(Model { pieces, add_space_prefix })
}

fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether the normalizer or the pre-tokenizer puts a space before the text.
fn prepends_space(tokenizer: &Document) -> bool {
    fn any(step: &Value) -> bool {
        let several = ["normalizers", "pretokenizers"].iter().find_map(|key| step.get(key)?.as_array());
        match step.get("type").and_then(Value::as_str) {
            Some("Sequence") => several.is_some_and(|steps| steps.iter().any(any)),
            Some("Prepend") => true,
            Some("Metaspace") => match step.get("prepend_scheme").and_then(Value::as_str) {
                Some(scheme) => scheme != "never",
                None => step.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true),
            },
            _ => false,
        }
    }
    ["normalizer", "pre_tokenizer"].iter().any(|key| tokenizer.get(key).is_some_and(any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn models_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.model");
        let unknown = [field(1, b"<unk>"), vec![2 << 3 | 5, 0, 0, 0, 0], vec![3 << 3, 2]].concat();
        let score = (-1.5_f32).to_le_bytes();
        let normal = [field(1, "▁the".as_bytes()), [&[2 << 3 | 5][..], &score].concat()].concat();
        let normalizer = field(3, &[3 << 3, 0]);
        std::fs::write(&path, [field(1, &unknown), field(1, &normal), normalizer].concat()).unwrap();
        let model = read_model(&path).unwrap();
        let piece = |text: &str, score, kind| Piece { text: text.to_owned(), score, kind };
        let expected = [piece("<unk>", 0.0, TokenType::Unknown), piece("▁the", -1.5, TokenType::Normal)];
        assert_eq!(model.pieces, expected);
        assert_eq!(model.add_space_prefix, Some(false));
        for damaged in [&b"\x0a\xff"[..], b"", b"hello there", &[0x0a, 3, 0x0a, 1, 0xff]] {
            std::fs::write(&path, damaged).unwrap();
            let error = read_model(&path).err().unwrap().to_string();
            assert!(error.contains("SentencePiece"), "{error}");
        }
    }

    #[test]
    fn scores_follow_the_merges() {
        let json = serde_json::json!({
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4, "aab": 5},
                "merges": [["a", "b"], ["a", "ab"], ["aa", "b"]]},
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        });
        let Value::Object(object) = json else { unreachable!() };
        let document = Document::from_object(Path::new("tokenizer.json"), object);
        assert!(is_json_form(&document));
        let model = from_json(&document).unwrap();
        let scores: Vec<f32> = model.pieces.iter().map(|piece| piece.score).collect();
        assert_eq!(scores, [0.0, 0.0, -3.0, -3.0, 0.0, -1.0]);
        assert_eq!(model.pieces[1].kind, TokenType::Byte);
        assert_eq!(model.add_space_prefix, None);
    }
}
