//! Byte-pair encoding by rank: `tokenizer.ggml.model` = `gpt2`, `gemma4`, and their relatives.
//!
//! A piece starts as its single bytes (byte-level BPE) or characters (Gemma 4's kind); then the pair of
//! neighbours whose merge has the lowest rank becomes one token, the leftmost first among equals, until no
//! pair has a merge. Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gruff_gguf::Strings;
use hashbrown::HashMap;

use super::pre::Pre;
use super::split::Splitter;
use super::vocab::Vocab;
use super::words::{Seen, Words};
use super::{Model, PRE, byte_level, space};
use crate::Error;

pub(crate) const MERGES: &str = "tokenizer.ggml.merges";

/// Stands for a character that is no token. No merge contains it.
const NO_TOKEN: u32 = u32::MAX;
/// No merge for this pair of neighbours.
const NO_RANK: u32 = u32::MAX;

/// Pieces up to this many symbols are merged by scanning for the best pair, which beats a heap while the
/// symbols fit in a few cache lines. Words are rarely longer; runs of letters or of CJK text are.
const SCAN_LIMIT: usize = 48;

/// What the symbols are before any merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Bytes, written in the [`byte_level`] alphabet.
    Bytes,
    /// Characters; those that are no token become the byte tokens of their UTF-8.
    Characters,
}

/// A vocabulary's merges, and what else turns pieces into tokens.
#[derive(Debug)]
pub(crate) struct Bpe {
    splitter: Splitter,
    alphabet: Alphabet,
    /// Where pieces fall into words, if spaces are written as U+2581.
    words: Option<Words>,
    /// Whether a piece that is a token as it stands needs no merges.
    ignore_merges: bool,
    /// Whether a piece of nothing but line feeds is looked up first, merges or not (Gemma 4).
    whole_line_feeds: bool,
    /// Tokens of single bytes: of the byte-level alphabet, or `<0x..>`.
    bytes: [Option<u32>; 256],
    /// Rank by pair, keyed by [`pair`].
    ranks: HashMap<u64, u32>,
    /// The token that the merge of a rank makes.
    products: Vec<u32>,
}

fn pair(left: u32, right: u32) -> u64 {
    (u64::from(left) << 32) | u64::from(right)
}

/// Room for encoding a piece.
#[derive(Default)]
struct Work {
    symbols: Vec<Symbol>,
    scratch: String,
}

/// Where a token starts in the piece, which token it is, and the rank of its merge with the next.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    start: u32,
    rank: u32,
}

/// A [`Symbol`] in a doubly linked list, for long pieces.
#[derive(Clone, Copy)]
struct Linked {
    symbol: Symbol,
    previous: u32,
    next: u32,
}

/// Beyond either end of the list.
const END: u32 = u32::MAX;

impl Bpe {
    pub(crate) fn new(vocab: &Vocab, merges: &Strings, pre: &Pre) -> Result<Self, Error> {
        let splitter = Splitter::new(pre.stages).map_err(|error| Error::vocabulary(PRE, error))?;
        let count = merges.len();
        if count >= NO_RANK as usize {
            return Err(Error::vocabulary(MERGES, format!("{count} merges are no vocabulary")));
        }
        let bytes = match pre.alphabet {
            Alphabet::Bytes => std::array::from_fn(|byte| {
                vocab.id(byte_level::char_of(byte as u8).encode_utf8(&mut [0; 4]).as_bytes())
            }),
            Alphabet::Characters => vocab.byte_tokens(),
        };
        let mut ranks = HashMap::with_capacity(count);
        let mut products = Vec::with_capacity(count);
        let mut merged = Vec::new();
        for (rank, merge) in merges.iter().enumerate() {
            let fault = |what: &str| {
                let merge = String::from_utf8_lossy(merge);
                Error::vocabulary(MERGES, format!("merge {rank}, {merge:?}, {what}"))
            };
            // The left half has at least one byte, so that a merge of a space (in no published file) is seen.
            let space = merge.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
            let space = space.ok_or_else(|| fault("is not two tokens with a space between"))?;
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            merged.clear();
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
            let ids = (vocab.id(left), vocab.id(right), vocab.id(&merged));
            let (Some(left), Some(right), Some(product)) = ids else {
                return Err(fault("joins or makes a token that the vocabulary lacks"));
            };
            ranks.entry(pair(left, right)).or_insert(rank as u32);
            products.push(product);
        }
        Ok(Bpe {
            splitter,
            alphabet: pre.alphabet,
            words: pre.escape_spaces.then(|| Words::new(vocab, None)),
            ignore_merges: pre.ignore_merges,
            whole_line_feeds: pre.whole_line_feeds,
            bytes,
            ranks,
            products,
        })
    }

    fn encode_piece(&self, vocab: &Vocab, piece: &str, seen: &mut Seen, work: &mut Work, out: &mut Vec<u32>) {
        if seen.repeat(piece, out) {
            return;
        }
        let from = out.len();
        match self.whole(vocab, piece, &mut work.scratch) {
            Some(id) => out.push(id),
            None => {
                let symbols = &mut work.symbols;
                self.symbols(vocab, piece, symbols);
                match symbols.len() {
                    0..=SCAN_LIMIT => self.merge_by_scan(symbols),
                    _ => self.merge_by_heap(symbols),
                }
                self.push_tokens(piece, symbols, out);
            }
        }
        seen.note(piece, from, out);
    }

