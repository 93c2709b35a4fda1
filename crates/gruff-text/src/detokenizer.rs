//! Token ids to text, one at a time.

use crate::Tokenizer;

/// Turns ids into text as they come, and never gives out half a character: bytes are held back until the
/// character that they begin is whole.
///
/// ```no_run
/// # fn show(tokenizer: &gruff_text::Tokenizer, ids: &[u32]) {
/// let mut detokenizer = gruff_text::Detokenizer::new(tokenizer, true);
/// for &id in ids {
///     print!("{}", detokenizer.push(id));
/// }
/// println!("{}", detokenizer.finish());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    strip_space: bool,
    /// Bytes that are not text yet.
    pending: Vec<u8>,
    /// What the last call gave out.
    text: String,
}

impl Detokenizer {
    /// Starts a text. With `skip_special`, control tokens are left out.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Detokenizer {
            strip_space: tokenizer.begins_with_space(),
            tokenizer: tokenizer.clone(),
            skip_special,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// Starts in the middle of a text: a space at the front of the first token stays, even where the tokenizer
    /// puts one before every text.
    #[must_use]
    pub fn continuing(mut self) -> Self {
        self.strip_space = false;
        self
    }

    /// The text that `id` completes; often empty, when a character is spread over several tokens.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if self.skip_special && self.tokenizer.is_control(id) {
            return &self.text;
        }
        let start = self.pending.len();
        self.tokenizer.append_bytes(id, &mut self.pending);
        if self.strip_space && self.pending.len() > start && !self.tokenizer.is_control(id) {
            self.strip_space = false;
            if self.pending.get(start) == Some(&b' ') {
                self.pending.remove(start);
            }
        }
        self.take_whole_characters();
        &self.text
    }

    /// The rest: U+FFFD when the ids ended within a character. The next `push` starts a new text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        self.pending.clear();
        self.strip_space = self.tokenizer.begins_with_space();
        &self.text
    }

    /// Moves what is complete from `pending` to `text`; what can be no UTF-8 becomes U+FFFD.
    fn take_whole_characters(&mut self) {
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
    }
}
