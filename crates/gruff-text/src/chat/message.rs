//! Chat messages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation: a JSON object with the fields of the OpenAI and transformers
/// chat formats, such as `role`, `content`, `reasoning_content`, `tool_calls`, `tool_call_id` and
/// `name`.
///
/// Every field is kept as it came, unknown ones too and in their order, because a template may
/// read or print any of them.
///
/// ```
/// use gruff_text::chat::Message;
///
/// let json = r#"{"role":"user","content":"Hi","name":"Ann","weight":1.0}"#;
/// let message: Message = serde_json::from_str(json)?;
/// assert_eq!(message.role(), Some("user"));
/// assert_eq!(message.text(), "Hi");
/// assert_eq!(serde_json::to_string(&message)?, json);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message {
    fields: Map<String, Value>,
}

/// A call of a tool that an assistant's message makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id, to which the tool's answer refers; empty where there is none.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments, an object by name. A model may produce anything.
    pub arguments: Value,
}

impl Message {
    /// A message of any role with text.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        let mut message = Message::default();
        message.set("role", role);
        message.set("content", content.into());
        message
    }

    /// A system message.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// A user's message.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// An assistant's message.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }

    /// A tool's answer to the call `id`.
    pub fn tool(id: &str, content: impl Into<String>) -> Message {
        let mut message = Message::new("tool", content);
        message.set("tool_call_id", id);
        message
    }

    /// The same message with the thoughts that led to it.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> Message {
        self.set("reasoning_content", reasoning.into());
        self
    }

    /// The same message with calls of tools.
    #[must_use]
    pub fn with_tool_calls(mut self, calls: &[ToolCall]) -> Message {
        let calls: Vec<Value> = calls.iter().map(ToolCall::to_json).collect();
        self.set("tool_calls", calls);
        self
    }

    /// Who speaks: `system`, `user`, `assistant`, `tool` or what else a template knows.
    pub fn role(&self) -> Option<&str> {
        self.get("role").and_then(Value::as_str)
    }

    /// The content's text: of a list of parts, the text parts one after the other; empty for none.
    pub fn text(&self) -> String {
        match self.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
            }
            _ => String::new(),
        }
    }

    /// The thoughts that led to the message.
    pub fn reasoning(&self) -> Option<&str> {
        self.get("reasoning_content").and_then(Value::as_str)
    }

    /// The calls of tools in the message.
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        match self.get("tool_calls") {
            Some(Value::Array(calls)) => calls.iter().filter_map(ToolCall::from_json).collect(),
            _ => Vec::new(),
        }
    }

    /// A field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// Sets a field; one that is new comes last.
    pub fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.fields.insert(field.to_owned(), value.into());
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }
}

impl From<Map<String, Value>> for Message {
    fn from(fields: Map<String, Value>) -> Message {
        Message { fields }
    }
}

impl ToolCall {
    /// The call as the OpenAI API writes it, with the arguments as an object.
    pub fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), Value::from(self.name.as_str()));
        function.insert("arguments".to_owned(), self.arguments.clone());
        let mut call = Map::new();
        if !self.id.is_empty() {
            call.insert("id".to_owned(), Value::from(self.id.as_str()));
        }
        call.insert("type".to_owned(), Value::from("function"));
        call.insert("function".to_owned(), Value::Object(function));
        Value::Object(call)
    }

    /// Reads `{"id", "function": {"name", "arguments"}}` or `{"name", "arguments"}`; arguments
    /// that are a string of JSON are parsed.
    fn from_json(call: &Value) -> Option<ToolCall> {
        let function = call.get("function").unwrap_or(call);
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
            }
            Some(arguments) => arguments.clone(),
            None => Value::Object(Map::new()),
        };
        Some(ToolCall {
            id: call.get("id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            name: function.get("name")?.as_str()?.to_owned(),
            arguments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_out_as_it_went_in() {
        for json in [
            r#"{"content":null,"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","url":"x"}],"zz":1.0,"a":[null,true]}"#,
            r#"{"role":"x","content":"é\n<","weight":18446744073709551615}"#,
        ] {
            let message: Message = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), json);
        }
        assert!(serde_json::from_str::<Message>("\"text\"").is_err());
    }

    #[test]
    fn tool_calls_are_read_and_written() {
        let call =
            ToolCall { id: "c1".to_owned(), name: "f".to_owned(), arguments: serde_json::json!({"a": 1}) };
        let message = Message::assistant("").with_tool_calls(std::slice::from_ref(&call));
        assert_eq!(message.tool_calls(), [call]);
    }
}
