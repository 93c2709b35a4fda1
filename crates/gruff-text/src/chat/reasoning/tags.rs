//! Reasoning between two tags, before the answer.

use super::{Piece, push};
use crate::chat::stream::{Found, find, take};

/// The state of the parser.
#[derive(Debug, Clone)]
pub(super) struct Tags {
    start: &'static str,
    end: &'static str,
    state: State,
    /// Text that may yet turn out to be a tag or white space beside one.
    pending: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing said yet: reasoning begins if the start tag comes.
    Begin,
    /// The start tag has come; white space after it is skipped. The prompt having had it, it may
    /// come a second time.
    Opened {
        again: bool,
    },
    Reasoning,
    /// The end tag has come; white space after it is skipped.
    Closed,
    Content,
}

impl Tags {
    pub(super) fn new(start: &'static str, end: &'static str, opened: bool) -> Tags {
        let state = if opened { State::Opened { again: true } } else { State::Begin };
        Tags { start, end, state, pending: String::new() }
    }

    pub(super) fn feed(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.pending.push_str(text);
        while self.step(out) {}
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Opened { .. } | State::Reasoning)
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        let reasoning = self.is_open();
        let pending = std::mem::take(&mut self.pending);
        push(out, reasoning, pending);
    }

    /// Goes on as far as is certain; false when more text is needed.
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Begin => self.look_for_start(State::Content),
            State::Opened { again: true } => self.look_for_start(State::Opened { again: false }),
            State::Opened { again: false } => self.skip_space(State::Reasoning),
            State::Reasoning => self.reasoning(out),
            State::Closed => self.skip_space(State::Content),
            State::Content => {
                push(out, false, std::mem::take(&mut self.pending));
                false
            }
        }
    }

    /// At a start tag, white space before it is skipped with it; without one, all is kept.
    fn look_for_start(&mut self, otherwise: State) -> bool {
        let trimmed = self.pending.trim_start();
        if let Some(rest) = trimmed.strip_prefix(self.start) {
            self.pending = rest.to_owned();
            self.state = State::Opened { again: false };
            return true;
        }
        // Where nothing was opened, closing it says that there is no reasoning.
        if self.state == State::Begin
            && let Some(rest) = trimmed.strip_prefix(self.end)
        {
            self.pending = rest.to_owned();
            self.state = State::Closed;
            return true;
        }
        let ends = self.state == State::Begin && self.end.starts_with(trimmed);
        if ends || self.start.starts_with(trimmed) {
            return false;
        }
        self.state = otherwise;
        true
    }

    fn skip_space(&mut self, next: State) -> bool {
        let trimmed = self.pending.trim_start();
        if trimmed.is_empty() {
            self.pending.clear();
            return false;
        }
        self.pending = trimmed.to_owned();
        self.state = next;
        true
    }

    fn reasoning(&mut self, out: &mut Vec<Piece>) -> bool {
        let (certain, closed) = match find(&self.pending, &[self.end]) {
            Found::Whole(at, _) => (at, true),
            Found::Partial(at) => (at, false),
            Found::No => (self.pending.len(), false),
        };
        // White space before the end tag is skipped, so it waits for what follows it.
        let kept = self.pending.get(..certain).unwrap_or_default().trim_end().len();
        push(out, true, take(&mut self.pending, kept));
        if closed {
            take(&mut self.pending, certain - kept + self.end.len());
            self.state = State::Closed;
        }
        closed
    }
}
