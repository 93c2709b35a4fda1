//! Byte-level BPE with stretches of DNA: `tokenizer.ggml.model` = `hybriddna`.
//!
//! Between `<dna>` and `</dna>` the bases are taken six at a time, upper-cased, the last six filled up with A.
//! The vocabulary writes these tokens with U+E000 at the end, so that they differ from the same letters as text.

use super::Model;
use super::bpe::Bpe;
use super::vocab::Vocab;
use super::words::Seen;

const OPEN: &str = "<dna>";
const CLOSE: &str = "</dna>";
const OUT_OF_VOCABULARY: &str = "<oov>";
const MARKER: char = '\u{E000}';
const BASES: usize = 6;

/// BPE outside of `<dna>`, six bases a token inside.
#[derive(Debug)]
pub(crate) struct HybridDna {
    bpe: Bpe,
    open: u32,
    close: u32,
    out_of_vocabulary: u32,
}

impl HybridDna {
    /// `bpe` alone where the vocabulary lacks the tokens around DNA.
    pub(crate) fn around(bpe: Bpe, vocab: &Vocab) -> Box<dyn Model> {
        let id = |token: &str| vocab.id(token.as_bytes());
        match (id(OPEN), id(CLOSE), id(OUT_OF_VOCABULARY)) {
            (Some(open), Some(close), Some(out_of_vocabulary)) => {
                Box::new(HybridDna { bpe, open, close, out_of_vocabulary })
            }
            _ => Box::new(bpe),
        }
    }

    fn encode_bases(&self, vocab: &Vocab, bases: &str, out: &mut Vec<u32>) {
        let bases = bases.to_ascii_uppercase();
        let mut token = String::with_capacity(BASES + MARKER.len_utf8());
        for six in bases.as_bytes().chunks(BASES) {
            token.clear();
            // Whatever is not ASCII is no base either.
            token.extend(six.iter().map(|&base| if base.is_ascii() { char::from(base) } else { MARKER }));
            token.extend(std::iter::repeat_n('A', BASES - six.len()));
            token.push(MARKER);
            out.push(vocab.id(token.as_bytes()).unwrap_or(self.out_of_vocabulary));
        }
    }
}

impl Model for HybridDna {
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>) {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPEN) {
            self.bpe.encode(vocab, before, seen, out);
            out.push(self.open);
            match after.split_once(CLOSE) {
                Some((bases, after)) => {
                    self.encode_bases(vocab, bases, out);
                    out.push(self.close);
                    rest = after;
                }
                None => return self.encode_bases(vocab, after, out),
            }
        }
        self.bpe.encode(vocab, rest, seen, out);
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        let mut marker = [0; 4];
        match token.strip_suffix(MARKER.encode_utf8(&mut marker).as_bytes()) {
            Some(bases) => out.extend_from_slice(bases),
            None => self.bpe.decode(token, out),
        }
    }
}
