//! Chat templates and what belongs to them: messages, rendering, reasoning and tool calls.
//!
//! A GGUF file carries its model's chat template, a program in Jinja that turns a conversation
//! into text. [`ChatTemplate`] renders it byte for byte as transformers does in Python, within
//! limits that keep a hostile one from doing harm.

mod continuation;
mod environment;
mod error;
mod grammar;
mod lower;
mod message;
mod output;
mod python;
mod reasoning;
mod stream;
mod template;
mod tool_calls;

pub use chrono::NaiveDateTime;
pub use continuation::Continuation;
pub use error::TemplateError;
pub use grammar::{Demand, GrammarError, guided, outline};
pub use message::{Message, ToolCall};
pub use output::{OutputEvent, OutputFormat, OutputParser, ParsedCall, ParsedOutput};
pub use reasoning::{Piece, ReasoningFormat, ReasoningMode, ReasoningParser, ReasoningSupport};
pub use template::{ChatTemplate, RenderInput, Rendered};
pub use tool_calls::ToolCallFormat;
