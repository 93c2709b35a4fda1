//! Calls of tools in what a model says.

mod detect;
pub(super) mod format;
mod json;
mod json_stream;
pub(super) mod literals;
mod named;
pub(super) mod schema;
mod sink;
pub(super) mod xml;

use std::sync::Arc;

use serde_json::Value;

use super::OutputEvent;
use super::stream::{Found, find, take};
use format::Syntax;
pub use format::ToolCallFormat;
use json::JsonCalls;
use literals::LiteralCalls;
use named::NamedCalls;
use sink::{Sink, Status};
use xml::XmlCalls;

/// Tells calls of tools from text, in an answer that arrives piece by piece. It is fed the content
/// that a [`super::ReasoningParser`] gives; [`super::OutputParser`] does both.
///
/// Text before, between and after calls is kept. What looks like a call but cannot be read as one
/// is content, so nothing is lost; where that shows only when arguments have been passed on already, they are
/// completed and the rest is content. White space next to a call is left out.
#[derive(Debug, Clone)]
pub(super) struct ToolCallParser {
    pub(super) format: ToolCallFormat,
    pub(super) tools: Arc<[Value]>,
    pending: String,
    reader: Option<Reader>,
    /// White space before what may be a call.
    space: String,
    calls: usize,
    /// A call has just ended: white space and its closing tags are skipped.
    after_call: bool,
    /// Nothing but white space has been said in this line.
    line_begins: bool,
}

#[derive(Debug, Clone)]
enum Reader {
    Json(JsonCalls),
    Named(NamedCalls),
    Xml(XmlCalls),
    Literal(LiteralCalls),
}

impl ToolCallParser {
    /// A parser for calls of `tools`, given as to the template. Their schemas tell the types of
    /// arguments that come as plain text; unknown ones stay text.
    pub(super) fn new(format: ToolCallFormat, tools: &[Value]) -> ToolCallParser {
        ToolCallParser {
            format,
            tools: tools.into(),
            pending: String::new(),
            reader: None,
            space: String::new(),
            calls: 0,
            after_call: false,
            line_begins: true,
        }
    }

    /// Takes more text and gives what is certain by now.
    pub(super) fn feed(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        self.pending.push_str(text);
        while self.step(out, false) {}
    }

