//! SentencePiece's BPE: `tokenizer.ggml.model` = `llama`.
//!
//! There is no list of merges. Two neighbours may merge when together they are a piece of the vocabulary; the
//! pair whose piece has the highest score goes first, the leftmost among equals. What remains and is no piece
//! becomes the byte tokens of its UTF-8. Kudo and Richardson, "SentencePiece" (2018), and its `bpe_model.cc`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::space::{self, SpaceRules};
use super::vocab::{TokenType, Vocab};
use super::words::{Seen, Words};
use super::{Model, push_unknown};

/// SentencePiece BPE over a vocabulary with scores.
#[derive(Debug)]
pub(crate) struct Spm {
    spaces: SpaceRules,
    words: Words,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

/// Beyond either end of the list of symbols.
const END: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    end: u32,
    previous: u32,
    next: u32,
    /// The piece that this symbol and the next make.
    merged: Option<u32>,
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, spaces: SpaceRules, unknown: Option<u32>) -> Self {
        let words = Words::new(vocab, unknown);
        Spm { spaces, words, bytes: vocab.byte_tokens(), unknown }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = word
            .char_indices()
            .enumerate()
            .map(|(at, (start, c))| Symbol {
                start: start as u32,
                end: (start + c.len_utf8()) as u32,
                previous: (at as u32).wrapping_sub(1),
                next: at as u32 + 1,
                merged: None,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = END;
        }
        let mut merges = Merges { vocab, word, queue: BinaryHeap::new(), unused: HashMap::new() };
        for at in 0..symbols.len() as u32 {
            merges.consider(&mut symbols, at);
        }
        while let Some((_, Reverse(at), id)) = merges.queue.pop() {
            let here = symbols[at as usize];
            if here.merged != Some(id) {
                continue;
            }
            let absorbed = symbols[here.next as usize];
            // What the queue still holds of the absorbed symbol is stale.
            symbols[here.next as usize].merged = None;
            symbols[at as usize].end = absorbed.end;
            symbols[at as usize].next = absorbed.next;
            if absorbed.next != END {
                symbols[absorbed.next as usize].previous = at;
            }
            merges.consider(&mut symbols, here.previous);
            merges.consider(&mut symbols, at);
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            self.push_symbol(&merges, (symbol.start, symbol.end), out);
            at = symbol.next;
        }
    }

    /// Pushes what a symbol became: its piece, or the pieces that an unused one was made of, or bytes.
    fn push_symbol(&self, merges: &Merges<'_>, symbol: (u32, u32), out: &mut Vec<u32>) {
        let mut left_to_do = vec![symbol];
        while let Some((start, end)) = left_to_do.pop() {
            let text = &merges.word[start as usize..end as usize];
            let piece = merges.piece(text);
            match piece {
                Some(id) if merges.vocab.token_type(id) != TokenType::Unused => out.push(id),
                Some(id) if merges.unused.contains_key(&id) => {
                    let middle = start + merges.unused[&id];
                    left_to_do.push((middle, end));
                    left_to_do.push((start, middle));
                }
                _ => self.push_bytes(text, out),
            }
        }
    }

    fn push_bytes(&self, text: &str, out: &mut Vec<u32>) {
        if text.bytes().all(|byte| self.bytes[usize::from(byte)].is_some()) {
            out.extend(text.bytes().filter_map(|byte| self.bytes[usize::from(byte)]));
        } else {
            push_unknown(self.unknown, out);
        }
    }
}

/// The types that text can become. Control tokens are not among them: text that looks like one stays text.
const MERGEABLE: &[TokenType] = &[TokenType::Normal, TokenType::UserDefined, TokenType::Unused];

struct Merges<'a> {
    vocab: &'a Vocab,
    word: &'a str,
    /// Highest score first, then leftmost; an entry is stale when the symbol no longer makes that piece.
    queue: BinaryHeap<(i32, Reverse<u32>, u32)>,
    /// How many bytes the left part had, by the unused piece it was part of.
    unused: HashMap<u32, u32>,
}

impl Merges<'_> {
    fn piece(&self, text: &str) -> Option<u32> {
        let id = self.vocab.id(text.as_bytes())?;
        MERGEABLE.contains(&self.vocab.token_type(id)).then_some(id)
    }

    /// Notes which piece the symbol at `at` and its right neighbour make, if any.
    fn consider(&mut self, symbols: &mut [Symbol], at: u32) {
        let Some(&here) = symbols.get(at as usize) else { return };
        symbols[at as usize].merged = None;
        let Some(next) = symbols.get(here.next as usize) else { return };
        let text = &self.word[here.start as usize..next.end as usize];
        if text.len() > self.vocab.longest() {
            return;
        }
        let Some(id) = self.piece(text) else { return };
        symbols[at as usize].merged = Some(id);
        self.queue.push((sortable(self.vocab.score(id)), Reverse(at), id));
        if self.vocab.token_type(id) == TokenType::Unused {
            self.unused.insert(id, here.end - here.start);
        }
    }
}

/// An integer in the order of the number, which is not NaN.
fn sortable(score: f32) -> i32 {
    // Adding zero makes the two zeros one.
    let bits = (score + 0.0).to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

impl Model for Spm {
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>) {
        let text = self.spaces.normalize(text);
        self.words.encode(&text, seen, out, |word, out| self.encode_word(vocab, word, out));
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        space::unescape(token, out);
    }

    fn begins_with_space(&self) -> bool {
        self.spaces.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_sort_as_numbers() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -1e-40, 0.0, 1e-40, 3.5, f32::INFINITY];
        for pair in scores.windows(2) {
            assert!(sortable(pair[0]) < sortable(pair[1]), "{pair:?}");
        }
        assert_eq!(sortable(-0.0), sortable(0.0));
    }
}
