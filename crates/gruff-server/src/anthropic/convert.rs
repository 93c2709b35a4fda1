//! Anthropic's messages and tools as OpenAI's, which templates are written for.

use gruff::Message;
use gruff::floors::text::chat::ToolCall;
use serde_json::{Value, json};

use crate::api_error::ApiError;

/// Fields of a tool that say something to this server, or nothing that an answer depends on: every tool is shown at once,
/// and arguments are told as they come.
const TOOL_FIELDS: [&str; 8] = [
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "cache_control",
    "eager_input_streaming",
    "defer_loading",
];

/// Tools with `input_schema` as functions with `parameters`.
pub(super) fn tools(tools: &[Value]) -> Result<Vec<Value>, ApiError> {
    let convert = |(index, tool): (usize, &Value)| {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
        let (Some(name), "custom") = (tool.get("name").and_then(Value::as_str), kind) else {
            let message =
                "a tool has a `name` and an `input_schema`; tools that a server runs itself are not here";
            return Err(ApiError::field(format!("tools[{index}]"), message));
        };
        let mut fields = tool.as_object().into_iter().flat_map(|tool| tool.keys());
        if let Some(unknown) = fields.find(|field| !TOOL_FIELDS.contains(&field.as_str())) {
            let field = format!("tools[{index}].{unknown}");
            let message = format!("`{field}` is not a field of a tool that this server knows; leave it out");
            return Err(ApiError::field(field, message));
        }
        let mut function = json!({"name": name});
        match tool.get("strict") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => function["strict"] = Value::from(true),
            Some(_) => {
                let field = format!("tools[{index}].strict");
                let message = format!("`{field}` is true or false");
                return Err(ApiError::field(field, message));
            }
        }
        if let Some(description) = tool.get("description") {
            function["description"] = description.clone();
        }
        function["parameters"] =
            tool.get("input_schema").cloned().unwrap_or_else(|| json!({"type": "object"}));
        Ok(json!({"type": "function", "function": function}))
    };
    let converted: Vec<Value> = tools.iter().enumerate().map(convert).collect::<Result<_, _>>()?;
    crate::chat::check_tools(&converted)?;
    Ok(converted)
}

/// The tool of that name.
pub(super) fn named(tools: &[Value], name: &str) -> Result<Value, ApiError> {
    let found = tools.iter().find(|tool| tool["function"]["name"] == name);
    found.cloned().ok_or_else(|| {
        ApiError::field(
            "tool_choice",
            format!("`tool_choice` names {name:?}, which is not one of the `tools`"),
        )
    })
}

/// The conversation: a system message, and each message's blocks as content, reasoning, calls and their results.
pub(super) fn messages(system: Option<&Value>, messages: &[Value]) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::with_capacity(messages.len() + 1);
    if let Some(system) = system.filter(|system| !system.is_null()) {
        out.push(Message::system(
            text(system).ok_or_else(|| fault("system", "`system` is text or blocks of text"))?,
        ));
    }
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages[{index}]");
        let content = message.get("content").unwrap_or(&Value::Null);
        match (message.get("role").and_then(Value::as_str), content) {
            (Some(role @ ("user" | "assistant")), Value::String(text)) => out.push(Message::new(role, text)),
            (Some("system"), content) => {
                let text = text(content).ok_or_else(|| fault(&place, "a system message is text"))?;
                if out.is_empty() { out.push(Message::system(text)) } else { aside(&text, &mut out) }
            }
            (Some("user"), Value::Array(blocks)) => user(blocks, &place, &mut out)?,
            (Some("assistant"), Value::Array(blocks)) => out.push(assistant(blocks, &place)?),
            _ => {
                return Err(fault(
                    &place,
                    "a message has the role user or assistant, and text or blocks as content",
                ));
            }
        }
    }
    Ok(out)
}

/// What the caller's system says in the middle of a conversation: a part of what the user said, since most templates
/// know a system message at the beginning alone.
fn aside(text: &str, out: &mut Vec<Message>) {
    let said = match out.pop_if(|message| message.role() == Some("user")) {
        Some(user) => format!("{}\n\n{text}", user.text()),
        None => text.to_owned(),
    };
    out.push(Message::user(said));
}

