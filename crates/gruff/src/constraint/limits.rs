//! How large a grammar may be, and how much stack its compiler needs.
//!
//! The compiler goes down into rules, references and brackets by calling itself, so that a text of a few kilobytes can
//! ask for any depth. Every such step has a sign of its own in the text: counting them bounds the depth, whatever
//! strings and comments there are around them.

use serde_json::Value;

use super::Constraint;

/// Bytes of a grammar's text that are read at most.
const LONGEST: usize = 1 << 20;

/// Rules, references and brackets of a text, or lists and objects of a schema, that are read at most.
const MOST_LEVELS: usize = 20_000;

/// Levels of a schema within each other that are read at most.
const DEEPEST: usize = 200;

/// Parts of regular expressions, once repeated and put together, that are read at most: an expression may cost the
/// square of its parts, some seconds for this many.
pub(super) const LEXER_FUEL: u64 = 100_000;

/// Stack of a compiler that goes nowhere, in bytes.
const BASE_STACK: usize = 4 << 20;

/// Stack for every level, in bytes: several times what a build without optimisation was seen to use.
const STACK_PER_LEVEL: usize = 16 << 10;

/// What the compiler says of grammars that go beyond its limits: whole phrases, since it speaks of much else that is too
/// large, and repeats words of the grammar.
const OF_SIZE: [&str; 7] = [
    "too big (limit",
    "schema too large",
    "too many expressions constructed",
    "too many states: ",
    "Too many items (limit",
    "fuel exhausted when checking relevance",
    "maximum relevance check fuel",
];

/// Whether an error of the compiler is about how large a grammar is, and not about what it says.
pub(super) fn speaks_of_size(error: &str) -> bool {
    OF_SIZE.iter().any(|words| error.contains(words))
}

/// The stack that compiling it may need, in bytes.
///
/// # Errors
/// What of it is too large.
pub(super) fn stack(constraint: &Constraint) -> Result<usize, String> {
    let levels = match constraint {
        Constraint::JsonObject => 1,
        Constraint::JsonSchema(schema) => containers(schema)?,
        // The reader of regular expressions counts its own levels.
        Constraint::Regex(text) => {
            length(text)?;
            1
        }
        Constraint::Lark(text) | Constraint::Gbnf(text) => {
            length(text)?;
            text.bytes().filter(|byte| matches!(byte, b':' | b'(' | b'[' | b'{')).count()
        }
    };
    if levels > MOST_LEVELS {
        return Err(format!("its {levels} rules and parts are more than the {MOST_LEVELS} that are read"));
    }
    Ok(BASE_STACK + levels * STACK_PER_LEVEL)
}

fn length(text: &str) -> Result<(), String> {
    if text.len() > LONGEST {
        return Err(format!("its {} bytes are more than the {LONGEST} that are read", text.len()));
    }
    Ok(())
}

/// Lists and objects of a document, counted without recursion.
fn containers(document: &Value) -> Result<usize, String> {
    let (mut level, mut count) = (vec![document], 0);
    for _ in 0..=DEEPEST {
        let mut inside = Vec::new();
        for value in level {
            match value {
                Value::Array(values) => inside.extend(values),
                Value::Object(fields) => inside.extend(fields.values()),
                _ => continue,
            }
            count += 1;
        }
        if inside.is_empty() {
            return Ok(count);
        }
        level = inside;
    }
    Err(format!("it is nested more than {DEEPEST} levels deep"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{AutoModelForCausalLM, BUNDLED, Constraint, Context, Error};

    #[test]
    fn faults_of_a_schema_are_not_taken_for_its_size() {
        let from = AutoModelForCausalLM::from_pretrained(BUNDLED);
        let model = from.context(Context::Tokens(64)).threads(1).load().unwrap();
        let fault = |schema| model.constraint(&Constraint::json_schema(schema)).err().unwrap();
        for schema in [
            json!({"type": "number", "multipleOf": 0.123_456_789_012}),
            json!({"type": "string", "format": "fuel, too many and too big"}),
        ] {
            let error = fault(schema);
            assert!(matches!(error, Error::Option(_)), "{error}");
        }
        // Thousands of objects that all differ: more parts of regular expressions than there may be.
        let object = |field: usize| {
            let items = json!({"enum": ["one", "two", field]});
            let inner =
                json!({"a": {"type": "string"}, format!("c{field}"): {"type": "array", "items": items}});
            (format!("property_{field}"), json!({"type": "object", "required": ["a"], "properties": inner}))
        };
        let properties: serde_json::Map<_, _> = (0..2500).map(object).collect();
        let large = json!({"type": "object", "properties": properties});
        let error = fault(large);
        assert!(matches!(&error, Error::GrammarSize(text) if text.contains("too big (limit")), "{error}");
    }
}
