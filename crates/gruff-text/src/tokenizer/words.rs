//! Doing an escaped text word by word, and equal words once.

use hashbrown::HashMap;

use super::space;
use super::vocab::{TokenType, Vocab};

/// Words longer than this are not remembered: they hardly ever come again.
pub(crate) const REMEMBERED_BYTES: usize = 48;
/// Words remembered within one text.
pub(crate) const REMEMBERED_WORDS: usize = 1 << 16;

/// Whether and how a text may be done word by word.
#[derive(Debug)]
pub(crate) struct Words {
    /// Whether no piece reaches from one word into the next.
    apart: bool,
    /// Runs of this token become one, so what a word gives can depend on the one before it.
    unknown: Option<u32>,
}

impl Words {
    /// `pieces`: the types of the tokens that text can become.
    pub(crate) fn new(vocab: &Vocab, pieces: &[TokenType], unknown: Option<u32>) -> Self {
        let apart = vocab.of_types(pieces).all(|id| {
            std::str::from_utf8(vocab.token(id).unwrap_or_default())
                .is_ok_and(|token| !space::reaches_over(token))
        });
        Words { apart, unknown }
    }

    /// Appends the tokens of `text` as `encode` gives them for a word, or for all of it.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>, mut encode: impl FnMut(&str, &mut Vec<u32>)) {
        if !self.apart {
            return encode(text, out);
        }
        // Where in `out` the tokens of a word already are.
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        for word in space::words(text) {
            if let Some(&(from, to)) = seen.get(word) {
                out.extend_from_within(from..to);
                continue;
            }
            let from = out.len();
            encode(word, out);
            let depends = out.get(from).is_none_or(|&first| Some(first) == self.unknown);
            if !depends && word.len() <= REMEMBERED_BYTES && seen.len() < REMEMBERED_WORDS {
                seen.insert(word, (from, out.len()));
            }
        }
    }
}