    /// The token that the piece is as a whole, where merges do not matter.
    fn whole(&self, vocab: &Vocab, piece: &str, scratch: &mut String) -> Option<u32> {
        let line_feeds = self.whole_line_feeds && piece.bytes().all(|byte| byte == b'\n');
        if !self.ignore_merges && !line_feeds {
            return None;
        }
        match self.alphabet {
            Alphabet::Bytes => {
                scratch.clear();
                byte_level::encode(piece.as_bytes(), scratch);
                vocab.id(scratch.as_bytes())
            }
            Alphabet::Characters => vocab.id(piece.as_bytes()),
        }
    }

    fn symbols(&self, vocab: &Vocab, piece: &str, symbols: &mut Vec<Symbol>) {
        symbols.clear();
        let symbol = |start: usize, id: Option<u32>| Symbol {
            id: id.unwrap_or(NO_TOKEN),
            start: start as u32,
            rank: NO_RANK,
        };
        match self.alphabet {
            Alphabet::Bytes => symbols.extend(
                piece.bytes().enumerate().map(|(start, byte)| symbol(start, self.bytes[usize::from(byte)])),
            ),
            Alphabet::Characters => symbols.extend(piece.char_indices().map(|(start, c)| {
                let id = vocab.id(c.encode_utf8(&mut [0; 4]).as_bytes());
                symbol(start, id)
            })),
        }
        for at in 1..symbols.len() {
            symbols[at - 1].rank = self.rank(symbols[at - 1].id, symbols[at].id);
        }
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        self.ranks.get(&pair(left, right)).copied().unwrap_or(NO_RANK)
    }

    fn merge_by_scan(&self, symbols: &mut Vec<Symbol>) {
        loop {
            let best = symbols.iter().enumerate().min_by_key(|(_, symbol)| symbol.rank);
            let Some((at, &Symbol { rank, .. })) = best else { return };
            if rank == NO_RANK {
                return;
            }
            symbols[at].id = self.products[rank as usize];
            symbols.remove(at + 1);
            symbols[at].rank = symbols.get(at + 1).map_or(NO_RANK, |next| self.rank(symbols[at].id, next.id));
            if at > 0 {
                symbols[at - 1].rank = self.rank(symbols[at - 1].id, symbols[at].id);
            }
        }
    }

    fn merge_by_heap(&self, symbols: &mut Vec<Symbol>) {
        let count = symbols.len() as u32;
        let mut list: Vec<Linked> = (0..count)
            .zip(symbols.drain(..))
            .map(|(at, symbol)| Linked {
                symbol,
                previous: at.wrapping_sub(1),
                next: if at + 1 < count { at + 1 } else { END },
            })
            .collect();
        // Lowest rank first, then leftmost. An entry is stale when the symbol's rank has changed since.
        let mut queue: BinaryHeap<Reverse<(u32, u32)>> = (0..count)
            .zip(&list)
            .filter(|(_, link)| link.symbol.rank != NO_RANK)
            .map(|(at, link)| Reverse((link.symbol.rank, at)))
            .collect();
        while let Some(Reverse((rank, at))) = queue.pop() {
            let here = list[at as usize];
            if here.symbol.rank != rank {
                continue;
            }
            let absorbed = here.next;
            let next = list[absorbed as usize].next;
            // An absorbed symbol has no rank, so whatever the queue still holds of it is stale.
            list[absorbed as usize].symbol.rank = NO_RANK;
            list[at as usize].symbol.id = self.products[rank as usize];
            list[at as usize].next = next;
            if next != END {
                list[next as usize].previous = at;
            }
            for left in [here.previous, at] {
                let Some(link) = list.get(left as usize) else { continue };
                let right = list.get(link.next as usize);
                let rank = right.map_or(NO_RANK, |right| self.rank(link.symbol.id, right.symbol.id));
                list[left as usize].symbol.rank = rank;
                if rank != NO_RANK {
                    queue.push(Reverse((rank, left)));
                }
            }
        }
        let mut at = 0;
        while let Some(link) = list.get(at as usize) {
            symbols.push(link.symbol);
            at = link.next;
        }
    }

    fn push_tokens(&self, piece: &str, symbols: &[Symbol], out: &mut Vec<u32>) {
        for (nth, symbol) in symbols.iter().enumerate() {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
            } else if self.alphabet == Alphabet::Characters {
                let start = symbol.start as usize;
                let end = symbols.get(nth + 1).map_or(piece.len(), |next| next.start as usize);
                let bytes = piece.as_bytes()[start..end].iter();
                out.extend(bytes.filter_map(|&byte| self.bytes[usize::from(byte)]));
            }
        }
    }
}

impl Model for Bpe {
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>) {
        let escaped;
        let text = if self.words.is_some() {
            let mut with_escapes = String::with_capacity(text.len() + text.len() / 2);
            space::escape(text, &mut with_escapes);
            escaped = with_escapes;
            escaped.as_str()
        } else {
            text
        };
        let mut work = Work::default();
        let mut start = 0;
        for end in self.splitter.ends(text) {
            let piece = &text[start..end];
            start = end;
            match &self.words {
                Some(words) => {
                    words.split(piece).for_each(|word| self.encode_piece(vocab, word, seen, &mut work, out))
                }
                None => self.encode_piece(vocab, piece, seen, &mut work, out),
            }
        }
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        match (self.alphabet, self.words.is_some()) {
            (Alphabet::Bytes, _) => byte_level::decode(token, out),
            (Alphabet::Characters, true) => space::unescape(token, out),
            (Alphabet::Characters, false) => out.extend_from_slice(token),
        }
    }
}
