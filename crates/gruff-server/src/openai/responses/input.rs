//! Input items and tools, as chat templates read them.

use gruff::Message;
use gruff::floors::text::chat::ToolCall;
use serde_json::{Value, json};

use crate::api_error::ApiError;

/// Tools whose fields stand beside their type, as functions.
pub(super) fn tools(tools: &[Value]) -> Result<Vec<Value>, ApiError> {
    let convert = |(index, tool): (usize, &Value)| {
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            let message = "only tools of the type \"function\" are here; leave others out";
            return Err(ApiError::unsupported(&format!("tools[{index}]"), message));
        }
        let mut function = tool.clone();
        if let Some(fields) = function.as_object_mut() {
            fields.remove("type");
        }
        Ok(json!({"type": "function", "function": function}))
    };
    tools.iter().enumerate().map(convert).collect()
}

/// The messages of an input: a text, or items. Reasoning and calls that stand before or behind one another make one
/// message of the assistant.
pub(super) fn messages(input: &Value) -> Result<Vec<Message>, ApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![Message::user(text)]),
        Value::Array(items) => items,
        _ => return Err(ApiError::field("input", "`input` is a text or a list of items")),
    };
    let mut out = Vec::new();
    let mut answer = Answer::default();
    for (index, item) in items.iter().enumerate() {
        let fault = |message: &str| {
            let place = format!("input[{index}]");
            ApiError { message: format!("{place}: {message}"), ..ApiError::field(place, "") }
        };
        let field = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        let text = |name: &str| {
            text(item.get(name)).ok_or_else(|| fault("this model reads text alone; leave other content out"))
        };
        match (field("type"), field("role")) {
            ("message" | "", "assistant") => answer.said.get_or_insert_default().push_str(&text("content")?),
            ("message" | "", role @ ("user" | "system" | "developer")) => {
                answer.end(&mut out);
                out.push(Message::new(role, text("content")?));
            }
            ("reasoning", _) => {
                if answer.said.is_some() || !answer.calls.is_empty() {
                    answer.end(&mut out);
                }
                answer.thought.push_str(&text("content")?);
            }
            ("function_call", _) => {
                let arguments = field("arguments");
                let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments));
                let (id, name) = (field("call_id").to_owned(), field("name").to_owned());
                answer.calls.push(ToolCall { id, name, arguments });
            }
            ("function_call_output", _) => {
                answer.end(&mut out);
                out.push(Message::tool(field("call_id"), text("output")?));
            }
            _ => {
                return Err(fault(
                    "an item is a message, reasoning, a function_call or a function_call_output",
                ));
            }
        }
    }
    answer.end(&mut out);
    Ok(out)
}

/// An answer of earlier, spread over items.
#[derive(Default)]
struct Answer {
    thought: String,
    said: Option<String>,
    calls: Vec<ToolCall>,
}

impl Answer {
    fn end(&mut self, out: &mut Vec<Message>) {
        let Answer { thought, said, calls } = std::mem::take(self);
        if thought.is_empty() && said.is_none() && calls.is_empty() {
            return;
        }
        let mut message = Message::assistant(said.unwrap_or_default());
        if !thought.is_empty() {
            message = message.with_reasoning(thought);
        }
        if !calls.is_empty() {
            message = message.with_tool_calls(&calls);
        }
        out.push(message);
    }
}

/// Text, or the text of parts of nothing else.
fn text(content: Option<&Value>) -> Option<String> {
    match content {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(|part| part.get("text")?.as_str()).collect(),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        assert_eq!(messages(&json!("Hi")).unwrap(), [Message::user("Hi")]);
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Paris\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
        ]);
        let found = messages(&items).unwrap();
        let roles: Vec<_> = found.iter().filter_map(Message::role).collect();
        assert_eq!(roles, ["user", "assistant", "tool"]);
        assert_eq!((found[1].reasoning(), found[1].text().as_str()), (Some("I ask."), "Looking."));
        assert_eq!(found[1].tool_calls()[0].arguments, json!({"city": "Paris"}));
        for bad in [
            json!([{"type": "computer_call"}]),
            json!([{"role": "user", "content": [{"type": "input_image"}]}]),
        ] {
            assert_eq!(messages(&bad).unwrap_err().param.as_deref(), Some("input[0]"));
        }
        assert!(messages(&json!(3)).is_err());
    }
}
