//! The tokens of a model: their bytes, types and scores, and the way back from bytes to id.

use std::hash::BuildHasher;

use gruff_gguf::{Metadata, Strings};
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::Error;

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TYPES: &str = "tokenizer.ggml.token_type";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";

/// The longest token that a vocabulary may have, in bytes. The longest in published models are runs of 512
/// spaces, 1,024 bytes in the byte-level alphabet. Without a limit, one token of a megabyte would make every
/// look-up of a prefix that long.
const MAX_TOKEN_BYTES: usize = 4096;

/// What a token is for: `tokenizer.ggml.token_type`, with the numbers of SentencePiece's `Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TokenType {
    /// A piece of text.
    Normal = 1,
    /// Stands for text that the vocabulary cannot express.
    Unknown = 2,
    /// Structure rather than text, such as the beginning of a sequence. Never made from plain text.
    Control = 3,
    /// Text that is always one token, found before anything else is split.
    UserDefined = 4,
    /// A place in the table that no text leads to.
    Unused = 5,
    /// One byte, written `<0x0A>`.
    Byte = 6,
}

impl TokenType {
    fn from_id(id: i32) -> Self {
        match id {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            // 1 is normal; 0 is "undefined", which early converters wrote for everything.
            _ => TokenType::Normal,
        }
    }
}

/// Tokens by id, and ids by their bytes as the file writes them.
#[derive(Debug)]
pub(crate) struct Vocab {
    tokens: Strings,
    types: Vec<TokenType>,
    scores: Vec<f32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    longest: usize,
}

impl Vocab {
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let tokens = metadata.require_str_array(TOKENS)?;
        let types = metadata.i32_array(TYPES)?;
        let scores = metadata.f32_array(SCORES)?;
        Vocab::new(tokens.clone(), types.as_deref(), scores.as_deref())
    }

    /// `types` and `scores`, where given, must be as many as there are tokens.
    pub(crate) fn new(tokens: Strings, types: Option<&[i32]>, scores: Option<&[f32]>) -> Result<Self, Error> {
        let count = tokens.len();
        if count == 0 || count >= u32::MAX as usize {
            return Err(Error::vocabulary(TOKENS, format!("{count} tokens are no vocabulary")));
        }
        for (key, len) in [(TYPES, types.map(<[_]>::len)), (SCORES, scores.map(<[_]>::len))] {
            if let Some(len) = len.filter(|&len| len != count) {
                return Err(Error::vocabulary(key, format!("{len} values for {count} tokens")));
            }
        }
        if let Some(at) = scores.and_then(|scores| scores.iter().position(|score| score.is_nan())) {
            return Err(Error::vocabulary(SCORES, format!("the score of token {at} is not a number")));
        }
        let types = match types {
            Some(types) => types.iter().map(|&id| TokenType::from_id(id)).collect(),
            None => vec![TokenType::Normal; count],
        };
        let scores = scores.map(<[f32]>::to_vec).unwrap_or_default();
        let mut vocab = Vocab {
            tokens,
            types,
            scores,
            index: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
            longest: 0,
        };
        vocab.build_index()?;
        Ok(vocab)
    }

    fn build_index(&mut self) -> Result<(), Error> {
        for (id, token) in self.tokens.iter().enumerate() {
            if token.len() > MAX_TOKEN_BYTES {
                let fault =
                    format!("token {id} is {} bytes long; at most {MAX_TOKEN_BYTES} make sense", token.len());
                return Err(Error::vocabulary(TOKENS, fault));
            }
            // An empty token is a hole in the table: nothing leads to it.
            if token.is_empty() {
                continue;
            }
            self.longest = self.longest.max(token.len());
            let hash = self.hasher.hash_one(token);
            let same = |&other: &u32| self.tokens.get(other as usize) == Some(token);
            if let Some(first) = self.index.find(hash, same) {
                let text = String::from_utf8_lossy(token);
                return Err(Error::vocabulary(TOKENS, format!("tokens {first} and {id} are both {text:?}")));
            }
            let rehash =
                |&other: &u32| self.hasher.hash_one(self.tokens.get(other as usize).unwrap_or_default());
            self.index.insert_unique(hash, id as u32, rehash);
        }
        Ok(())
    }

    /// The number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.types.len()
    }

    /// Bytes of the longest token, as the file writes it.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The token as the file writes it.
    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize)
    }

    /// The id of a token that is written so in the file.
    pub(crate) fn id(&self, token: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(token);
        self.index.find(hash, |&id| self.tokens.get(id as usize) == Some(token)).copied()
    }

    /// The token's type; ids beyond the table count as unused.
    pub(crate) fn token_type(&self, id: u32) -> TokenType {
        self.types.get(id as usize).copied().unwrap_or(TokenType::Unused)
    }

    pub(crate) fn set_type(&mut self, id: u32, token_type: TokenType) {
        if let Some(slot) = self.types.get_mut(id as usize) {
            *slot = token_type;
        }
    }

    /// The token's score, 0 where the file has none.
    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// Whether the file gives scores.
    pub(crate) fn has_scores(&self) -> bool {
        !self.scores.is_empty()
    }

    /// Ids of every token of one of the `types`.
    pub(crate) fn of_types<'a>(&'a self, types: &'a [TokenType]) -> impl Iterator<Item = u32> + 'a {
        (0..self.len() as u32).filter(|&id| types.contains(&self.token_type(id)))
    }

    /// The ids of the byte tokens `<0x00>` to `<0xFF>`, where the vocabulary has them.
    pub(crate) fn byte_tokens(&self) -> [Option<u32>; 256] {
        std::array::from_fn(|byte| self.id(format!("<0x{byte:02X}>").as_bytes()))
    }
}

/// The byte that a byte token such as `<0x0A>` stands for.
pub(crate) fn byte_of(token: &[u8]) -> Option<u8> {
    let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
