//! Texts that end an answer, wherever the tokens' borders are.

use gruff_engine::logits::TokenContext;
use gruff_engine::stopping::StoppingCriteria;
use gruff_engine::{FinishReason, Result};
use gruff_text::{Detokenizer, Tokenizer};

/// Looks for stop strings in a text that comes in pieces, and holds back what may be the beginning of one.
///
/// ```
/// use gruff::StopMatcher;
///
/// let mut matcher = StopMatcher::new(vec!["END".to_owned()]);
/// assert_eq!(matcher.push("The E"), "The ");
/// assert_eq!(matcher.push("vening E"), "Evening ");
/// assert_eq!(matcher.push("ND, they say"), "");
/// assert_eq!(matcher.found(), Some("END"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    found: Option<usize>,
}

impl StopMatcher {
    /// For these strings; with none, every text goes through at once.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Self::default() }
    }

    /// Takes a piece of text in and gives out what stands before any stop string; nothing once one was found.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| self.held.find(stop.as_str()).map(|at| (at, index)))
            .min();
        if let Some((at, index)) = first {
            self.found = Some(index);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let safe = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(safe);
        std::mem::replace(&mut self.held, rest)
    }

    /// The rest, when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.and_then(|index| self.stops.get(index)).map(String::as_str)
    }

    /// Bytes at the end that begin a stop string.
    fn longest_beginning(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        (1..=longest.min(self.held.len()))
            .rev()
            .filter(|len| self.held.is_char_boundary(self.held.len() - len))
            .find(|len| {
                let end = &self.held[self.held.len() - len..];
                self.stops.iter().any(|stop| stop.len() > *len && stop.starts_with(end))
            })
            .unwrap_or(0)
    }
}

/// Ends an answer whose text, special tokens included, contains a stop string.
#[derive(Clone)]
pub(crate) struct StopStrings {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
}

impl StopStrings {
    pub(crate) fn new(tokenizer: &Tokenizer, stops: Vec<String>) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, false).continuing(),
            matcher: StopMatcher::new(stops),
        }
    }
}

impl StoppingCriteria for StopStrings {
    fn name(&self) -> &str {
        "stop_strings"
    }

    fn check(&mut self, context: &TokenContext<'_>) -> Result<Option<FinishReason>> {
        if let Some(id) = context.tokens.last() {
            self.matcher.push(self.detokenizer.push(*id));
        }
        Ok(self.matcher.found().map(|_| FinishReason::StopString))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_of_a_text_gives_the_same() {
        let text = "ab<|en <|end|x> ü<|end|> rest";
        let stops = || vec!["<|end|>".to_owned(), "never".to_owned(), "rest".to_owned()];
        for size in 1..text.len() {
            let mut matcher = StopMatcher::new(stops());
            let mut out = String::new();
            let mut at = 0;
            while at < text.len() {
                let mut end = (at + size).min(text.len());
                while !text.is_char_boundary(end) {
                    end += 1;
                }
                out += &matcher.push(&text[at..end]);
                at = end;
            }
            out += &matcher.finish();
            assert_eq!((out.as_str(), matcher.found()), ("ab<|en <|end|x> ü", Some("<|end|>")), "{size}");
        }
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        for (stops, text, expected, found) in [
            (&["END", "ne"][..], "one END", "o", "ne"),
            (&["aab"], "aaab", "a", "aab"),
            (&["é!"], "café!", "caf", "é!"),
        ] {
            let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
            let mut out: String = text.chars().map(|part| matcher.push(&part.to_string())).collect();
            out += &matcher.finish();
            assert_eq!((out.as_str(), matcher.found()), (expected, Some(found)));
        }
    }

    #[test]
    fn what_begins_no_stop_string_comes_out_at_the_end() {
        let mut matcher = StopMatcher::new(vec!["###".to_owned()]);
        assert_eq!(matcher.push("a ##"), "a ");
        assert_eq!(matcher.finish(), "##");
        assert_eq!(matcher.found(), None);
        let mut none = StopMatcher::new(Vec::new());
        assert_eq!(none.push("all"), "all");
    }
}
