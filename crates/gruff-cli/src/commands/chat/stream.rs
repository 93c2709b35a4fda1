//! Server-sent events as chat servers send them, and what is in them.

use std::io::{self, BufRead, Read};

use serde_json::Value;

use super::client::explanation;

/// Bytes of a line at most: more than a whole answer in one event.
const LINE: u64 = 16 << 20;

/// What a chunk of an answer has.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Reasoning(String),
    Text(String),
    /// Why the answer ended.
    Finish(String),
    Usage(Value),
    Timings(Value),
    /// The server's word that it cannot go on.
    Failed(String),
    /// The end of the stream: whether the server said so.
    End {
        marked: bool,
    },
}

/// Reads events until the end. A stream may end by `[DONE]` or just so.
pub(super) struct Events<R> {
    reader: R,
    data: Vec<u8>,
    waiting: std::collections::VecDeque<Event>,
    ended: bool,
}

impl<R: BufRead> Events<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, data: Vec::new(), waiting: std::collections::VecDeque::new(), ended: false }
    }

    /// The next event.
    ///
    /// # Errors
    /// When the connection breaks, or what comes is no stream of events.
    pub(super) fn next(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            if self.ended {
                return Ok(Event::End { marked: false });
            }
            self.line()?;
        }
    }

    fn line(&mut self) -> io::Result<()> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE + 1).read_until(b'\n', &mut line)?;
        if read as u64 > LINE {
            return Err(io::Error::other(
                "the server sends a line of more than 16 MiB; is this OpenAI's API?",
            ));
        }
        let is_last = !line.ends_with(b"\n");
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(data) = line.strip_prefix(b"data:") {
            if !self.data.is_empty() {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            if self.data.len() as u64 > LINE {
                return Err(io::Error::other("the server sends an event of more than 16 MiB"));
            }
        }
        // Some servers end an event by its line alone, and some leave the last one open.
        if !self.data.is_empty() && (line.is_empty() || is_last || is_whole(&self.data)) {
            let data = std::mem::take(&mut self.data);
            self.event(&data)?;
        }
        self.ended |= is_last;
        Ok(())
    }

    fn event(&mut self, data: &[u8]) -> io::Result<()> {
        if data.trim_ascii() == b"[DONE]" {
            self.waiting.push_back(Event::End { marked: true });
            return Ok(());
        }
        let text = String::from_utf8_lossy(data);
        let chunk: Value = serde_json::from_str(&text).map_err(|error| {
            let shown: String = text.chars().take(200).collect();
            io::Error::other(format!("the server sends an event that is no JSON ({error}): {shown}"))
        })?;
        self.waiting.extend(events(&chunk));
        Ok(())
    }
}

fn is_whole(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
}

