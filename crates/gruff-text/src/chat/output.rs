//! What a model says, told apart as it arrives: reasoning, answer, calls of tools.

use serde_json::Value;

use super::stream::{Found, find, take};
use super::tool_calls::Beginning;
use super::tool_calls::ToolCallParser;
use super::{ChatTemplate, Message, Piece, ReasoningFormat, ReasoningParser, ToolCall, ToolCallFormat};

/// A part of what a model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text of its reasoning.
    Reasoning(String),
    /// Text of its answer.
    Content(String),
    /// A call begins.
    CallStart {
        /// Which call of the answer, from 0.
        index: usize,
        /// The id that the model gave it; empty where it gives none.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of the arguments of the call begun last. All of them, one after the other, are valid JSON.
    CallArguments {
        /// Which call.
        index: usize,
        /// JSON, cut anywhere between two characters.
        text: String,
    },
    /// The call's arguments are complete.
    CallEnd {
        /// Which call.
        index: usize,
    },
}

/// How a model writes what is not its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputFormat {
    /// How it marks its reasoning, if it does.
    pub reasoning: Option<ReasoningFormat>,
    /// How it writes calls of tools, if it does.
    pub tool_calls: Option<ToolCallFormat>,
}

impl OutputFormat {
    /// The formats of the model that a template belongs to.
    pub fn of(template: &ChatTemplate) -> OutputFormat {
        OutputFormat { reasoning: template.reasoning().format, tool_calls: ToolCallFormat::of(template) }
    }

    /// Whether the text of a special token is a mark of these formats. Such tokens have to reach the parser as
    /// text; all others are better left out.
    pub fn uses(&self, token: &str) -> bool {
        !token.is_empty()
            && (self.reasoning.is_some_and(|format| format.uses(token))
                || self.tool_calls.is_some_and(|format| format.uses(token)))
    }
}

/// Tells reasoning, answer and calls of tools apart in text that arrives piece by piece.
///
/// However the text is cut, the events add up to the same. Text before, between and after calls is
/// kept; what cannot be read as a call is content. Arguments are passed on while they arrive, as
/// valid JSON whatever the format. If the text ends inside a call, its arguments are completed with what came.
///
/// A call that stands in reasoning which never ends is a call: models that forget to close their reasoning mean it so. It
/// is told when the text is at its end, since reasoning that speaks of calls and is closed later is reasoning.
///
/// Special tokens that the formats use must be in the text, as text.
///
/// ```
/// use gruff_text::chat::{OutputParser, ParsedOutput, ReasoningFormat, ToolCallFormat};
///
/// let format = ReasoningFormat::Tags { start: "<think>", end: "</think>" };
/// let mut parser = OutputParser::new(Some(format), Some(ToolCallFormat::Hermes), "<think>\n", &[]);
/// let mut parsed = ParsedOutput::default();
/// for text in ["I look.</th", "ink>\n<tool_call>{\"name\": \"f\", \"argum", "ents\": {\"x\": 1}}</tool_call>"] {
///     parser.feed(text).into_iter().for_each(|event| parsed.push(event));
/// }
/// parser.finish().into_iter().for_each(|event| parsed.push(event));
/// assert_eq!(parsed.reasoning, "I look.");
/// assert_eq!(parsed.tool_calls()[0].arguments["x"], 1);
/// ```
#[derive(Debug, Clone)]
pub struct OutputParser {
    reasoning: ReasoningParser,
    tool_calls: Option<ToolCallParser>,
    /// Reasoning that may be a call.
    held: String,
    /// It is one, if the reasoning does not end behind it.
    held_is_call: bool,
}

impl OutputParser {
    /// A parser for what follows `prompt`, which may have begun the reasoning. Without a format for
    /// calls there are none. `tools` are given as to the template: their schemas tell the types of arguments in
    /// formats that write them as plain text.
    pub fn new(
        reasoning: Option<ReasoningFormat>,
        tool_calls: Option<ToolCallFormat>,
        prompt: &str,
        tools: &[Value],
    ) -> OutputParser {
        OutputParser {
            reasoning: ReasoningParser::new(reasoning, prompt),
            tool_calls: tool_calls.map(|format| ToolCallParser::new(format, tools)),
            held: String::new(),
            held_is_call: false,
        }
    }

