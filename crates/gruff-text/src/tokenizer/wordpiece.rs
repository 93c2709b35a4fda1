//! WordPiece: `tokenizer.ggml.model` = `bert`.
//!
//! Text is cleaned and lower-cased as BERT's basic tokenizer does, cut at white space, punctuation and Chinese
//! characters, and each word is cut into the longest pieces that the vocabulary has, from the left. GGUF writes
//! a piece that begins a word with U+2581 before it and one that continues a word bare, where BERT's own
//! vocabulary marks the latter with `##`. Devlin et al., "BERT" (2019), and its `tokenization.py`.

use gruff_gguf::Metadata;
use unicode_normalization::UnicodeNormalization;

use super::chars::CharClass;
use super::space::ESCAPED;
use super::vocab::Vocab;
use super::words::Seen;
use super::{Model, PRE, space};
use crate::Error;

/// Words of more characters become one unknown token, as in BERT's own tokenizer.
const LONGEST_WORD: usize = 100;

/// WordPiece with BERT's normalization.
#[derive(Debug)]
pub(crate) struct WordPiece {
    lowercase: bool,
    strip_accents: bool,
    unknown: Option<u32>,
    control: CharClass,
    accent: CharClass,
    punctuation: CharClass,
}

impl WordPiece {
    pub(crate) fn new(metadata: &Metadata, unknown: Option<u32>) -> Result<Self, Error> {
        let class = |class| CharClass::new(class).map_err(|error| Error::vocabulary(PRE, error));
        let lowercase = metadata.bool_or("tokenizer.ggml.normalizer.lowercase", true)?;
        Ok(WordPiece {
            lowercase,
            strip_accents: metadata.bool_or("tokenizer.ggml.normalizer.strip_accents", lowercase)?,
            unknown,
            control: class(r"[\p{Cc}\p{Cf}\p{Co}]")?,
            accent: class(r"\p{Mn}")?,
            punctuation: class(r"[\p{P}!-/:-@\[-`{-~]")?,
        })
    }

    /// The words of the text, each with U+2581 before it, as the vocabulary writes the beginning of a word.
    fn words(&self, text: &str) -> Vec<String> {
        let cleaned = text.chars().filter_map(|c| match c {
            _ if c.is_whitespace() => Some(' '),
            '\0' | char::REPLACEMENT_CHARACTER => None,
            _ => (!self.control.contains(c)).then_some(c),
        });
        if self.strip_accents {
            self.cut(cleaned.nfd().filter(|&c| !self.accent.contains(c)))
        } else {
            self.cut(cleaned)
        }
    }

    fn cut(&self, chars: impl Iterator<Item = char>) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = String::from(ESCAPED);
        let mut finish = |word: &mut String| {
            if word.len() > ESCAPED.len() {
                words.push(std::mem::replace(word, String::from(ESCAPED)));
            }
        };
        for c in chars {
            if c == ' ' {
                finish(&mut word);
                continue;
            }
            let alone = self.punctuation.contains(c) || is_chinese(c);
            if alone {
                finish(&mut word);
            }
            if self.lowercase {
                word.extend(c.to_lowercase());
            } else {
                word.push(c);
            }
            if alone {
                finish(&mut word);
            }
        }
        finish(&mut word);
        words
    }

    /// Appends the pieces of a word; `None` when some part of it is no piece.
    fn pieces(vocab: &Vocab, word: &str, out: &mut Vec<u32>) -> Option<()> {
        let mut rest = word;
        while !rest.is_empty() {
            let longest = rest.len().min(vocab.longest());
            let (end, id) = (1..=longest)
                .rev()
                .filter_map(|end| rest.get(..end).map(|piece| (end, piece)))
                .find_map(|(end, piece)| vocab.id(piece.as_bytes()).map(|id| (end, id)))?;
            out.push(id);
            rest = &rest[end..];
        }
        Some(())
    }
}

/// The ranges that BERT's tokenizers set apart as single words. (The last but two begins at U+2B920 in the Rust
/// tokenizers that trained the published models' successors, at U+2B820 in the original; the former is used.)
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}

impl Model for WordPiece {
    fn encode(&self, vocab: &Vocab, text: &str, _seen: &mut Seen, out: &mut Vec<u32>) {
        for word in self.words(text) {
            let start = out.len();
            let fits = word.chars().count() <= LONGEST_WORD + 1;
            if !fits || WordPiece::pieces(vocab, &word, out).is_none() {
                out.truncate(start);
                out.extend(self.unknown);
            }
        }
    }

    fn decode(&self, token: &[u8], out: &mut Vec<u8>) {
        space::unescape(token, out);
    }

    fn begins_with_space(&self) -> bool {
        true
    }
}
