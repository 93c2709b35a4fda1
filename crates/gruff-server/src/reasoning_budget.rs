//! Reasoning that may take so many tokens: then what ends it is forced.

use gruff::floors::engine::Error;
use gruff::floors::engine::logits::{LogitsProcessor, TokenContext};
use gruff::floors::text::chat::ReasoningFormat;
use gruff::floors::text::{EncodeOptions, Tokenizer};

/// Counts the tokens of an answer's reasoning.
#[derive(Clone)]
pub(crate) struct ReasoningBudget {
    tokenizer: Tokenizer,
    start: &'static str,
    end: &'static str,
    /// The tokens that end the reasoning and begin the answer.
    forced: Vec<u32>,
    budget: usize,
    state: State,
    /// Tokens of the answer that have been looked at.
    seen: usize,
    /// The end of the answer's bytes so far: enough to find a mark in.
    tail: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Reasoning has not begun; it does if the answer begins with its mark.
    Before,
    /// So many tokens of it have come.
    Reasoning(usize),
    /// So many tokens of its end have been forced.
    Ending(usize),
    Over,
}

impl ReasoningBudget {
    /// For an answer to `prompt`, which may have begun the reasoning; `None` where there is none to bound.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        format: ReasoningFormat,
        prompt: &str,
        budget: usize,
    ) -> Option<Self> {
        let (start, end, forced) = match format {
            ReasoningFormat::Tags { start, end } => (start, end, format!("\n{end}\n\n")),
            ReasoningFormat::Channels => {
                ("<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant".to_owned())
            }
            _ => return None,
        };
        let state = match format.is_opened_by(prompt) {
            true => State::Reasoning(0),
            false if prompt.trim_end().ends_with(end) && format != ReasoningFormat::Channels => return None,
            false => State::Before,
        };
        let as_written = EncodeOptions { add_special: false, parse_special: true };
        let forced = tokenizer.encode(&forced, as_written).ok().filter(|forced| !forced.is_empty())?;
        Some(Self {
            tokenizer: tokenizer.clone(),
            start,
            end,
            forced,
            budget,
            state,
            seen: 0,
            tail: Vec::new(),
        })
    }

    /// Takes a token of the answer in.
    fn look(&mut self, id: u32) {
        self.tail.extend(self.tokenizer.token_to_bytes(id));
        let found =
            |tail: &[u8], mark: &str| tail.windows(mark.len()).any(|window| window == mark.as_bytes());
        self.state = match self.state {
            State::Before if found(&self.tail, self.start) => {
                self.tail.clear();
                State::Reasoning(0)
            }
            State::Before => {
                // White space may stand before the mark, and a part of the mark is not yet something else.
                let begun = String::from_utf8_lossy(&self.tail);
                let begun = begun.trim_start();
                if self.start.starts_with(begun) { State::Before } else { State::Over }
            }
            State::Reasoning(_) if found(&self.tail, self.end) => State::Over,
            State::Reasoning(count) => State::Reasoning(count + 1),
            State::Ending(count) if count >= self.forced.len() => State::Over,
            state => state,
        };
        let kept = self.end.len().max(self.start.len()) + 8;
        if self.state != State::Before && self.tail.len() > 2 * kept {
            self.tail.drain(..self.tail.len() - kept);
        }
    }

    /// Whether the bytes so far end with a whole character.
    fn is_whole(&self) -> bool {
        // What begins a character says how many bytes it has, four at most.
        let begins = self.tail.iter().rev().take(4).position(|byte| byte & 0xC0 != 0x80);
        let Some((place, first)) = begins.and_then(|place| Some((place, self.tail.iter().nth_back(place)?)))
        else {
            return true;
        };
        let bytes = match first {
            0xF0.. => 4,
            0xE0.. => 3,
            0xC0.. => 2,
            _ => 1,
        };
        place + 1 >= bytes
    }
}

impl LogitsProcessor for ReasoningBudget {
    fn name(&self) -> &str {
        "reasoning budget"
    }

    fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<(), Error> {
        for id in context.new_tokens().get(self.seen..).unwrap_or_default() {
            self.look(*id);
            self.seen += 1;
        }
        if matches!(self.state, State::Reasoning(count) if count >= self.budget) && self.is_whole() {
            self.state = State::Ending(0);
        }
        let State::Ending(count) = &mut self.state else { return Ok(()) };
        if let Some(id) = self.forced.get(*count) {
            *count += 1;
            logits.fill(f32::NEG_INFINITY);
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = 0.0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: ReasoningFormat = ReasoningFormat::Tags { start: "<think>", end: "</think>" };

    /// What comes of a model that would say `text`, from the bundled vocabulary.
    fn said(prompt: &str, text: &str, budget: usize) -> String {
        let tokenizer = gruff::AutoTokenizer::from_pretrained(gruff::BUNDLED).load().unwrap();
        let tokenizer = tokenizer.tokenizer();
        let plain = EncodeOptions { add_special: false, parse_special: true };
        let mut wanted = tokenizer.encode(text, plain).unwrap().into_iter();
        let mut budget = ReasoningBudget::new(tokenizer, THINK, prompt, budget).unwrap();
        let mut tokens = vec![0];
        loop {
            let mut logits = vec![0.0_f32; tokenizer.vocab_size()];
            let next = tokens.clone();
            let context =
                TokenContext { tokens: &next, prompt_len: 1, end_tokens: &[], max_length: 1000, seed: 0 };
            budget.process(&context, &mut logits).unwrap();
            let forced =
                logits.iter().position(|logit| *logit == 0.0).filter(|_| logits.contains(&f32::NEG_INFINITY));
            match forced.map(|id| id as u32).or_else(|| wanted.next()) {
                Some(id) => tokens.push(id),
                None => return tokenizer.decode(&tokens[1..], false),
            }
        }
    }

    #[test]
    fn reasoning_ends_where_its_budget_does() {
        let thought = "One, two, three, four, five, six and seven.</think>\n\nDone.";
        assert_eq!(said("<think>\n", thought, 1000), thought);
        assert!(said("<think>\n", thought, 0).starts_with("\n</think>\n\nOne, two"));
        let cut = said("<think>\n", thought, 4);
        let (before, _) = cut.split_once("\n</think>\n\n").unwrap();
        assert!(thought.starts_with(before) && !before.is_empty() && before.len() < 30, "{cut}");
        // Reasoning that the model begins itself, and answers without any.
        let own = said("", "\n<think>Let me see, and see again.", 3);
        assert!(own.starts_with("\n<think>") && own.contains("\n</think>\n\n"), "{own}");
        assert_eq!(said("", "No thinking <think> here.", 0), "No thinking <think> here.");
        assert!(
            ReasoningBudget::new(
                gruff::AutoTokenizer::from_pretrained(gruff::BUNDLED).load().unwrap().tokenizer(),
                THINK,
                "<think>\n\n</think>\n\n",
                3
            )
            .is_none()
        );
    }

    #[test]
    fn no_character_is_cut() {
        let text = "\u{1f600}\u{1f601}\u{1f602}\u{1f603}\u{1f604} \u{4e2d}\u{6587}\u{4e2d}";
        for budget in 0..24 {
            let found = said("<think>", text, budget);
            assert!(!found.contains('\u{fffd}'), "{budget}: {found}");
        }
    }
}