    /// Takes more text and gives what is certain by now.
    pub fn feed(&mut self, text: &str) -> Vec<OutputEvent> {
        let pieces = self.reasoning.feed(text);
        self.pieces(pieces)
    }

    /// Gives what was held back, when the text is at its end.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let open = self.reasoning.is_open();
        let pieces = self.reasoning.finish();
        let mut out = self.pieces(pieces);
        let held = std::mem::take(&mut self.held);
        match &mut self.tool_calls {
            Some(parser) if open && self.held_is_call => parser.feed(held.trim_start(), &mut out),
            _ => say(&mut out, held),
        }
        if let Some(parser) = &mut self.tool_calls {
            parser.finish(&mut out);
        }
        out
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<OutputEvent> {
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.think(text, &mut out),
                Piece::Content(text) => {
                    // The reasoning has ended, so what was held back is part of it.
                    say(&mut out, std::mem::take(&mut self.held));
                    self.held_is_call = false;
                    match &mut self.tool_calls {
                        Some(parser) => parser.feed(&text, &mut out),
                        None => out.push(OutputEvent::Content(text)),
                    }
                }
            }
        }
        out
    }
}

impl OutputParser {
    /// Passes reasoning on, but for what may be a call.
    fn think(&mut self, text: String, out: &mut Vec<OutputEvent>) {
        let calls = self.tool_calls.as_ref().filter(|parser| !parser.tools.is_empty());
        let Some((format, tools)) = calls.map(|parser| (parser.format, parser.tools.clone())) else {
            return say(out, text);
        };
        let Some(starts) = format.telling_starts() else { return say(out, text) };
        self.held.push_str(&text);
        while !self.held_is_call {
            let (at, whole) = match find(&self.held, starts) {
                Found::Whole(at, _) => (at, true),
                Found::Partial(at) => (at, false),
                Found::No => (self.held.len(), false),
            };
            // White space before a call is left out, so it waits for what follows it.
            let kept = self.held.get(..at).unwrap_or_default().trim_end().len();
            say(out, take(&mut self.held, kept));
            if !whole {
                return;
            }
            match format.beginning(self.held.trim_start(), &tools) {
                Beginning::Open => return,
                Beginning::Call => self.held_is_call = true,
                Beginning::Text => {
                    let space = self.held.len() - self.held.trim_start().len();
                    let first = self.held.trim_start().chars().next().map_or(0, char::len_utf8);
                    say(out, take(&mut self.held, space + first));
                }
            }
        }
    }
}

fn say(out: &mut Vec<OutputEvent>, text: String) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputEvent::Reasoning(last)) => last.push_str(&text),
        _ => out.push(OutputEvent::Reasoning(text)),
    }
}

/// The events of an answer, added up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedOutput {
    /// What the model thought.
    pub reasoning: String,
    /// What it answered.
    pub content: String,
    /// The calls it made.
    pub calls: Vec<ParsedCall>,
}

/// A call as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedCall {
    /// The id that the model gave it; empty where it gives none.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as JSON.
    pub arguments: String,
}

impl ParsedOutput {
    /// Takes an event in.
    pub fn push(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Reasoning(text) => self.reasoning.push_str(&text),
            OutputEvent::Content(text) => self.content.push_str(&text),
            OutputEvent::CallStart { id, name, .. } => {
                self.calls.push(ParsedCall { id, name, arguments: String::new() });
            }
            OutputEvent::CallArguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            OutputEvent::CallEnd { .. } => {}
        }
    }

    /// The calls with their arguments as values.
    pub fn tool_calls(&self) -> Vec<ToolCall> {
        self.calls
            .iter()
            .map(|call| ToolCall {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments: serde_json::from_str(&call.arguments)
                    .unwrap_or_else(|_| Value::from(call.arguments.as_str())),
            })
            .collect()
    }

    /// The message to put into the history: content, `reasoning_content` and `tool_calls`, the
    /// latter two where there are any.
    pub fn message(&self) -> Message {
        let mut message = Message::assistant(&self.content);
        if !self.reasoning.is_empty() {
            message = message.with_reasoning(&self.reasoning);
        }
        if !self.calls.is_empty() {
            message = message.with_tool_calls(&self.tool_calls());
        }
        message
    }
}