    /// Gives what was held back, when the text is at its end.
    pub(super) fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        while self.step(out, true) {}
        let rest = std::mem::take(&mut self.pending);
        self.say(out, rest);
    }

    fn step(&mut self, out: &mut Vec<OutputEvent>, last: bool) -> bool {
        if self.reader.is_some() {
            return self.read(out, last);
        }
        if self.after_call && !self.skip_end(last) {
            return false;
        }
        if self.pending.is_empty() {
            return false;
        }
        let (at, whole) = match find(&self.pending, self.format.starts()) {
            Found::Whole(at, _) => (at, true),
            Found::Partial(at) if !last => (at, false),
            _ => (self.pending.len(), false),
        };
        // White space before a call is left out, so it waits for what follows it.
        let mut kept = self.pending.get(..at).unwrap_or_default().trim_end().len();
        if last && !whole {
            kept = at;
        }
        if kept > 0 {
            let text = take(&mut self.pending, kept);
            self.say(out, text);
            return true;
        }
        if !whole {
            return false;
        }
        let body = self.pending.get(at..).unwrap_or_default();
        let space = self.pending.get(..at).unwrap_or_default();
        let stands_alone = self.format == ToolCallFormat::Llama && !body.starts_with('<');
        if stands_alone && !self.line_begins && !space.contains('\n') {
            self.not_a_call(at, out);
            return true;
        }
        let Some(syntax) = self.format.syntax(body) else {
            if last {
                self.not_a_call(at, out);
            }
            return last;
        };
        self.space = take(&mut self.pending, at);
        self.reader = Some(match syntax {
            Syntax::Json(syntax) => Reader::Json(JsonCalls::new(syntax)),
            Syntax::Named(syntax) => Reader::Named(NamedCalls::new(syntax)),
            Syntax::Xml(syntax) => Reader::Xml(XmlCalls::new(syntax)),
            Syntax::Literal(syntax) => Reader::Literal(LiteralCalls::new(syntax)),
        });
        true
    }

    /// Goes on reading a call; false while more text is needed.
    fn read(&mut self, out: &mut Vec<OutputEvent>, last: bool) -> bool {
        let Some(reader) = &mut self.reader else { return false };
        let (pending, tools) = (&mut self.pending, &*self.tools);
        // Bare JSON must name a tool: any other is an answer.
        let bare = self.format == ToolCallFormat::Llama && !pending.starts_with('<');
        let known = |name: &str| !bare || tools.is_empty() || tools.iter().any(|tool| names(tool, name));
        let mut sink = Sink { out, calls: &mut self.calls };
        let status = match reader {
            Reader::Json(calls) => calls.read(pending, last, known, &mut sink),
            Reader::Named(calls) => calls.read(pending, last, &mut sink),
            Reader::Xml(calls) => calls.read(pending, last, tools, &mut sink),
            Reader::Literal(calls) => calls.read(pending, last, &mut sink),
        };
        match status {
            Status::More => false,
            Status::Done => {
                self.reader = None;
                self.space.clear();
                (self.after_call, self.line_begins) = (true, true);
                true
            }
            Status::Text => {
                self.reader = None;
                let space = std::mem::take(&mut self.space);
                let at = space.len();
                self.pending.insert_str(0, &space);
                self.not_a_call(at, out);
                true
            }
        }
    }

    /// One character of what is no call goes through; the rest is looked at again.
    fn not_a_call(&mut self, at: usize, out: &mut Vec<OutputEvent>) {
        let width = self.pending.get(at..).and_then(|body| body.chars().next()).map_or(0, char::len_utf8);
        let text = take(&mut self.pending, at + width);
        self.say(out, text);
    }

    /// Skips white space and closing tags; false while one may still be coming.
    fn skip_end(&mut self, last: bool) -> bool {
        loop {
            let rest = self.pending.trim_start();
            let ends = self.format.ends();
            if let Some(after) = ends.iter().find_map(|end| rest.strip_prefix(end)) {
                self.pending = after.to_owned();
                continue;
            }
            let coming = rest.is_empty() || ends.iter().any(|end| end.starts_with(rest));
            self.pending = rest.to_owned();
            if coming && !last {
                return false;
            }
            self.after_call = false;
            return true;
        }
    }

    fn say(&mut self, out: &mut Vec<OutputEvent>, text: String) {
        if text.is_empty() {
            return;
        }
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.line_begins = line.trim().is_empty() && (text.contains('\n') || self.line_begins);
        match out.last_mut() {
            Some(OutputEvent::Content(last)) => last.push_str(&text),
            _ => out.push(OutputEvent::Content(text)),
        }
    }
}

impl ToolCallFormat {
    /// Whether a special token is a part of how this format frames calls, so that its text has to reach the parser.
    pub(super) fn uses(self, token: &str) -> bool {
        self.marks().iter().any(|mark| mark.contains(token))
    }
}

/// What the beginning of a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// A call of one of the tools.
    Call,
    /// Something else.
    Text,
    /// One or the other, as more text will show.
    Open,
}

impl ToolCallFormat {
    /// What begins a call, in formats in which nothing else looks like it.
    pub(super) fn telling_starts(self) -> Option<&'static [&'static str]> {
        match self {
            // Bare JSON may be anything; messages have headers of their own.
            ToolCallFormat::Llama | ToolCallFormat::Channels => None,
            format => Some(format.starts()),
        }
    }

    /// Whether a text that begins with what begins a call is one, of one of the tools.
    pub(super) fn beginning(self, text: &str, tools: &[Value]) -> Beginning {
        let mut parser = ToolCallParser::new(self, tools);
        let mut events = Vec::new();
        parser.feed(text, &mut events);
        match events.first() {
            None => Beginning::Open,
            Some(OutputEvent::CallStart { name, .. }) if tools.iter().any(|tool| names(tool, name)) => {
                Beginning::Call
            }
            Some(_) => Beginning::Text,
        }
    }
}

/// Whether a tool has that name.
fn names(tool: &Value, name: &str) -> bool {
    tool.get("function").unwrap_or(tool).get("name").and_then(Value::as_str) == Some(name)
}

#[cfg(test)]
mod tests;
