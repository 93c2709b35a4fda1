//! Unigram: `tokenizer.ggml.model` = `t5`.
//!
//! Of all ways to cut the text into pieces, the one with the highest sum of scores (log probabilities) is taken,
//! by dynamic programming from the left. Kudo, "Subword Regularization" (2018), and SentencePiece's
//! `unigram_model.cc`.

use std::borrow::Cow;

use gruff_gguf::{Array, Metadata};

use super::charsmap::{CHARSMAP, CharsMap};
use super::space::SpaceRules;
use super::trie::Trie;
use super::vocab::{TokenType, Vocab};
use super::words::{Seen, Words};
use super::{Model, push_unknown, space};
use crate::Error;

/// How much worse than the worst piece an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Unigram over a vocabulary with scores.
#[derive(Debug)]
pub(crate) struct Unigram {
    charsmap: CharsMap,
    spaces: SpaceRules,
    words: Words,
    pieces: Trie,
    unknown: Option<u32>,
    unknown_score: f64,
    /// The byte tokens, where the vocabulary has all 256.
    bytes: Option<[u32; 256]>,
}

/// The best way to cut the text up to some position: its score, and the last piece.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    start: usize,
    /// `None` for an unknown character.
    id: Option<u32>,
}

impl Unigram {
    pub(crate) fn new(
        metadata: &Metadata,
        vocab: &Vocab,
        spaces: SpaceRules,
        unknown: Option<u32>,
    ) -> Result<Self, Error> {
        let charsmap = match metadata.array(CHARSMAP)? {
            Some(array) => CharsMap::new(&bytes_of(array)?)?,
            None => CharsMap::default(),
        };
        let pieces = Trie::new(vocab.of_types(PIECES).filter_map(|id| Some((vocab.token(id)?, id))));
        let scores = vocab.of_types(&[TokenType::Normal]).map(|id| f64::from(vocab.score(id)));
        let worst = scores.fold(0.0, f64::min);
        let words = Words::new(vocab, unknown);
        let bytes = vocab.byte_tokens();
        let bytes = bytes.iter().all(Option::is_some).then(|| bytes.map(Option::unwrap_or_default));
        Ok(Unigram {
            charsmap,
            spaces,
            words,
            pieces,
            unknown,
            unknown_score: worst - UNKNOWN_PENALTY,
            bytes,
        })
    }

    /// The best cut up to each byte position that a piece or an unknown character ends at.
    fn best_cuts(&self, vocab: &Vocab, word: &str) -> Vec<Option<Best>> {
        let mut best = vec![None; word.len() + 1];
        best[0] = Some(Best { score: 0.0, start: 0, id: None });
        for (start, c) in word.char_indices() {
            // A piece that ended within this character would be no text.
            let Some(Best { score: here, .. }) = best[start] else { continue };
            let mut offer = |length: usize, score: f64, id: Option<u32>| {
                let rival = &mut best[start + length];
                // The first to reach a position keeps it against its equals.
                if rival.is_none_or(|rival: Best| here + score > rival.score) {
                    *rival = Some(Best { score: here + score, start, id });
                }
            };
            let mut single = false;
            for (length, id) in self.pieces.prefixes(&word.as_bytes()[start..]) {
                single |= length == c.len_utf8();
                let user_defined = vocab.token_type(id) == TokenType::UserDefined;
                offer(length, if user_defined { 0.0 } else { f64::from(vocab.score(id)) }, Some(id));
            }
            if !single {
                offer(c.len_utf8(), self.unknown_score, None);
            }
        }
        best
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) {
        let best = self.best_cuts(vocab, word);
        let mut pieces = Vec::new();
        let mut end = word.len();
        while end > 0 {
            let Some(last) = best[end] else { return };
            pieces.push((last.start, end, last.id));
            end = last.start;
        }
        for &(start, end, id) in pieces.iter().rev() {
            match (id, &self.bytes) {
                (Some(id), _) => out.push(id),
                (None, Some(bytes)) => {
                    out.extend(word.as_bytes()[start..end].iter().map(|&b| bytes[usize::from(b)]))
                }
                (None, None) => push_unknown(self.unknown, out),
            }
        }
    }
}

/// The types that text can become.
const PIECES: &[TokenType] = &[TokenType::Normal, TokenType::UserDefined];

/// The bytes of an array of int8 or uint8.
fn bytes_of(array: &Array) -> Result<Cow<'_, [u8]>, Error> {
    match array {
        Array::U8(bytes) => Ok(Cow::Borrowed(bytes)),
        Array::I8(bytes) => Ok(bytes.iter().map(|&byte| byte as u8).collect()),
        _ => Err(Error::vocabulary(
            CHARSMAP,
            format!("an array of {} is no map of characters", array.element_type()),
        )),
    }
}

impl Model for Unigram {
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>) {
        let text = self.spaces.normalize(&self.charsmap.apply(text));
        self.words.encode(&text, seen, out, |word, out| self.encode_word(vocab, word, out));
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        space::unescape(token, out);
    }

    fn begins_with_space(&self) -> bool {
        self.spaces.prefix
    }
}
