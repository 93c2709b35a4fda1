//! Calls written as JSON.

use serde_json::{Deserializer, Map, Value};

use super::Taken;
use crate::chat::ToolCall;

/// What comes first in a text, as JSON.
enum First {
    /// A value, in that many bytes.
    Value(Value, usize),
    /// The beginning of one.
    Incomplete,
    Invalid,
}

fn first(text: &str) -> First {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => First::Value(value, values.byte_offset()),
        Some(Err(error)) if error.is_eof() => First::Incomplete,
        None => First::Incomplete,
        Some(Err(_)) => First::Invalid,
    }
}

/// [`first`], then again with the mistakes that models make put right: line breaks in strings,
/// and closing braces left out.
fn first_lenient(text: &str, end: &str, last: bool) -> First {
    match first(text) {
        found @ First::Value(..) => return found,
        First::Invalid if end.is_empty() => return First::Invalid,
        First::Incomplete | First::Invalid => {}
    }
    let closed = match last {
        false => find_outside_strings(text, end),
        true => find_outside_strings(text, end).or_else(|| text.find(end)),
    };
    let body = match closed.filter(|_| !end.is_empty()) {
        Some(at) => text.get(..at).unwrap_or_default(),
        None if last => text,
        None => return First::Incomplete,
    };
    let mut fixed = escape_controls(body.trim());
    for closing in ["", "}", "}}", "]", "}]", "}}]"] {
        fixed.push_str(closing);
        if let First::Value(value, _) = first(&fixed) {
            return First::Value(value, body.len());
        }
        fixed.truncate(fixed.len() - closing.len());
    }
    First::Invalid
}

/// The first `end` that is not inside a JSON string.
fn find_outside_strings(text: &str, end: &str) -> Option<usize> {
    let (mut inside, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        if !inside && text.get(at..)?.starts_with(end) {
            return Some(at);
        }
        if c == '"' && !escaped {
            inside = !inside;
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// Line breaks and tabs inside strings as JSON writes them.
fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut inside, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            '\n' if inside => out.push_str("\\n"),
            '\r' if inside => out.push_str("\\r"),
            '\t' if inside => out.push_str("\\t"),
            c => out.push(c),
        }
        if c == '"' && !escaped {
            inside = !inside;
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

/// A call, or a list of them, by `name` and `arguments` (or `parameters`).
fn calls(value: &Value) -> Option<Vec<ToolCall>> {
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().map(|item| calls(item)?.pop()).collect(),
        Value::Object(map) => {
            let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
            let arguments = function.get("arguments").or_else(|| function.get("parameters"));
            Some(vec![ToolCall {
                id: map.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                name: function.get("name")?.as_str()?.to_owned(),
                arguments: arguments_of(arguments),
            }])
        }
        _ => None,
    }
}

/// Arguments that came as a string of JSON are parsed.
fn arguments_of(arguments: Option<&Value>) -> Value {
    match arguments {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => value,
            _ => Value::from(text.as_str()),
        },
        Some(value) => value.clone(),
    }
}

fn taken(found: First, before: usize) -> Taken {
    match found {
        First::Incomplete => Taken::More,
        First::Invalid => Taken::Text,
        First::Value(value, len) => match calls(&value) {
            Some(calls) => Taken::Calls(calls, before + len),
            None => Taken::Text,
        },
    }
}

/// `start` JSON `end`.
pub(super) fn tagged(body: &str, start: &str, end: &str, last: bool) -> Taken {
    let rest = body.get(start.len()..).unwrap_or_default();
    taken(first_lenient(rest, end, last), start.len())
}

/// `[TOOL_CALLS]` and either a list, or `NAME[CALL_ID]ID[ARGS]{…}` where the parts in brackets
/// may be missing.
pub(super) fn mistral(body: &str, last: bool) -> Taken {
    const START: &str = "[TOOL_CALLS]";
    let rest = body.get(START.len()..).unwrap_or_default();
    let space = rest.len() - rest.trim_start().len();
    let rest = rest.trim_start();
    if rest.starts_with(['[', '{']) {
        return taken(first_lenient(rest, "", last), START.len() + space);
    }
    let Some(brace) = rest.find('{') else {
        return if last { Taken::Text } else { Taken::More };
    };
    let header = rest.get(..brace).unwrap_or_default();
    let header = header.trim_end().trim_end_matches("[ARGS]");
    let (name, id) = header.split_once("[CALL_ID]").unwrap_or((header, ""));
    if name.trim().is_empty() || name.contains(['\n', ' ']) {
        return Taken::Text;
    }
    match first_lenient(rest.get(brace..).unwrap_or_default(), "", last) {
        First::Incomplete => Taken::More,
        First::Invalid => Taken::Text,
        First::Value(arguments, len) => {
            let call = ToolCall { id: id.trim().to_owned(), name: name.trim().to_owned(), arguments };
            Taken::Calls(vec![call], START.len() + space + brace + len)
        }
    }
}

/// A JSON object that names a tool. Where tools are known it must be one of them: other JSON is an
/// answer.
pub(super) fn bare(body: &str, tools: &[Value], last: bool) -> Taken {
    const TAG: &str = "<|python_tag|>";
    let rest = body.strip_prefix(TAG).unwrap_or(body);
    let tag = body.len() - rest.len();
    let trimmed = rest.trim_start();
    if tag > 0 && !trimmed.is_empty() && !trimmed.starts_with(['{', '[']) {
        return Taken::Text;
    }
    match taken(first_lenient(trimmed, "", last), tag + rest.len() - trimmed.len()) {
        Taken::Calls(calls, len) => {
            let known = |call: &ToolCall| {
                tools.is_empty()
                    || tools.iter().any(|tool| {
                        let function = tool.get("function").unwrap_or(tool);
                        function.get("name").and_then(Value::as_str) == Some(call.name.as_str())
                    })
            };
            if tag > 0 || calls.iter().all(known) { Taken::Calls(calls, len) } else { Taken::Text }
        }
        other => other,
    }
}

/// A message of gpt-oss to a function.
pub(super) fn channel(body: &str, last: bool) -> Taken {
    const MESSAGE: &str = "<|message|>";
    const MAX_HEADER: usize = 400;
    let undecided = if last { Taken::Text } else { Taken::More };
    let Some(at) = body.find(MESSAGE) else {
        return if body.len() > MAX_HEADER { Taken::Text } else { undecided };
    };
    let header = body.get(..at).unwrap_or_default();
    let Some((_, recipient)) = header.split_once(" to=") else {
        return Taken::Text;
    };
    let end = recipient.find([' ', '<']).unwrap_or(recipient.len());
    let name = recipient.get(..end).unwrap_or_default();
    let name = name.strip_prefix("functions.").unwrap_or(name).to_owned();
    let before = at + MESSAGE.len();
    let rest = body.get(before..).unwrap_or_default();
    match first_lenient(rest, "<|call|>", last) {
        First::Incomplete => Taken::More,
        First::Invalid => Taken::Text,
        First::Value(arguments, len) => {
            Taken::Calls(vec![ToolCall { id: String::new(), name, arguments }], before + len)
        }
    }
}
