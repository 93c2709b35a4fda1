//! Tokens that are found in the text before it is split: user-defined ones always, control tokens on request.

use aho_corasick::{AhoCorasick, MatchKind};
use gruff_gguf::Metadata;

use super::space;
use super::vocab::{TOKENS, TYPES, TokenType, Vocab};
use crate::Error;

/// The most bytes that all tokens to find may have together. The automaton that finds them takes up to some fifty
/// times as much memory; published vocabularies stay below a tenth of this.
const MAX_ADDED_BYTES: usize = 4 << 20;

/// The tokens to find, and what they do to the white space beside them.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    user_defined: Option<Finder>,
    with_control: Option<Finder>,
    /// Ids of the tokens that take the white space before them, ascending.
    strip_left: Vec<u32>,
    /// Ids of the tokens that take the white space after them, ascending.
    strip_right: Vec<u32>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(crate) enum Fragment<'a> {
    /// An added token.
    Token(u32),
    /// Text to be split, not empty.
    Text(&'a str),
}

impl AddedTokens {
    /// `escaped_spaces`: the model writes spaces as U+2581, so a token of such characters is found as spaces.
    pub(crate) fn new(vocab: &Vocab, metadata: &Metadata, escaped_spaces: bool) -> Result<Self, Error> {
        let control: &[TokenType] = &[TokenType::UserDefined, TokenType::Control, TokenType::Unknown];
        let (strip_left, strip_right) = strips(vocab, metadata);
        Ok(AddedTokens {
            user_defined: Finder::new(vocab, &control[..1], escaped_spaces)?,
            with_control: Finder::new(vocab, control, escaped_spaces)?,
            strip_left,
            strip_right,
        })
    }

    /// Cuts `text` at the tokens in it. Where tokens overlap, the leftmost wins, then the longest.
    pub(crate) fn split<'a>(&self, text: &'a str, control: bool) -> Vec<Fragment<'a>> {
        let finder = if control { &self.with_control } else { &self.user_defined };
        let mut fragments = Vec::new();
        let (mut start, mut strip_start) = (0, false);
        for found in finder.iter().flat_map(|finder| finder.automaton.find_iter(text)) {
            let Some(id) = finder.as_ref().and_then(|f| f.ids.get(found.pattern().as_usize())) else {
                continue;
            };
            let strip_end = self.strip_left.binary_search(id).is_ok();
            push_text(&text[start..found.start()], strip_start, strip_end, &mut fragments);
            fragments.push(Fragment::Token(*id));
            start = found.end();
            strip_start = self.strip_right.binary_search(id).is_ok();
        }
        push_text(&text[start..], strip_start, false, &mut fragments);
        fragments
    }
}

fn push_text<'a>(text: &'a str, strip_start: bool, strip_end: bool, fragments: &mut Vec<Fragment<'a>>) {
    let text = if strip_start { text.trim_start() } else { text };
    let text = if strip_end { text.trim_end() } else { text };
    if !text.is_empty() {
        fragments.push(Fragment::Text(text));
    }
}

impl Finder {
    fn new(vocab: &Vocab, types: &[TokenType], escaped_spaces: bool) -> Result<Option<Self>, Error> {
        let (mut patterns, mut ids) = (Vec::new(), Vec::new());
        for id in vocab.of_types(types) {
            let token = vocab.token(id).unwrap_or_default();
            // Matches must begin and end between characters, which only whole characters do.
            if token.is_empty() || std::str::from_utf8(token).is_err() {
                continue;
            }
            let mut pattern = Vec::with_capacity(token.len());
            if escaped_spaces {
                space::unescape(token, &mut pattern);
            } else {
                pattern.extend_from_slice(token);
            }
            patterns.push(pattern);
            ids.push(id);
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        if bytes > MAX_ADDED_BYTES {
            let fault = format!(
                "{} special tokens have {bytes} bytes together; at most {MAX_ADDED_BYTES} can be searched for",
                ids.len()
            );
            return Err(Error::vocabulary(TYPES, fault));
        }
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns).map_err(
                |error| Error::vocabulary(TOKENS, format!("its special tokens cannot be searched: {error}")),
            )?;
        Ok(Some(Finder { automaton, ids }))
    }
}

/// Which tokens take the white space before and after them. Files do not say; what is known of the models that
/// need it goes by their names.
fn strips(vocab: &Vocab, metadata: &Metadata) -> (Vec<u32>, Vec<u32>) {
    let text = |key| metadata.str(key).ok().flatten().unwrap_or_default();
    let pre = text("tokenizer.ggml.pre");
    let architecture = text("general.architecture");
    let name = text("general.name").to_lowercase();
    let ids =
        |tokens: &[&str]| tokens.iter().filter_map(|token| vocab.id(token.as_bytes())).collect::<Vec<_>>();

    if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|known| pre.contains(known))
        || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|known| architecture.contains(known))
    {
        (ids(&["<mask>"]), vec![])
    } else if name.contains("phi-3") || name.contains("phi3") {
        let keep = ids(&["<unk>", "<s>", "<|endoftext|>"]);
        let types = [TokenType::Control, TokenType::UserDefined, TokenType::Unknown];
        let mut right: Vec<u32> = vocab.of_types(&types).filter(|id| !keep.contains(id)).collect();
        right.extend(ids(&["</s>"]));
        right.sort_unstable();
        (vec![], right)
    } else if name.contains("modern-bert") {
        (ids(&["[MASK]"]), vec![])
    } else {
        (vec![], vec![])
    }
}
