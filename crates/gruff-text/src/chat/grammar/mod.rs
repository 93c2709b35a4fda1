//! Grammars for what a model says: reasoning as it writes it, then a document or calls of tools in its own format.
//!
//! They are in llguidance's form of Lark. A grammar allows what [`OutputParser`](super::OutputParser) reads, in the
//! ways that models write it, and nothing else: what it cannot hold a model to, it refuses.

mod calls;
mod lark;
mod parameters;

use serde_json::Value;

use super::{OutputFormat, ReasoningFormat};
use crate::Tokenizer;
use lark::Lark;
pub use lark::guided;
pub use parameters::outline;

/// What an answer has to be, behind its reasoning.
#[derive(Debug, Clone, Copy)]
pub enum Demand<'a> {
    /// A JSON document of a schema, or calls of tools, where there are any.
    Json {
        /// The schema.
        schema: &'a Value,
        /// The tools that may be called instead.
        tools: &'a [Value],
        /// Whether it may make several calls.
        many: bool,
    },
    /// Calls of some of these tools, given as to the template: at least one, and more where `many` says so.
    Calls {
        /// The tools.
        tools: &'a [Value],
        /// Whether it may make several calls.
        many: bool,
    },
    /// Whatever it likes; but where it calls a tool, it is one of these, and the call follows its schema.
    MayCall {
        /// The tools.
        tools: &'a [Value],
        /// Whether it may make several calls.
        many: bool,
    },
}

/// Why there is no such grammar: which part of the request, and what about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GrammarError {
    /// The tool at fault, by its place; `None` where it is the model's format.
    pub tool: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl GrammarError {
    fn format(message: impl Into<String>) -> Self {
        Self { tool: None, message: message.into() }
    }

    fn tool(place: usize, message: impl std::fmt::Display) -> Self {
        Self { tool: Some(place), message: format!("tools[{place}]: {message}") }
    }
}

impl OutputFormat {
    /// The grammar, with rule `start`, of what may follow `prompt`, which may have begun or ended the reasoning.
    ///
    /// # Errors
    /// [`GrammarError`] where this model's format, or a tool's schema in it, allows no grammar.
    pub fn grammar(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        demand: Demand<'_>,
    ) -> Result<String, GrammarError> {
        let mut lark = Lark::new(tokenizer);
        let reasoning = self.reasoning_before(&mut lark, prompt)?;
        let answer = match demand {
            Demand::Json { schema, tools, many } => {
                let header = if self.has_channels() {
                    lark.text("<|channel|>final<|message|>")
                } else {
                    String::new()
                };
                let json = lark.json(schema);
                match tools {
                    [] => format!("{header} {json}"),
                    tools => {
                        let calls = calls::required(&mut lark, self.calls()?, tools, many)?;
                        format!("({header} {json} | {calls})")
                    }
                }
            }
            Demand::Calls { tools, many } => calls::required(&mut lark, self.calls()?, tools, many)?,
            Demand::MayCall { tools, many } => calls::possible(&mut lark, self.calls()?, tools, many)?,
        };
        lark.rule("start", &format!("{reasoning} {answer}"));
        Ok(lark.finish())
    }

    fn calls(&self) -> Result<super::ToolCallFormat, GrammarError> {
        self.tool_calls.ok_or_else(|| GrammarError::format("this model's format has no calls of tools"))
    }

    fn has_channels(&self) -> bool {
        self.reasoning == Some(ReasoningFormat::Channels)
    }

    /// What comes before the answer.
    fn reasoning_before(&self, lark: &mut Lark<'_>, prompt: &str) -> Result<String, GrammarError> {
        match self.reasoning {
            None => Ok(String::new()),
            Some(format @ ReasoningFormat::Tags { start, end }) => {
                if format.is_opened_by(prompt) {
                    let thought = lark.until(end, None);
                    return Ok(format!("{thought} SPACE?"));
                }
                if prompt.trim_end().ends_with(end) {
                    return Ok(String::new());
                }
                let (start, thought) = (lark.text(start), lark.until(end, None));
                Ok(format!("(SPACE? {start} {thought})? SPACE?"))
            }
            Some(format @ ReasoningFormat::Channels) => {
                let next = lark.text("<|start|>assistant");
                let thought = lark.until("<|end|>", None);
                if format.is_opened_by(prompt) {
                    return Ok(format!("{thought} {next}"));
                }
                let start = lark.text("<|channel|>analysis<|message|>");
                Ok(format!("({start} {thought} {next})?"))
            }
            Some(_) => Err(GrammarError::format(
                "this model writes its reasoning as messages to itself, for which gruff has no grammar",
            )),
        }
    }
}
