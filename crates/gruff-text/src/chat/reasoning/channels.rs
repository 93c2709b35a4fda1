//! gpt-oss' messages in channels: `<|channel|>NAME<|message|>TEXT<|end|>`, one after the other.
//! `analysis` is reasoning, and so is a message to the model itself (`to=self`). A message to a function
//! (`to=functions.NAME`) is passed on as it stands, for the tool-call parser. A prompt that ends with
//! `<|start|>assistant` leaves the rest of a header to the model.

use super::{Piece, push};
use crate::chat::stream::{Found, find, take};

const MESSAGE: &str = "<|message|>";
const STARTS: [&str; 5] = ["<|start|>", "<|channel|>", "<|constrain|>", MESSAGE, " to="];
const ENDS: [&str; 7] =
    ["<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>", "<|start|>", "<|channel|>"];

/// Whether a special token frames messages.
pub(super) fn uses(token: &str) -> bool {
    STARTS.contains(&token) || ENDS.contains(&token)
}

/// No header is longer; what is, is text.
const MAX_HEADER: usize = 400;

/// The state of the parser.
#[derive(Debug, Clone)]
pub(super) struct Channels {
    state: State,
    pending: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Header,
    Reasoning,
    Content,
    /// A message to a tool, passed on with its tags.
    Tool,
}

impl Channels {
    pub(super) fn new(opened: bool) -> Channels {
        let state = if opened { State::Reasoning } else { State::Header };
        Channels { state, pending: String::new() }
    }

    pub(super) fn feed(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.pending.push_str(text);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        let pending = std::mem::take(&mut self.pending);
        push(out, self.state == State::Reasoning, pending);
    }

    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        if self.state == State::Header { self.header(out) } else { self.body(out) }
    }

    fn header(&mut self, out: &mut Vec<Piece>) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let begins = STARTS.iter().any(|tag| self.pending.starts_with(tag));
        let may_begin = STARTS.iter().any(|tag| tag.starts_with(self.pending.as_str()));
        if !begins && may_begin {
            return false;
        }
        let end = self.pending.find(MESSAGE).filter(|at| *at <= MAX_HEADER);
        let Some(end) = end.filter(|_| begins) else {
            if begins && self.pending.len() <= MAX_HEADER + MESSAGE.len() {
                return false;
            }
            self.state = State::Content;
            // The first character cannot begin a header: it goes through whatever follows.
            let width = self.pending.chars().next().map_or(0, char::len_utf8);
            push(out, false, take(&mut self.pending, width));
            return true;
        };
        let header = take(&mut self.pending, end + MESSAGE.len());
        let channel = header.split_once("<|channel|>").map_or("", |(_, name)| name);
        self.state = if header.contains(" to=functions.") {
            push(out, false, header);
            State::Tool
        } else if channel.starts_with("analysis") || header.contains(" to=self") {
            State::Reasoning
        } else {
            State::Content
        };
        true
    }

    fn body(&mut self, out: &mut Vec<Piece>) -> bool {
        let reasoning = self.state == State::Reasoning;
        match find(&self.pending, &ENDS) {
            Found::Whole(at, tag) => {
                push(out, reasoning, take(&mut self.pending, at));
                if !STARTS.contains(&tag) {
                    let tag = take(&mut self.pending, tag.len());
                    if self.state == State::Tool {
                        push(out, false, tag);
                    }
                }
                self.state = State::Header;
                true
            }
            Found::Partial(at) => {
                push(out, reasoning, take(&mut self.pending, at));
                false
            }
            Found::No => {
                push(out, reasoning, std::mem::take(&mut self.pending));
                false
            }
        }
    }
}
