//! Calls written with a tag for each argument.

use serde_json::{Map, Value};

use super::Taken;
use crate::chat::ToolCall;

/// `<function=NAME><parameter=KEY>value</parameter>…</function>`, perhaps inside an outer tag.
///
/// Values may hold anything, so a closing tag ends a value only where the call goes on behind it;
/// closing tags that are missing or doubled do no harm.
pub(super) fn functions(body: &str, tools: &[Value], last: bool) -> Taken {
    const START: &str = "<function=";
    let (outer, outer_end) = match body {
        body if body.starts_with("<tool_call>") => ("<tool_call>", "</tool_call>"),
        body if body.starts_with("<seed:tool_call>") => ("<seed:tool_call>", "</seed:tool_call>"),
        _ => ("", ""),
    };
    let inside = body.get(outer.len()..).unwrap_or_default();
    let trimmed = inside.trim_start();
    let undecided = if last { Taken::Text } else { Taken::More };
    if START.starts_with(trimmed) && trimmed.len() < START.len() {
        return undecided;
    }
    let Some(rest) = trimmed.strip_prefix(START) else {
        // Some models fall back to JSON inside the same tag.
        return match outer {
            "" => Taken::Text,
            _ => super::json::tagged(body, outer, outer_end, last),
        };
    };
    let before = body.len() - rest.len();
    let Some(name_end) = rest.find('>') else {
        return undecided;
    };
    let name = rest.get(..name_end).unwrap_or_default().trim().trim_matches('"');
    if name.is_empty() || name.contains('\n') {
        return Taken::Text;
    }
    let rest = rest.get(name_end + 1..).unwrap_or_default();
    let Some(end) = function_end(rest, outer_end, last) else {
        return Taken::More;
    };
    let arguments = parameters(rest.get(..end).unwrap_or_default(), schema(tools, name));
    let call = ToolCall { id: String::new(), name: name.to_owned(), arguments: Value::Object(arguments) };
    Taken::Calls(vec![call], before + name_end + 1 + end)
}

/// Where the function's parameters end: at a closing tag that nothing of the call follows.
fn function_end(rest: &str, outer_end: &str, last: bool) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = rest.get(from..)?.find("</function>") {
        let at = from + found;
        from = at + "</function>".len();
        let after = rest.get(from..)?.trim_start();
        // Inside an outer tag the function ends where that does, or where another one begins.
        let ends = outer_end.is_empty()
            || after.starts_with(outer_end)
            || after.starts_with("<function=")
            || after.starts_with("<tool_call>");
        if ends || (last && after.is_empty()) {
            return Some(at);
        }
    }
    // The function's own closing tag may be missing.
    if !outer_end.is_empty()
        && let Some(at) = rest.find(outer_end)
    {
        let closed = rest.get(..at)?.trim_end();
        if closed.ends_with("</parameter>") {
            return Some(at);
        }
    }
    last.then_some(rest.len())
}

fn parameters(body: &str, schema: Option<&Value>) -> Map<String, Value> {
    const START: &str = "<parameter=";
    const END: &str = "</parameter>";
    let mut arguments = Map::new();
    let mut rest = body;
    while let Some((_, after)) = rest.split_once(START) {
        let Some((key, value)) = after.split_once('>') else {
            break;
        };
        let mut end = None;
        let mut from = 0;
        while let Some(found) = value.get(from..).and_then(|tail| tail.find(END)) {
            let at = from + found;
            from = at + END.len();
            let mut tail = value.get(from..).unwrap_or_default().trim_start();
            while let Some(doubled) = tail.strip_prefix(END) {
                tail = doubled.trim_start();
            }
            if tail.is_empty() || tail.starts_with(START) || tail.starts_with("</function>") {
                end = Some(at);
                break;
            }
        }
        let end = end.or_else(|| value.find(START)).unwrap_or(value.len());
        let text = value.get(..end).unwrap_or_default();
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let key = key.trim().trim_matches('"');
        arguments.insert(key.to_owned(), typed(text, schema, key));
        rest = value.get(end..).unwrap_or_default();
    }
    arguments
}

/// `NAME` and pairs of `<arg_key>` and `<arg_value>`.
pub(super) fn argument_tags(body: &str, tools: &[Value], last: bool) -> Taken {
    const START: &str = "<tool_call>";
    const END: &str = "</tool_call>";
    let rest = body.get(START.len()..).unwrap_or_default();
    let end = match rest.find(END) {
        Some(end) => end,
        None if last => rest.len(),
        None => return Taken::More,
    };
    let call = rest.get(..end).unwrap_or_default();
    if call.trim_start().starts_with('{') {
        return super::json::tagged(body, START, END, last);
    }
    let name_end = call.find("<arg_key>").unwrap_or(call.len());
    let name = call.get(..name_end).unwrap_or_default().trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Taken::Text;
    }
    let schema = schema(tools, name);
    let mut arguments = Map::new();
    let mut pairs = call.get(name_end..).unwrap_or_default();
    while let Some((_, after)) = pairs.split_once("<arg_key>") {
        let Some((key, after)) = after.split_once("</arg_key>") else {
            break;
        };
        let after = after.split_once("<arg_value>").map_or(after, |(_, value)| value);
        let end = after.find("</arg_value>").or_else(|| after.find("<arg_key>")).unwrap_or(after.len());
        let (value, tail) = after.split_at_checked(end).unwrap_or((after, ""));
        arguments.insert(key.trim().to_owned(), typed(value, schema, key.trim()));
        pairs = tail;
    }
    let call = ToolCall { id: String::new(), name: name.to_owned(), arguments: Value::Object(arguments) };
    Taken::Calls(vec![call], START.len() + end)
}

/// The parameters' schema of the tool of that name.
fn schema<'a>(tools: &'a [Value], name: &str) -> Option<&'a Value> {
    let function = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .find(|function| function.get("name").and_then(Value::as_str) == Some(name))?;
    function.get("parameters")?.get("properties")
}

/// A value of the type that its schema names; text where that is what it is or cannot be told.
fn typed(text: &str, schema: Option<&Value>, key: &str) -> Value {
    let property = schema.and_then(|schema| schema.get(key));
    let names = |wanted: &str| match property.and_then(|property| property.get("type")) {
        Some(Value::String(name)) => name == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind.as_str() == Some(wanted)),
        _ => false,
    };
    if names("string") || property.is_none() {
        return Value::from(text);
    }
    if names("boolean") {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => return Value::from(true),
            "false" => return Value::from(false),
            _ => {}
        }
    }
    serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::from(text))
}