fn fault(place: &str, message: &str) -> ApiError {
    ApiError::field(place, format!("{place}: {message}"))
}

/// Results of calls are messages of their own, before what else the user says.
fn user(blocks: &[Value], place: &str, out: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut said = String::new();
    for block in blocks {
        match kind(block) {
            "text" => said.push_str(block_text(block)),
            "tool_result" => {
                let id = block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
                let content = block.get("content").unwrap_or(&Value::Null);
                let text = if content.is_null() { Some(String::new()) } else { text(content) };
                let text =
                    text.ok_or_else(|| fault(place, "the result of a tool is text, for this model"))?;
                // Templates have no other place for it.
                let failed = block.get("is_error") == Some(&Value::from(true));
                out.push(Message::tool(id, if failed { format!("Error: {text}") } else { text }));
            }
            _ => {
                return Err(fault(
                    place,
                    "this model reads text and results of tools; leave other blocks out",
                ));
            }
        }
    }
    if !said.is_empty() || blocks.is_empty() {
        out.push(Message::user(said));
    }
    Ok(())
}

fn assistant(blocks: &[Value], place: &str) -> Result<Message, ApiError> {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        let field = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
        match kind(block) {
            "text" => said.push_str(block_text(block)),
            "thinking" => thought.push_str(field("thinking")),
            "tool_use" => calls.push(ToolCall {
                id: field("id").to_owned(),
                name: field("name").to_owned(),
                arguments: block.get("input").cloned().unwrap_or_else(|| json!({})),
            }),
            _ => return Err(fault(place, "an answer has blocks of text, thinking and tool_use")),
        }
    }
    let mut message = Message::assistant(said);
    if !thought.is_empty() {
        message = message.with_reasoning(thought);
    }
    if !calls.is_empty() {
        message = message.with_tool_calls(&calls);
    }
    Ok(message)
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn block_text(block: &Value) -> &str {
    block.get("text").and_then(Value::as_str).unwrap_or_default()
}

/// Text, or the text of blocks of nothing else.
fn text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) if blocks.iter().all(|block| kind(block) == "text") => {
            Some(blocks.iter().map(block_text).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_strict_and_their_fields_known() {
        let tool = |field: &str, value: Value| {
            let mut tool = json!({"name": "look", "input_schema": {"type": "object"}});
            tool[field] = value;
            tools(&[tool])
        };
        assert_eq!(tool("strict", json!(true)).unwrap()[0]["function"]["strict"], true);
        assert!(tool("cache_control", json!({"type": "ephemeral"})).is_ok());
        for (field, value) in
            [("strict", json!(1)), ("allowed_callers", json!([])), ("input_examples", json!([{}]))]
        {
            let error = tool(field, value).unwrap_err();
            assert_eq!(error.param, Some(format!("tools[0].{field}")));
        }
    }

    #[test]
    fn blocks_become_messages() {
        let system = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
        let conversation = [
            json!({"role": "user", "content": "Weather?"}),
            json!({"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I ask.", "signature": ""},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}}]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Sunny."}]},
                {"type": "text", "text": "And?"}]}),
        ];
        let found = messages(Some(&system), &conversation).unwrap();
        let roles: Vec<_> = found.iter().filter_map(Message::role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(found[2].reasoning(), Some("I ask."));
        assert_eq!(found[2].tool_calls()[0].arguments, json!({"city": "Paris"}));
        assert_eq!((found[3].text(), found[4].text()), ("Sunny.".to_owned(), "And?".to_owned()));
        let failed = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "No such city.", "is_error": true}]});
        assert_eq!(messages(None, &[failed]).unwrap()[0].text(), "Error: No such city.");
        for bad in [
            json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
            json!({"role": "tool", "content": "x"}),
            json!({"role": "user"}),
        ] {
            assert_eq!(messages(None, &[bad]).unwrap_err().param.as_deref(), Some("messages[0]"));
        }
    }
}
