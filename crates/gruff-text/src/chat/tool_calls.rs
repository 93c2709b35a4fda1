//! Calls of tools in what a model says.

mod json;
mod xml;

use serde_json::Value;

use super::stream::{Found, find, take};
use super::{ChatTemplate, ToolCall};

/// How a model writes its calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>` (Qwen3-Coder,
    /// Qwen3.5), also without the outer tag or with another.
    Xml,
    /// `<tool_call>NAME<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` (GLM 4.5 and later).
    ArgumentTags,
    /// `[TOOL_CALLS]` and a JSON list, or a name and its arguments (Mistral).
    Mistral,
    /// `{"name": …, "parameters": {…}}` on a line of its own, perhaps after `<|python_tag|>` (Llama 3).
    Llama,
    /// `<|channel|>commentary to=functions.NAME<|message|>{…}<|call|>` (gpt-oss).
    Channels,
}

impl ToolCallFormat {
    /// The format of the model that a template belongs to.
    pub fn of(template: &ChatTemplate) -> Option<ToolCallFormat> {
        let source = template.source();
        let has = |text: &str| source.contains(text);
        if has("<|channel|>") && has("commentary") {
            Some(ToolCallFormat::Channels)
        } else if has("[TOOL_CALLS]") {
            Some(ToolCallFormat::Mistral)
        } else if has("<function=") && has("<parameter=") {
            Some(ToolCallFormat::Xml)
        } else if has("<arg_key>") {
            Some(ToolCallFormat::ArgumentTags)
        } else if has("<tool_call>") {
            Some(ToolCallFormat::Hermes)
        } else if has("<|start_header_id|>") && has("\"parameters\":") {
            Some(ToolCallFormat::Llama)
        } else {
            None
        }
    }

    /// What may begin a call.
    fn starts(self) -> &'static [&'static str] {
        match self {
            ToolCallFormat::Hermes | ToolCallFormat::ArgumentTags => &["<tool_call>"],
            ToolCallFormat::Xml => &["<tool_call>", "<seed:tool_call>", "<function="],
            ToolCallFormat::Mistral => &["[TOOL_CALLS]"],
            ToolCallFormat::Llama => &["<|python_tag|>", "{\"name\"", "{ \"name\"", "{\"type\"", "{\n"],
            ToolCallFormat::Channels => &["<|start|>", "<|channel|>"],
        }
    }

    /// What may follow a call and belongs to it, once or more often.
    fn ends(self) -> &'static [&'static str] {
        match self {
            ToolCallFormat::Hermes | ToolCallFormat::ArgumentTags => &["</tool_call>"],
            ToolCallFormat::Xml => &["</tool_call>", "</seed:tool_call>", "</function>", "</parameter>"],
            ToolCallFormat::Mistral => &[],
            ToolCallFormat::Llama => &[";", "<|eom_id|>", "<|eot_id|>"],
            ToolCallFormat::Channels => &["<|call|>", "<|end|>"],
        }
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerPiece {
    /// Text for the reader.
    Content(String),
    /// A call, whole.
    Call(ToolCall),
}

/// What the text at a possible start turns out to be.
enum Taken {
    /// Calls, written in that many bytes.
    Calls(Vec<ToolCall>, usize),
    /// The text so far does not tell.
    More,
    /// Not a call.
    Text,
}

/// Tells calls of tools from text, in an answer that arrives piece by piece. Feed it the content
/// that a [`super::ReasoningParser`] gives.
///
/// Text before, between and after calls is kept. What looks like a call but cannot be read as one
/// is content, so nothing is lost. White space next to a call is left out.
///
/// ```
/// use gruff_text::chat::{AnswerPiece, ToolCallFormat, ToolCallParser};
///
/// let mut parser = ToolCallParser::new(ToolCallFormat::Hermes, &[]);
/// let mut pieces = parser.feed("Looking.\n<tool_call>\n{\"name\": \"f\", \"argum");
/// pieces.extend(parser.feed("ents\": {\"x\": 1}}\n</tool_call>"));
/// pieces.extend(parser.finish());
/// let AnswerPiece::Call(call) = &pieces[1] else { panic!() };
/// assert_eq!((call.name.as_str(), call.arguments["x"].as_i64()), ("f", Some(1)));
/// ```
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    format: ToolCallFormat,
    tools: Vec<Value>,
    pending: String,
    /// A call has just ended: white space and its closing tags are skipped.
    after_call: bool,
    /// Nothing but white space has been said in this line.
    line_begins: bool,
}

impl ToolCallParser {
    /// A parser for calls of `tools`, given as to the template. Their schemas tell the types of
    /// arguments that come as plain text; unknown ones stay text.
    pub fn new(format: ToolCallFormat, tools: &[Value]) -> ToolCallParser {
        ToolCallParser {
            format,
            tools: tools.to_vec(),
            pending: String::new(),
            after_call: false,
            line_begins: true,
        }
    }

    /// Takes more text and gives what is certain by now.
    pub fn feed(&mut self, text: &str) -> Vec<AnswerPiece> {
        self.pending.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out, false) {}
        out
    }

    /// Gives what was held back, when the text is at its end.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        let mut out = Vec::new();
        while self.step(&mut out, true) {}
        let rest = std::mem::take(&mut self.pending);
        self.say(&mut out, rest);
        out
    }

    fn step(&mut self, out: &mut Vec<AnswerPiece>, last: bool) -> bool {
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
        let possible = self.format != ToolCallFormat::Llama
            || body.starts_with("<|python_tag|>")
            || self.line_begins
            || space.contains('\n');
        let taken = match possible {
            true => self.take_call(body, last),
            false => Taken::Text,
        };
        match taken {
            Taken::More => false,
            Taken::Calls(calls, len) => {
                take(&mut self.pending, at + len);
                out.extend(calls.into_iter().map(AnswerPiece::Call));
                (self.after_call, self.line_begins) = (true, true);
                true
            }
            Taken::Text => {
                // One character of what is no call goes through; the rest is looked at again.
                let width = body.chars().next().map_or(0, char::len_utf8);
                let text = take(&mut self.pending, at + width);
                self.say(out, text);
                true
            }
        }
    }

    fn take_call(&self, body: &str, last: bool) -> Taken {
        match self.format {
            ToolCallFormat::Hermes => json::tagged(body, "<tool_call>", "</tool_call>", last),
            ToolCallFormat::Mistral => json::mistral(body, last),
            ToolCallFormat::Llama => json::bare(body, &self.tools, last),
            ToolCallFormat::Channels => json::channel(body, last),
            ToolCallFormat::Xml => xml::functions(body, &self.tools, last),
            ToolCallFormat::ArgumentTags => xml::argument_tags(body, &self.tools, last),
        }
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

    fn say(&mut self, out: &mut Vec<AnswerPiece>, text: String) {
        if text.is_empty() {
            return;
        }
        let line = text.rsplit('\n').next().unwrap_or_default();
        self.line_begins = line.trim().is_empty() && (text.contains('\n') || self.line_begins);
        match out.last_mut() {
            Some(AnswerPiece::Content(last)) => last.push_str(&text),
            _ => out.push(AnswerPiece::Content(text)),
        }
    }
}

#[cfg(test)]
mod tests;
