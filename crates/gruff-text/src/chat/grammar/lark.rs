//! Writing a grammar.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::{EncodeOptions, Tokenizer};

/// What stands between the parts of a document: a comma or a colon, with a space behind it or without. White space
/// anywhere else is where models dawdle instead of answering.
const JSON_SEPARATORS: [&str; 2] = [r",\x20?", r":\x20?"];

/// Terminals that rules use: a line break, a little white space, any text.
const TERMINALS: &str = "NL: \"\\n\"\nSPACE: /[ \\n\\r\\t]{1,4}/\nTEXT: /(?s:.+)/\n";

/// A schema with the options that llguidance reads in it, where it has none of its own.
pub fn guided(mut schema: Value) -> Value {
    // A schema that allows everything has no place for options; one without keywords says the same.
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Some(fields) = schema.as_object_mut() {
        let [item, key] = JSON_SEPARATORS;
        fields.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": false, "item_separator": item, "key_separator": key}),
        );
    }
    schema
}

/// Keywords that say nothing about which documents are valid.
const NOTES: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];

/// Keywords with a schema for each of some names, and those with a schema or a list of them.
const NAMED: [&str; 5] = ["properties", "$defs", "definitions", "patternProperties", "dependentSchemas"];
const WITHIN: [&str; 14] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
];

/// The schema without its notes: what is written for a model to read makes up most of many a tool.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Array(all) => all.iter().map(plain).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(key, _)| !NOTES.contains(&key.as_str()));
            let field = |(key, value): (&String, &Value)| {
                let value = match value {
                    Value::Object(named) if NAMED.contains(&key.as_str()) => {
                        named.iter().map(|(name, schema)| (name.clone(), plain(schema))).collect()
                    }
                    value if WITHIN.contains(&key.as_str()) => plain(value),
                    value => value.clone(),
                };
                (key.clone(), value)
            };
            Value::Object(fields.map(field).collect())
        }
        other => other.clone(),
    }
}

/// A grammar on its way.
pub(super) struct Lark<'t> {
    tokenizer: &'t Tokenizer,
    rules: String,
    count: usize,
    /// Rules that stand already, by what they say: tools have many parameters alike, and each rule has its price.
    known: HashMap<String, String>,
}

/// A part of a mark: text, or a token that no text has.
enum Part {
    Text(String),
    Token(u32),
}

impl<'t> Lark<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, rules: TERMINALS.to_owned(), count: 0, known: HashMap::new() }
    }

    /// Whether a text is a token of its own that no other text has.
    pub(super) fn is_token(&self, text: &str) -> bool {
        self.tokenizer.token_to_id(text).is_some()
    }

    /// Adds a rule.
    pub(super) fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    /// Adds a rule, unless there is one that says the same. Gives its name.
    pub(super) fn named(&mut self, body: &str) -> String {
        self.once(format!(": {body}"))
    }

    /// Adds a rule of what follows its name, unless there is one.
    fn once(&mut self, rest: String) -> String {
        if let Some(name) = self.known.get(&rest) {
            return name.clone();
        }
        self.count += 1;
        let name = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{name}{rest}");
        self.known.insert(rest, name.clone());
        name
    }

    /// The expression for a text; special tokens in it are those tokens.
    pub(super) fn text(&self, text: &str) -> String {
        let expression = |part: &Part| match part {
            Part::Text(text) => quoted(text),
            Part::Token(id) => format!("<[{id}]>"),
        };
        self.parts(text).iter().map(expression).collect::<Vec<_>>().join(" ")
    }

    /// The expression for any text (of the regular expression `body`, if that is given) up to and with a mark.
    pub(super) fn until(&mut self, mark: &str, body: Option<&str>) -> String {
        let parts = self.parts(mark);
        match parts.first() {
            Some(Part::Text(first)) => {
                let body = body.unwrap_or("(?s:.*)").replace('/', "\\/");
                let name = self.once(format!("[suffix={}]: /{body}/", quoted(first)));
                let rest = self.text(mark.get(first.len()..).unwrap_or_default());
                format!("{name} {rest}")
            }
            _ => {
                let text = match body {
                    Some(body) => format!("/{}/", body.replace('/', "\\/")),
                    None => "TEXT".to_owned(),
                };
                format!("{text}? {}", self.text(mark))
            }
        }
    }

    /// The expression for a document of a schema.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        self.named(&format!("%json {}", guided(plain(schema))))
    }

    pub(super) fn finish(self) -> String {
        self.rules
    }

    fn parts(&self, text: &str) -> Vec<Part> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        let ids = self.tokenizer.encode(text, options).unwrap_or_default();
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text;
        for id in ids.into_iter().filter(|id| self.tokenizer.is_control(*id)) {
            let Some(token) = self.tokenizer.id_to_token(id) else { continue };
            let Some((before, behind)) = rest.split_once(token.as_str()) else { continue };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Token(id));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        parts
    }
}

/// A literal: Lark's strings have JSON's escapes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_left_out_and_nothing_else() {
        let schema = json!({"title": "T", "type": "object", "description": "d", "properties": {
            "title": {"type": "string", "description": "d", "default": "x"},
            "description": {"anyOf": [{"const": {"title": 1}, "title": "t"}, {"type": "array", "items": {"title": "i"}}]}},
            "required": ["title"], "$defs": {"default": {"enum": ["title"], "examples": [1]}}});
        let expected = json!({"type": "object", "properties": {
            "title": {"type": "string"},
            "description": {"anyOf": [{"const": {"title": 1}}, {"type": "array", "items": {}}]}},
            "required": ["title"], "$defs": {"default": {"enum": ["title"]}}});
        assert_eq!(plain(&schema), expected);
    }
}
