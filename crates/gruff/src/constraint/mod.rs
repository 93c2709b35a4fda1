//! Answers that follow a grammar to the letter, on llguidance.

mod gbnf;
mod grammar;
mod limits;

pub(crate) use grammar::Grammars;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an answer must be. A grammar that cannot be honoured is an error before the first token, and an answer that
/// ends before its grammar is complete is an error too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// A JSON document of this schema (llguidance's subset of draft 2020-12; a keyword beyond it is an error).
    JsonSchema(Value),
    /// A text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// A text of a grammar in llguidance's form of Lark, from rule `start`.
    Lark(String),
    /// A text of a grammar in llama.cpp's GBNF, from rule `root`.
    Gbnf(String),
}

impl Constraint {
    /// A JSON document of a schema.
    pub fn json_schema(schema: Value) -> Self {
        Self::JsonSchema(schema)
    }
}
