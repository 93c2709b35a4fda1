//! PLaMo 2's tokenizer: `tokenizer.ggml.model` = `plamo2`.
//!
//! A Unigram by dynamic programming from the right, with scores in whole ten-thousandths, in which the longer
//! piece wins among equals; a character that is no piece becomes the byte tokens of its UTF-8.

use super::Model;
use super::trie::Trie;
use super::vocab::{TOKENS, TokenType, Vocab};
use super::words::Seen;
use crate::Error;

/// Scores are compared in this many parts of one.
const SCORE_PARTS: f64 = 1e4;
/// Pieces at or below this score, in parts, are never used.
const INVALID_SCORE: i64 = -20_000_000;
/// The score of a character that is no piece, in parts.
const UNKNOWN_SCORE: i64 = -10_000_000;
const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// PLaMo 2's pieces.
#[derive(Debug)]
pub(crate) struct Plamo2 {
    pieces: Trie,
    bytes: [u32; 256],
}

/// The best way to cut the text from some position on.
#[derive(Clone, Copy)]
struct Best {
    cost: i64,
    length: usize,
    /// `None` for a character that is no piece.
    id: Option<u32>,
}

impl Plamo2 {
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, Error> {
        let bytes = vocab.byte_tokens();
        if let Some(byte) = bytes.iter().position(Option::is_none) {
            return Err(Error::vocabulary(TOKENS, format!("the byte token <0x{byte:02X}> is missing")));
        }
        let types = [TokenType::Normal, TokenType::UserDefined, TokenType::Unused];
        let usable = vocab.of_types(&types).filter(|&id| score(vocab, id) > INVALID_SCORE);
        let pieces = Trie::new(usable.filter_map(|id| Some((vocab.token(id)?, id))));
        Ok(Plamo2 { pieces, bytes: bytes.map(Option::unwrap_or_default) })
    }
}

fn score(vocab: &Vocab, id: u32) -> i64 {
    // Scores that no 32-bit integer holds are cut off; sums then stay far from overflow.
    i64::from((f64::from(vocab.score(id)) * SCORE_PARTS).round() as i32)
}

impl Model for Plamo2 {
    fn encode(&self, vocab: &Vocab, text: &str, _seen: &mut Seen, out: &mut Vec<u32>) {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut best = vec![Best { cost: 0, length: 0, id: None }; text.len() + 1];
        for (start, c) in text.char_indices().rev() {
            let after = c.len_utf8();
            let mut here = Best { cost: best[start + after].cost - UNKNOWN_SCORE, length: after, id: None };
            for (length, id) in self.pieces.prefixes(&text.as_bytes()[start..]) {
                let cost = best[start + length].cost - score(vocab, id);
                // Longer pieces come later and win among equals; any piece wins against none.
                if text.is_char_boundary(start + length) && cost <= here.cost {
                    here = Best { cost, length, id: Some(id) };
                }
            }
            best[start] = here;
        }
        let mut start = 0;
        while start < text.len() {
            let Best { length, id, .. } = best[start];
            match id {
                Some(id) => out.push(id),
                None => out.extend(
                    text.as_bytes()[start..start + length].iter().map(|&b| self.bytes[usize::from(b)]),
                ),
            }
            start += length;
        }
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(token);
    }
}
