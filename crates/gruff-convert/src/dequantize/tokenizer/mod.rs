//! The tokenizer of a GGUF file in the files that transformers reads.

mod byte_level;
mod sentencepiece;

use gruff_gguf::{Array, Gguf, Metadata};
use gruff_text::{TokenType, Tokenizer, TokenizerOptions};
use serde_json::{Map, Value, json};

use super::values::path_of;
use crate::convert::tokenizer::{ADD_SEP, role_key};
use crate::{Error, Result};

const MODEL: &str = "tokenizer.ggml.model";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The vocabulary, as the two kinds of tokenizer.json need it.
struct Vocabulary {
    tokenizer: Tokenizer,
    /// Every token that leads somewhere, with its id.
    tokens: Vec<(u32, String, TokenType)>,
}

/// Files by name, relative to the folder; none for a model without a vocabulary.
pub(super) fn files(gguf: &Gguf) -> Result<Vec<(String, String)>> {
    let metadata = gguf.metadata();
    let Some(kind) = metadata.str(MODEL)? else { return Ok(Vec::new()) };
    let refuse = |fault: String| Error::key(&path_of(gguf), MODEL, fault);
    let tokenizer = Tokenizer::from_gguf(metadata, &TokenizerOptions::new())
        .map_err(|error| refuse(format!("makes no tokenizer: {error}")))?;
    let vocabulary = Vocabulary::new(tokenizer);
    let mut json = match kind {
        "gpt2" => byte_level::tokenizer_json(gguf, &vocabulary)?,
        "llama" => sentencepiece::tokenizer_json(gguf, &vocabulary)?,
        other => {
            return Err(refuse(format!(
                "is {other:?}, which has no form in tokenizer.json; gpt2 and llama have"
            )));
        }
    };
    json.insert("added_tokens".into(), vocabulary.added_tokens());
    let add_bos = metadata.get("tokenizer.ggml.add_bos_token").is_some() || vocabulary.tokenizer.add_bos();
    if add_bos || vocabulary.tokenizer.add_eos() {
        json.insert("post_processor".into(), vocabulary.post_processor(metadata.bool(ADD_SEP)?));
    }
    let mut files = vec![
        ("tokenizer.json".to_owned(), format!("{:#}\n", Value::Object(json))),
        ("tokenizer_config.json".to_owned(), format!("{:#}\n", vocabulary.config(metadata))),
    ];
    files.extend(templates(metadata)?);
    Ok(files)
}

impl Vocabulary {
    fn new(tokenizer: Tokenizer) -> Self {
        let ids = 0..tokenizer.vocab_size() as u32;
        let tokens = ids.filter_map(|id| {
            let token_type = tokenizer.token_type(id);
            (token_type != TokenType::Unused).then_some((id, tokenizer.id_to_token(id)?, token_type))
        });
        Vocabulary { tokens: tokens.collect(), tokenizer }
    }

    /// `model.vocab`: every token, added ones too, so that each has the id that it should have.
    fn vocab(&self) -> Value {
        let entries = self.tokens.iter().map(|(id, text, _)| (text.clone(), Value::from(*id)));
        Value::Object(entries.collect())
    }

    /// Tokens that are found in the text before it is split.
    fn added_tokens(&self) -> Value {
        let added = self.tokens.iter().filter_map(|(id, text, token_type)| {
            let special = match token_type {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }))
        });
        Value::Array(added.collect())
    }

    /// The token for what no other can express: the one of that type, or the one that the metadata name.
    fn unknown(&self) -> Option<String> {
        let by_type = self.tokens.iter().find(|(_, _, token_type)| *token_type == TokenType::Unknown);
        by_type.map(|(_, text, _)| text.clone()).or_else(|| self.text(self.tokenizer.unk()))
    }

    fn text(&self, id: Option<u32>) -> Option<String> {
        self.tokenizer.id_to_token(id?)
    }

    /// What is put around a text, and between two: a separator, or what begins a text, or nothing.
    fn post_processor(&self, add_sep: Option<bool>) -> Value {
        let tokenizer = &self.tokenizer;
        let wanted =
            |id: Option<u32>, add: bool| id.filter(|_| add).and_then(|id| Some((id, self.text(Some(id))?)));
        let bos = wanted(tokenizer.bos(), tokenizer.add_bos());
        let eos = wanted(tokenizer.eos(), tokenizer.add_eos());
        if bos.is_none() && eos.is_none() {
            return json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        }
        let special = |token: &Option<(u32, String)>, sequence: u32| {
            token.as_ref().map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": sequence}}))
        };
        let text = |name: &str, sequence: u32| Some(json!({"Sequence": {"id": name, "type_id": sequence}}));
        let sep = tokenizer.sep().or(tokenizer.eos()).and_then(|id| Some((id, self.text(Some(id))?)));
        let between = match add_sep {
            None => [None, None],
            Some(false) => [special(&bos, 1).or(special(&eos, 0)), None],
            Some(true) => [special(&eos, 0), special(&sep, 0)],
        };
        let list = |items: &[Option<Value>]| items.iter().flatten().cloned().collect::<Vec<Value>>();
        let tokens: Map<String, Value> = [&bos, &eos, &sep]
            .into_iter()
            .flatten()
            .map(|(id, text)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
            .collect();
        let single = list(&[special(&bos, 0), text("A", 0), special(&eos, 0)]);
        let [first, second] = between;
        let pair = list(&[special(&bos, 0), text("A", 0), first, second, text("B", 1), special(&eos, 1)]);
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
    }

    /// tokenizer_config.json.
    fn config(&self, metadata: &Metadata) -> Value {
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        config.insert("clean_up_tokenization_spaces".into(), false.into());
        for role in ["bos", "eos", "unk", "sep", "pad", "mask"] {
            let id = metadata.u32(role_key(role)).ok().flatten();
            let by_type = if role == "unk" { self.unknown() } else { None };
            if let Some(text) = by_type.or_else(|| self.text(id)) {
                config.insert(format!("{role}_token"), text.into());
            }
        }
        let length =
            metadata.str("general.architecture").ok().flatten().and_then(|architecture| {
                metadata.u64(&format!("{architecture}.context_length")).ok().flatten()
            });
        if let Some(length) = length {
            config.insert("model_max_length".into(), length.into());
        }
        for end in ["bos", "eos"] {
            if let Some(Ok(Some(add))) = Some(metadata.bool(&format!("tokenizer.ggml.add_{end}_token"))) {
                config.insert(format!("add_{end}_token"), add.into());
            }
        }
        Value::Object(config)
    }
}

/// Chat templates: the default one, and others by name.
fn templates(metadata: &Metadata) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    if let Some(template) = metadata.str(TEMPLATE)? {
        files.push(("chat_template.jinja".to_owned(), template.to_owned()));
    }
    let names = metadata.get("tokenizer.chat_templates").and_then(|value| value.as_array());
    let names = names.and_then(Array::as_strings);
    for name in names.into_iter().flat_map(|names| names.iter()) {
        let name = String::from_utf8_lossy(name);
        // A name with anything else in it could lead out of the folder.
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if let Some(template) = metadata.str(&format!("{TEMPLATE}.{name}"))?
            && plain
        {
            files.push((format!("additional_chat_templates/{name}.jinja"), template.to_owned()));
        }
    }
    Ok(files)
}
