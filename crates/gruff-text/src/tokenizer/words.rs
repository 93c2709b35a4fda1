//! Doing an escaped text word by word, and equal words once.
//!
//! A word is cut off before a U+2581, the spaces before it included. What goes before merging is the same either
//! way as long as no token reaches over the cut, which is so for nearly every vocabulary with nearly every
//! character (Gemma's has one token that does, `>▁</`).

use hashbrown::HashMap;

use super::space::ESCAPED;
use super::vocab::Vocab;

/// Words longer than this are not remembered: they hardly ever come again.
const REMEMBERED_BYTES: usize = 48;
/// Words remembered within one text.
const REMEMBERED_WORDS: usize = 1 << 16;

/// Where in the output of one text the tokens of a word already are.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashMap<Box<str>, (usize, usize)>);

impl Seen {
    /// Appends the tokens of a word that was seen before; `false` when it was not.
    pub(crate) fn repeat(&self, word: &str, out: &mut Vec<u32>) -> bool {
        let Some(&(from, to)) = self.0.get(word) else { return false };
        out.extend_from_within(from..to);
        true
    }

    /// Notes that the tokens of `word` are those from `from` on.
    pub(crate) fn note(&mut self, word: &str, from: usize, out: &[u32]) {
        if word.len() <= REMEMBERED_BYTES && self.0.len() < REMEMBERED_WORDS {
            self.0.insert(word.into(), (from, out.len()));
        }
    }
}

const SPACE: char = '▁';

/// Where a text may be cut into words.
#[derive(Debug)]
pub(crate) struct Words {
    /// Characters that stand before a space within some token, ascending: no cut after these.
    joined: Vec<char>,
    /// Runs of this token become one, so what a word gives can depend on the one before it.
    unknown: Option<u32>,
}

impl Words {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Self {
        let mut joined = Vec::new();
        for id in 0..vocab.len() as u32 {
            // A token that is no text is never met in one.
            let token = std::str::from_utf8(vocab.token(id).unwrap_or_default()).unwrap_or_default();
            for (space, _) in token.match_indices(ESCAPED) {
                joined.extend(token[..space].chars().next_back().filter(|&c| c != SPACE));
            }
        }
        joined.sort_unstable();
        joined.dedup();
        Words { joined, unknown }
    }

    /// The words of an escaped text.
    pub(crate) fn split<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let cut = rest.match_indices(ESCAPED).map(|(space, _)| space).find(|&space| {
                let before = rest[..space].chars().next_back();
                before.is_some_and(|c| c != SPACE && self.joined.binary_search(&c).is_err())
            });
            let (word, tail) = rest.split_at(cut.unwrap_or(rest.len()));
            rest = tail;
            (!word.is_empty()).then_some(word)
        })
    }

    /// Appends the tokens of `text`, as `encode` gives them for a word.
    pub(crate) fn encode(
        &self,
        text: &str,
        seen: &mut Seen,
        out: &mut Vec<u32>,
        mut encode: impl FnMut(&str, &mut Vec<u32>),
    ) {
        for word in self.split(text) {
            if seen.repeat(word, out) {
                continue;
            }
            let from = out.len();
            encode(word, out);
            if out.get(from).is_some_and(|&first| Some(first) != self.unknown) {
                seen.note(word, from, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_everything_and_tokens_whole() {
        let tokens = ["▁▁", "▁a", ">▁</", "b"].iter().collect();
        let words = Words::new(&Vocab::new(tokens, None, None).unwrap(), None);
        let split = |text| words.split(text).collect::<Vec<_>>();
        assert_eq!(split("a▁▁b▁c▁"), ["a", "▁▁b", "▁c", "▁"]);
        assert_eq!(split("▁b>▁</b>▁▁c"), ["▁b>▁</b>▁▁c"]);
        assert_eq!(split("▁▁"), ["▁▁"]);
        assert_eq!(split(""), [""; 0]);
    }
}
