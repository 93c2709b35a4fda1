//! One answer: its tokens as they come, split into reasoning and text.

use std::ops::ControlFlow;

use gruff::floors::text::Detokenizer;
use gruff::floors::text::chat::{OutputEvent, OutputFormat, OutputParser};
use gruff::{FinishReason, GenerateOptions, StopMatcher, Streamed, Usage};

use super::Runner;
use crate::conversation::Part;

/// A finished answer.
pub(super) struct Answer {
    /// Ids, the end token included.
    pub(super) ids: Vec<u32>,
    /// What the model said.
    pub(super) text: String,
    /// What it thought before, where its template marks that.
    pub(super) reasoning: Option<String>,
    pub(super) reason: FinishReason,
    pub(super) usage: Usage,
}

/// A prompt as text, for what it begins of the answer, and as ids.
pub(super) struct AnswerPrompt {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
}

impl Runner {
    /// Generates the answer to a prompt, handing out what becomes readable. A break of `on_part` ends it.
    pub(super) fn answer(
        &self,
        prompt: &AnswerPrompt,
        mut on_part: impl FnMut(Part) -> ControlFlow<()>,
    ) -> anyhow::Result<Answer> {
        let mut reader = Reader::new(self, &prompt.text);
        let options = GenerateOptions { assistant_model: self.draft.as_ref(), ..GenerateOptions::default() };
        let (ids, config) = (prompt.ids.clone(), &self.config);
        let output =
            self.model.generate_streaming_with_options(ids, config, options, |event| match event {
                Streamed::Prompt { .. } => on_part(Part::Waiting),
                Streamed::Token(token) => reader.token(token.id, &mut on_part),
            })?;
        // Whether that breaks changes nothing any more.
        let _ = reader.finish(&mut on_part);
        let ids = output.new_tokens(0).to_vec();
        let Reader { text, reasoning, .. } = reader;
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        Ok(Answer { ids, text, reasoning, reason: output.finish_reasons[0], usage: output.usage[0] })
    }
}

/// Turns the ids of an answer into reasoning and text.
struct Reader<'a> {
    runner: &'a Runner,
    detokenizer: Detokenizer,
    parser: OutputParser,
    format: OutputFormat,
    /// Looks for `--stop` in what the model says.
    stops: StopMatcher,
    text: String,
    reasoning: String,
}

impl<'a> Reader<'a> {
    fn new(runner: &'a Runner, prompt: &str) -> Self {
        let mut detokenizer = runner.tokenizer.detokenizer(false);
        if runner.raw {
            detokenizer = detokenizer.continuing();
        }
        // No tools are given, so what looks like a call of one is text.
        let format = OutputFormat { reasoning: runner.reasoning, tool_calls: None };
        let parser = OutputParser::new(format.reasoning, format.tool_calls, prompt, &[]);
        let stops = StopMatcher::new(runner.config.stop_strings.clone().unwrap_or_default());
        Self { runner, detokenizer, parser, format, stops, text: String::new(), reasoning: String::new() }
    }

    fn token(&mut self, id: u32, on_part: &mut impl FnMut(Part) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.runner.model.end_tokens().contains(&id) {
            return on_part(Part::Waiting);
        }
        // Marks of reasoning must reach the parser, also where they are special tokens; other ones are left out.
        let tokenizer = self.runner.tokenizer.tokenizer();
        if tokenizer.is_control(id)
            && !tokenizer.id_to_token(id).is_some_and(|token| self.format.uses(&token))
        {
            return on_part(Part::Waiting);
        }
        let events = self.parser.feed(self.detokenizer.push(id));
        self.show(events, on_part)
    }

    fn finish(&mut self, on_part: &mut impl FnMut(Part) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut events = self.parser.feed(self.detokenizer.finish());
        events.extend(self.parser.finish());
        self.show(events, on_part)?;
        let rest = self.stops.finish();
        self.text.push_str(&rest);
        on_part(Part::Text(&rest))
    }

    fn show(
        &mut self,
        events: Vec<OutputEvent>,
        on_part: &mut impl FnMut(Part) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for event in &events {
            match event {
                OutputEvent::Reasoning(text) => {
                    self.reasoning.push_str(text);
                    on_part(Part::Reasoning(text))?;
                }
                OutputEvent::Content(text) => {
                    let text = self.stops.push(text);
                    self.text.push_str(&text);
                    on_part(Part::Text(&text))?;
                }
                OutputEvent::CallStart { .. }
                | OutputEvent::CallArguments { .. }
                | OutputEvent::CallEnd { .. } => {}
            }
        }
        on_part(Part::Waiting)
    }
}

impl Answer {
    /// Why it ended, in the words of OpenAI's API.
    pub(super) fn finish_reason(&self) -> &'static str {
        match self.reason {
            FinishReason::EndToken | FinishReason::StopString | FinishReason::Criterion => "stop",
            FinishReason::MaxNewTokens | FinishReason::Context | FinishReason::MaxTime => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// Speed, in one line.
    pub(super) fn speed(&self) -> String {
        let Usage { prompt_tokens, cached_tokens, new_tokens, .. } = self.usage;
        let cached = if cached_tokens > 0 { format!(" ({cached_tokens} cached)") } else { String::new() };
        let end = match self.reason {
            FinishReason::EndToken => "",
            FinishReason::MaxNewTokens => ", ended by --max-new-tokens",
            FinishReason::Context => ", ended because the context is full",
            FinishReason::Cancelled => ", stopped",
            FinishReason::StopString => ", ended by --stop",
            FinishReason::MaxTime => ", ended by --max-time",
            FinishReason::Criterion => ", ended by a criterion",
        };
        let drafts = match self.usage.acceptance() {
            Some(share) => format!(", {:.0} % of {} drafts right", 100.0 * share, self.usage.drafted_tokens),
            None => String::new(),
        };
        // The first token comes out of the prompt's step: one alone has no speed.
        let answer = match new_tokens {
            1 => "1 token".to_owned(),
            _ => format!("{new_tokens} tokens, {:.1} tok/s", self.usage.decode_per_second()),
        };
        format!(
            "[{answer}{drafts}; prompt {prompt_tokens} token{}{cached}, {:.1} tok/s{end}]",
            if prompt_tokens == 1 { "" } else { "s" },
            self.usage.prompt_per_second(),
        )
    }
}
