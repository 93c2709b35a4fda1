//! Tokens with a role, and which of them a sequence gets.

use gruff_gguf::Metadata;
use serde_json::Value;

use super::Files;
use crate::Result;
use crate::architecture::Config;
use crate::json::Document;

/// Roles: in tokenizer_config.json (`bos_token`) and config.json (`bos_token_id`), and in GGUF.
const ROLES: &[(&str, &str)] = &[
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    // As GGUF spells it.
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("cls", "tokenizer.ggml.cls_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
];

/// Whether a token stands between two texts.
pub(crate) const ADD_SEP: &str = "tokenizer.ggml.add_sep_token";

/// The key that has the id of the token with a role (`eos`).
pub(crate) fn role_key(role: &str) -> &'static str {
    ROLES.iter().find(|(own, _)| *own == role).map_or("", |(_, key)| key)
}

/// What the template of single texts puts around them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Template {
    /// Whether something is put before, and what.
    first: Option<String>,
    last: Option<String>,
    /// What the template of pairs puts between the two texts, where it puts something.
    between: Option<Vec<String>>,
    /// Whether there is a template, or a byte-level step, which puts nothing.
    known: Option<bool>,
}

pub(super) fn describe(files: &Files, config: &Config, vocab: usize, metadata: &mut Metadata) -> Result<()> {
    let template = template(files.tokenizer.as_ref());
    let stated = |role: &str| -> Option<String> {
        let entry = files.config.as_ref()?.get(&format!("{role}_token"))?;
        let text = entry.as_str().or_else(|| entry.get("content")?.as_str());
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let mut tokens: Vec<(&str, Option<String>)> =
        ROLES.iter().map(|(role, _)| (*role, stated(role))).collect();
    let bos = stated("bos").or_else(|| template.first.clone());
    let mut eos = stated("eos");
    if let Some(last) = &template.last {
        // A token at the end that is not said to end the sequence does so; the one that is ends a turn.
        if eos.as_ref().is_some_and(|eos| eos != last) {
            set(&mut tokens, "eot", eos.clone());
        }
        eos = Some(last.clone());
    }
    let ends = eos.clone();
    set(&mut tokens, "bos", bos.clone());
    set(&mut tokens, "eos", eos);
    for ((role, token), (_, key)) in tokens.iter().zip(ROLES) {
        let by_text = token.as_deref().and_then(|text| id_of(files, text));
        let id = by_text.or_else(|| id_in_config(&config.document, role));
        if let Some(id) = id.filter(|id| (*id as usize) < vocab) {
            metadata.insert(key, id);
        }
    }
    for (role, key, here) in [
        ("bos", "tokenizer.ggml.add_bos_token", template.first.is_some()),
        ("eos", "tokenizer.ggml.add_eos_token", template.last.is_some()),
    ] {
        let by_config = match &files.config {
            Some(config) => config.bool(&format!("add_{role}_token"))?,
            None => None,
        };
        // A template that puts something elsewhere says nothing of this end.
        let by_template = template.known.filter(|byte_level| *byte_level || here).map(|_| here);
        if let Some(add) = by_template.or(by_config) {
            metadata.insert(key, add);
        }
    }
    if let Some(between) = &template.between {
        // A token that ends the first text anyway separates nothing.
        let separators = if template.last.is_some() { between.get(1..) } else { Some(between.as_slice()) };
        let separates =
            |token: &String| Some(token) == stated("sep").as_ref() || Some(token) == ends.as_ref();
        metadata.insert(ADD_SEP, separators.unwrap_or_default().iter().take(2).any(separates));
    }
    Ok(())
}

fn set(tokens: &mut [(&str, Option<String>)], role: &str, text: Option<String>) {
    if let Some((_, slot)) = tokens.iter_mut().find(|(own, _)| *own == role) {
        *slot = text;
    }
}

fn id_of(files: &Files, text: &str) -> Option<u32> {
    let tokens = files.tokenizer.as_ref()?.get("added_tokens")?.as_array()?;
    let token = tokens.iter().find(|token| token.get("content").and_then(Value::as_str) == Some(text))?;
    u32::try_from(token.get("id")?.as_u64()?).ok()
}

fn id_in_config(config: &Document, role: &str) -> Option<u32> {
    let id = config.get(&format!("{role}_token_id"))?;
    // Some models end with one of several; the first is the usual one.
    let id = id.as_array().map_or(Some(id), |several| several.first())?;
    u32::try_from(id.as_u64()?).ok()
}

fn template(tokenizer: Option<&Document>) -> Template {
    let mut template = Template::default();
    let Some(processor) = tokenizer.and_then(|tokenizer| tokenizer.get("post_processor")) else {
        return template;
    };
    let steps = match processor.get("processors").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None => vec![processor],
    };
    for step in steps {
        match step.get("type").and_then(Value::as_str) {
            Some("ByteLevel") => template.known = Some(true),
            Some("TemplateProcessing") => {
                let Some(single) = step.get("single").and_then(Value::as_array) else { continue };
                let special =
                    |item: Option<&Value>| Some(item?.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
                if single.len() > 1 {
                    template.first = special(single.first());
                    template.last = special(single.last());
                    template.known = template.known.or(Some(false));
                }
                template.between = between(step, &template);
            }
            _ => {}
        }
    }
    template
}

/// The tokens between the two texts of a pair.
fn between(step: &Value, template: &Template) -> Option<Vec<String>> {
    let text = |item: &Value| Some(item.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
    let mut pair = step.get("pair")?.as_array()?.as_slice();
    if let [first, rest @ ..] = pair
        && template.first.is_some()
        && text(first) == template.first
    {
        pair = rest;
    }
    if let [rest @ .., last] = pair
        && template.last.is_some()
        && text(last) == template.last
    {
        pair = rest;
    }
    let is = |item: &Value, name: &str| {
        item.get("Sequence").and_then(|s| s.get("id")).and_then(Value::as_str) == Some(name)
    };
    match pair {
        [a, middle @ .., b] if is(a, "A") && is(b, "B") && !middle.is_empty() => {
            Some(middle.iter().map(|item| text(item).unwrap_or_default()).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn read(single: Value, pair: Value) -> Template {
        let step = json!({"type": "TemplateProcessing", "single": single, "pair": pair});
        let json =
            json!({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, step]}});
        let Value::Object(object) = json else { unreachable!() };
        template(Some(&Document::from_object(Path::new("tokenizer.json"), object)))
    }

    #[test]
    fn templates_tell_what_is_put_around_and_between() {
        let special = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
        let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let (a, b, bos, eos) = (sequence("A"), sequence("B"), special("<s>"), special("</s>"));
        let llama = read(json!([bos, a]), json!([bos, a, bos, b]));
        assert_eq!(llama.first.as_deref(), Some("<s>"));
        assert_eq!((llama.last, llama.between), (None, Some(vec!["<s>".to_owned()])));
        let both = read(json!([bos, a, eos]), json!([bos, a, eos, b, eos]));
        assert_eq!(both.last.as_deref(), Some("</s>"));
        assert_eq!(both.between, Some(vec!["</s>".to_owned()]));
        let plain = read(json!([a]), json!([a, b]));
        assert_eq!((plain.first, plain.last, plain.between), (None, None, None));
    }
}
