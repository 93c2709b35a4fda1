//! Text to token ids and back, as the model in a GGUF file was trained.

mod added;
mod borders;
mod bpe;
mod byte_level;
mod chars;
mod charsmap;
mod dna;
mod json;
mod kind;
mod plamo2;
mod pre;
mod rwkv;
mod space;
mod special;
mod split;
mod spm;
mod trie;
mod unigram;
mod vocab;
mod whitespace;
mod wordpiece;
mod words;

use std::sync::Arc;

use gruff_gguf::Metadata;

use crate::{Detokenizer, Error};
use added::{AddedTokens, Fragment};
pub use json::{pre_tokenizer_json, pre_tokenizer_name};
use kind::Kind;
pub use special::FillTokens;
use special::SpecialTokens;
pub use vocab::TokenType;
use vocab::Vocab;
use words::Seen;

/// The longest text that is tokenized at once, in bytes; escaping may make it three times as long, which must
/// stay below 2^32.
const MAX_TEXT_BYTES: usize = 1 << 30;

/// What may be said about a tokenizer that the file does not say, or says wrongly.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TokenizerOptions {
    /// The pre-tokenizer to use in place of the one that `tokenizer.ggml.pre` names.
    pub pre: Option<String>,
}

impl TokenizerOptions {
    /// Takes everything from the file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses the pre-tokenizer `name` whatever the file says.
    #[must_use]
    pub fn pre(mut self, name: impl Into<String>) -> Self {
        self.pre = Some(name.into());
        self
    }
}

/// How a text is read. The default takes it as plain text: nothing added, nothing parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether the tokens that begin and end a sequence are added, where the model wants them.
    pub add_special: bool,
    /// Whether control tokens written in the text (`<|im_end|>`) become those tokens. Leave it off for text
    /// from others, who could end their turn and begin one in another role.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// Both on: for a rendered chat template, or a prompt that is trusted.
    pub const PROMPT: Self = EncodeOptions { add_special: true, parse_special: true };
}

/// A model's tokenizer, built from the metadata of its GGUF file. Cloning shares it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use gruff_text::{EncodeOptions, Tokenizer, TokenizerOptions};
///
/// let file = gruff_gguf::Gguf::open("model.gguf")?;
/// let tokenizer = Tokenizer::from_gguf(file.metadata(), &TokenizerOptions::new())?;
/// let ids = tokenizer.encode("Hello, world!", EncodeOptions::default())?;
/// assert_eq!(tokenizer.decode(&ids, true), "Hello, world!");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vocab: Vocab,
    model: Box<dyn Model>,
    added: AddedTokens,
    special: SpecialTokens,
    add_bos: bool,
    add_eos: bool,
    /// What ends a sequence: the end-of-sequence token, or BERT's separator.
    last: Option<u32>,
    warnings: Vec<String>,
}

/// A kind of tokenizer: what `tokenizer.ggml.model` names.
trait Model: std::fmt::Debug + Send + Sync {
    /// Appends the tokens of `text`, which is not empty, and stands between added tokens or the ends.
    /// `seen` is of the whole text, and `out` only grows.
    fn encode(&self, vocab: &Vocab, text: &str, seen: &mut Seen, out: &mut Vec<u32>);

    /// Appends the bytes that a token of ordinary text stands for.
    fn decode(&self, token: &[u8], out: &mut Vec<u8>);

    /// Whether the first token of a text begins with a space that the text does not have.
    fn begins_with_space(&self) -> bool {
        false
    }
}

/// Pushes the token for what the vocabulary cannot express, once for a run of such text.
fn push_unknown(unknown: Option<u32>, out: &mut Vec<u32>) {
    if unknown.is_some() && out.last() != unknown.as_ref() {
        out.extend(unknown);
    }
}

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";