/// What is in a chunk, or in a whole answer.
pub(super) fn events(chunk: &Value) -> Vec<Event> {
    let mut events = Vec::new();
    let failed = chunk.get("error").is_some_and(|error| !error.is_null())
        || chunk.get("object").and_then(Value::as_str) == Some("error");
    if failed {
        let said = explanation(chunk)
            .unwrap_or_else(|| "the server reports an error and does not say which".to_owned());
        return vec![Event::Failed(said)];
    }
    let choices = chunk.get("choices").and_then(Value::as_array);
    // Other choices than the first were not asked for.
    let first = choices.and_then(|list| {
        list.iter().find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
    });
    if let Some(choice) = first {
        let message = choice.get("delta").or_else(|| choice.get("message")).unwrap_or(&Value::Null);
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|name| text(message.get(*name)?));
        if let Some(reasoning) = reasoning {
            events.push(Event::Reasoning(reasoning));
        }
        content(message.get("content").unwrap_or(&Value::Null), &mut events);
        if let Some(refusal) = message.get("refusal").and_then(text) {
            events.push(Event::Text(refusal));
        }
        // Completions that are not chats have their text here.
        if message.is_null()
            && let Some(text) = choice.get("text").and_then(text)
        {
            events.push(Event::Text(text));
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            events.push(Event::Finish(reason.to_owned()));
        }
    }
    for (name, event) in [("usage", Event::Usage as fn(Value) -> Event), ("timings", Event::Timings)] {
        if let Some(value) = chunk.get(name).filter(|value| value.is_object()) {
            events.push(event(value.clone()));
        }
    }
    events
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Content is a text, or a list of parts, of which some may be thoughts.
fn content(value: &Value, events: &mut Vec<Event>) {
    match value {
        Value::String(text) if !text.is_empty() => events.push(Event::Text(text.clone())),
        Value::Array(parts) => {
            for part in parts {
                match part.get("type").and_then(Value::as_str) {
                    Some("thinking" | "reasoning") => {
                        let thought =
                            part.get("thinking").or_else(|| part.get("text")).unwrap_or(&Value::Null);
                        let mut inner = Vec::new();
                        // One level: parts in a thought are texts.
                        match thought {
                            Value::Array(parts) => {
                                inner.extend(parts.iter().filter_map(|part| part.get("text").and_then(text)));
                            }
                            other => inner.extend(text(other)),
                        }
                        events.extend(inner.into_iter().map(Event::Reasoning));
                    }
                    _ => events.extend(part.get("text").and_then(text).map(Event::Text)),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(stream: &str) -> Vec<Event> {
        // A byte at a time, as a slow network gives them.
        let mut events = Events::new(io::BufReader::with_capacity(1, stream.as_bytes()));
        let mut all = Vec::new();
        loop {
            let event = events.next().unwrap();
            let is_end = matches!(event, Event::End { .. });
            all.push(event);
            if is_end {
                return all;
            }
        }
    }

    fn say(text: &str) -> Event {
        Event::Text(text.to_owned())
    }

    #[test]
    fn streams_are_read_however_they_are_cut() {
        let chunk = |text: &str| json!({"choices": [{"delta": {"content": text}}]}).to_string();
        let (a, b) = (chunk("a"), chunk("é\n"));
        for (stream, marked) in [
            (format!("data: {a}\n\ndata: {b}\n\ndata: [DONE]\n\n"), true),
            (format!("data:{a}\r\n\r\n: ping\r\n\r\ndata:{b}\r\n\r\ndata:[DONE]\r\n\r\n"), true),
            (format!("event: x\nid: 3\ndata: {a}\nretry: 1\n\ndata: {b}\n\n"), false),
            (format!("data: {a}\ndata: {b}\ndata: [DONE]"), true),
            (format!("data: {a}\n\ndata: {b}"), false),
            (format!("\n\n\ndata: {a}\n\n\n\ndata: {}\ndata: {}\n\n", &b[..12], &b[12..]), false),
        ] {
            assert_eq!(read(&stream), [say("a"), say("é\n"), Event::End { marked }], "{stream:?}");
        }
        assert_eq!(read(""), [Event::End { marked: false }]);
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        let long = "data: ".to_owned() + &"x".repeat(LINE as usize);
        for stream in ["data: {\"choices\": [\n\n", "data: hello\n\n", long.as_str()] {
            let mut events = Events::new(stream.as_bytes());
            assert!(events.next().is_err(), "{}", &stream[..10]);
        }
        // A page of a proxy has no events, and so no answer.
        assert_eq!(read("<html>\n<body>Bad Gateway\n"), [Event::End { marked: false }]);
    }

    #[test]
    fn chunks_of_many_servers_are_understood() {
        let think = |text: &str| Event::Reasoning(text.to_owned());
        for (chunk, expected) in [
            (json!({"choices": [{"delta": {"reasoning_content": "a", "content": null}}]}), vec![think("a")]),
            (json!({"choices": [{"delta": {"reasoning": "a", "content": ""}}]}), vec![think("a")]),
            (json!({"choices": [{"delta": {"reasoning": {"effort": 1}, "reasoning_content": ""}}]}), vec![]),
            (
                json!({"choices": [{"message": {"content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}, {"type": "text", "text": "b"}]}}]}),
                vec![think("a"), say("b")],
            ),
            (json!({"choices": [{"index": 1, "delta": {"content": "other"}}]}), vec![]),
            (
                json!({"choices": [{"delta": {}, "finish_reason": "length"}]}),
                vec![Event::Finish("length".to_owned())],
            ),
            (
                json!({"choices": [], "usage": {"completion_tokens": 3}}),
                vec![Event::Usage(json!({"completion_tokens": 3}))],
            ),
            (json!({"choices": [{"text": "a"}], "usage": null}), vec![say("a")]),
            (json!({"error": {"message": "no"}}), vec![Event::Failed("no".to_owned())]),
            (json!({"object": "error", "message": "no", "code": 500}), vec![Event::Failed("no".to_owned())]),
            (json!({"choices": 3}), vec![]),
            (json!([1]), vec![]),
        ] {
            assert_eq!(events(&chunk), expected, "{chunk}");
        }
    }
}
