//! Grammars compiled for one vocabulary, and the processor that masks tokens.

use std::sync::Arc;

use gruff_engine::logits::{LogitsProcessor, TokenContext};
use gruff_engine::{Error as EngineError, FinishReason};
use gruff_text::chat::guided;
use gruff_text::{TokenType, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::json;

use super::{Constraint, gbnf, limits};
use crate::{Error, Result};

/// A vocabulary, ready for grammars.
pub(crate) struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// Of a tokenizer and the tokens that end answers.
    pub(crate) fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<Self> {
        let fail = |error| Error::Option(format!("constraint: the vocabulary cannot be used: {error}"));
        let size = tokenizer.vocab_size() as u32;
        let ends: Vec<u32> = end_tokens.iter().copied().filter(|id| *id < size).collect();
        let Some(first) = ends.first() else {
            return Err(Error::Option(
                "constraint: the model has no end token, so no answer could be complete; give eos_token_id"
                    .to_owned(),
            ));
        };
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, *first), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(fail)?;
        factory.quiet();
        // Nothing bounds the work of doing it for the whole vocabulary ahead of the first token; that of a token is.
        factory.limits_mut().precompute_large_lexemes = false;
        factory.limits_mut().initial_lexer_fuel = limits::LEXER_FUEL;
        Ok(Self { factory })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// [`Error::GrammarSize`] for one that is too large, [`Error::Option`] for a grammar that is not one or asks for what
    /// cannot be honoured.
    pub(crate) fn compile(&self, constraint: &Constraint) -> Result<Compiled> {
        let fail = |error: String| Error::Option(format!("constraint: {}", short(&error)));
        let too_large = |error: String| Error::GrammarSize(short(&error));
        let stack = limits::stack(constraint).map_err(too_large)?;
        let compile = || {
            let compiled = self.compile_here(constraint);
            compiled
                .map_err(|error| if limits::speaks_of_size(&error) { too_large(error) } else { fail(error) })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(stack);
            match thread.spawn_scoped(scope, compile).map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(compiled)) => compiled,
                Ok(Err(_)) => Err(fail("it breaks the grammar compiler".to_owned())),
                Err(error) => Err(fail(format!("there is no thread to compile it: {error}"))),
            }
        })
    }

    /// Compiles a grammar on this thread, whose stack has room for it.
    fn compile_here(&self, constraint: &Constraint) -> Result<Compiled, String> {
        let grammar = match constraint {
            Constraint::JsonObject => TopLevelGrammar::from_json_schema(guided(json!({"type": "object"}))),
            Constraint::JsonSchema(schema) => TopLevelGrammar::from_json_schema(guided(schema.clone())),
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Constraint::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            Constraint::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
        };
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(error);
        }
        // What it would only do in part is not done at all.
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(warning.clone());
        }
        // What begins with nothing at all, or with too much to look at, is known before the prompt is computed.
        if !matcher.is_stopped() {
            matcher.compute_mask().map_err(|error| match error.to_string() {
                empty if empty.starts_with("NoExtensionBias") => "no token begins a text of it".to_owned(),
                other => other,
            })?;
        }
        Ok(Compiled { matcher, consumed: 0 })
    }
}

/// A message without the parser's state and without the whole of the grammar that it is about.
fn short(error: &str) -> String {
    const MOST: usize = 600;
    let error = error.split("<state>").next().unwrap_or(error).trim_end();
    match error.char_indices().nth(MOST) {
        Some((at, _)) => format!("{} …", &error[..at]),
        None => error.to_owned(),
    }
}

/// The bytes of a token; those that are structure rather than text are marked, so that no text matches them.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = tokenizer.token_to_bytes(id);
    let structure = tokenizer.is_control(id) || tokenizer.token_type(id) == TokenType::Unused;
    if structure && !bytes.is_empty() {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    }
    bytes
}

/// A grammar and how far an answer has come in it.
pub(crate) struct Compiled {
    matcher: Matcher,
    /// Tokens of the answer that the matcher has seen.
    consumed: usize,
}

impl Clone for Compiled {
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), consumed: self.consumed }
    }
}

fn custom(error: impl std::fmt::Display) -> EngineError {
    EngineError::Custom(format!("constraint: {}", short(&error.to_string())))
}

impl Compiled {
    fn follow(&mut self, context: &TokenContext<'_>) -> Result<(), EngineError> {
        for id in &context.new_tokens()[self.consumed..] {
            if !context.end_tokens.contains(id) {
                self.matcher.consume_token(*id).map_err(custom)?;
            }
            self.consumed += 1;
        }
        Ok(())
    }

    /// Whether the answer so far is a text of the grammar.
    fn is_complete(&mut self) -> Result<bool, EngineError> {
        if self.matcher.is_stopped() {
            return if self.matcher.stop_reason().is_ok() {
                Ok(true)
            } else {
                let error =
                    self.matcher.get_error().unwrap_or_else(|| self.matcher.stop_reason().to_string());
                Err(custom(error))
            };
        }
        self.matcher.is_accepting().map_err(custom)
    }
}

impl LogitsProcessor for Compiled {
    fn name(&self) -> &str {
        "constraint"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<(), EngineError> {
        self.follow(context)?;
        let ends: Vec<f32> = context
            .end_tokens
            .iter()
            .map(|id| logits.get(*id as usize).copied())
            .map(|x| x.unwrap_or(f32::NEG_INFINITY))
            .collect();
        let complete = self.is_complete()?;
        if self.matcher.is_stopped() {
            logits.fill(f32::NEG_INFINITY);
        } else {
            let mask = self.matcher.compute_mask().map_err(custom)?;
            for (id, logit) in logits.iter_mut().enumerate() {
                if id >= mask.len() || !mask.get(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        // The answer may end exactly where the grammar may.
        for (id, end) in context.end_tokens.iter().zip(ends) {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = if complete { end } else { f32::NEG_INFINITY };
            }
        }
        Ok(())
    }

    fn finish(&mut self, context: &TokenContext<'_>, reason: FinishReason) -> Result<(), EngineError> {
        self.follow(context)?;
        if self.is_complete()? {
            return Ok(());
        }
        let why = match reason {
            FinishReason::MaxNewTokens => "max_new_tokens was reached",
            FinishReason::Context => "the context is full",
            FinishReason::MaxTime => "max_time was over",
            FinishReason::StopString => "a stop string came",
            _ => "it ended",
        };
        Err(custom(format!("{why} before the answer was a whole text of the grammar")))
    }
}