impl Tokenizer {
    /// Builds the tokenizer that the metadata describe.
    ///
    /// # Errors
    /// [`Error::NoVocabulary`] when the file says that it has none, [`Error::UnknownModel`] and
    /// [`Error::UnknownPre`] for tokenizers that are not implemented, [`Error::Metadata`] and
    /// [`Error::Vocabulary`] when keys are missing, of the wrong type, or contradict one another.
    pub fn from_gguf(metadata: &Metadata, options: &TokenizerOptions) -> Result<Self, Error> {
        let name = metadata.require_str(MODEL)?;
        if matches!(name, "none" | "no_vocab") {
            return Err(Error::NoVocabulary { model: name.to_owned() });
        }
        let mut warnings = Vec::new();
        let kind = Kind::named(name)?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let special = SpecialTokens::new(metadata, &mut vocab, kind.defaults(), &mut warnings)?;
        let built = kind.build(metadata, options, &vocab, &special, &mut warnings)?;
        let added = AddedTokens::new(&vocab, metadata, built.escaped_spaces)?;
        // Early Gemma 4 files say false, and the model needs it.
        let add_bos =
            metadata.bool_or("tokenizer.ggml.add_bos_token", built.add_bos)? || kind == Kind::Gemma4;
        let add_eos = metadata.bool_or("tokenizer.ggml.add_eos_token", built.add_eos)?;
        let last = if kind == Kind::Bert { special.sep } else { special.eos };
        let model = built.model;
        let inner = Inner { vocab, model, added, special, add_bos, add_eos, last, warnings };
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// The token ids of `text`.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] above a gibibyte.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::TextTooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
        }
        let inner = &*self.inner;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special && inner.add_bos {
            ids.extend(inner.special.bos);
        }
        let mut seen = Seen::default();
        for fragment in inner.added.split(text, options.parse_special) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => inner.model.encode(&inner.vocab, text, &mut seen, &mut ids),
            }
        }
        if options.add_special && inner.add_eos {
            ids.extend(inner.last);
        }
        Ok(ids)
    }

    /// A prompt for what stands between two texts, in the order that models with such tokens were trained in: what
    /// precedes the gap, what follows it, and then the model's words. `None` where the vocabulary has no tokens for it.
    /// Special tokens in the texts are text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_fill(&self, before: &str, after: &str) -> Result<Option<Vec<u32>>, Error> {
        let Some(fill) = self.fill_tokens() else { return Ok(None) };
        let as_text = EncodeOptions { add_special: false, parse_special: false };
        let mut ids: Vec<u32> = self.bos().filter(|_| self.add_bos()).into_iter().collect();
        ids.push(fill.prefix);
        ids.extend(self.encode(before, as_text)?);
        ids.push(fill.suffix);
        ids.extend(self.encode(after, as_text)?);
        ids.push(fill.middle);
        Ok(Some(ids))
    }

    /// The text of `ids`; with `skip_special`, without control tokens. Ids that are no tokens are left out, and
    /// bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self, skip_special);
        let mut text: String = String::with_capacity(ids.len() * 4);
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }

    /// The bytes that the token stands for, which need not be whole characters: control tokens as they are
    /// written, nothing for an id that is no token.
    pub fn token_to_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_bytes(id, &mut bytes);
        bytes
    }

    pub(crate) fn append_bytes(&self, id: u32, out: &mut Vec<u8>) {
        let Some(token) = self.inner.vocab.token(id) else { return };
        match self.inner.vocab.token_type(id) {
            TokenType::Control | TokenType::UserDefined | TokenType::Unknown => out.extend_from_slice(token),
            TokenType::Byte => match vocab::byte_of(token) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(token),
            },
            TokenType::Normal | TokenType::Unused => self.inner.model.decode(token, out),
        }
    }

    /// Whether the first token of a text begins with a space that the text does not have.
    pub(crate) fn begins_with_space(&self) -> bool {
        self.inner.model.begins_with_space()
    }

    /// The token as the vocabulary writes it, such as `Ġworld` or `▁world`.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.vocab.token(id).map(|token| String::from_utf8_lossy(token).into_owned())
    }

    /// The id of the token that the vocabulary writes so.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.vocab.id(token.as_bytes())
    }

    /// What the token is for; ids beyond the vocabulary count as unused.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.inner.vocab.token_type(id)
    }

    /// Whether the token is structure rather than text, and left out of [`decode`](Self::decode) with
    /// `skip_special`.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.token_type(id), TokenType::Control | TokenType::Unknown)
    }

    /// The number of tokens. A model's embedding may have more rows, for padding.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab.len()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.inner.special.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.inner.special.eos
    }

    /// The token that pads sequences to one length.
    pub fn pad(&self) -> Option<u32> {
        self.inner.special.pad
    }

    /// The token for what the vocabulary cannot express.
    pub fn unk(&self) -> Option<u32> {
        self.inner.special.unk
    }

    /// The token between two texts.
    pub fn sep(&self) -> Option<u32> {
        self.inner.special.sep
    }

    /// The token for a hidden word.
    pub fn mask(&self) -> Option<u32> {
        self.inner.special.mask
    }

    /// The tokens around a gap to be filled in, where the vocabulary has all three.
    pub fn fill_tokens(&self) -> Option<FillTokens> {
        self.inner.special.fill
    }

    /// Whether a sequence begins with [`bos`](Self::bos).
    pub fn add_bos(&self) -> bool {
        self.inner.add_bos
    }

    /// Whether a sequence ends with [`eos`](Self::eos) ([`sep`](Self::sep) for BERT).
    pub fn add_eos(&self) -> bool {
        self.inner.add_eos
    }

    /// Every token that ends generation, ascending: `tokenizer.ggml.eos_token_id`, `.eot_token_id` and
    /// `.eom_token_id`, tokens known by their text (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`,
    /// `<|endoftext|>`, …: the list is in `docs/tokenizers.md`), and those after a file in code models.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.inner.special.end_of_generation
    }

    /// Whether the token ends generation.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.inner.special.end_of_generation.binary_search(&id).is_ok()
    }

    /// What was odd about the metadata, for the person who runs the model.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }
}
