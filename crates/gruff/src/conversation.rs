//! A conversation whose prompts continue one another, token for token.

use gruff_text::chat::Message;
use gruff_text::{Detokenizer, EncodeOptions};

use crate::{AutoTokenizer, ChatOptions, Result};

/// Messages, and the ids that they became.
///
/// The ids of an answer are kept as they were generated: text that is tokenized again may give other ids, and
/// then nothing that the model has computed could be used for the next turn.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
    /// What the model has seen and said: text with its special tokens, and ids.
    text: String,
    ids: Vec<u32>,
}

impl Conversation {
    /// An empty conversation, or one that begins with these messages.
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The last prompt as text, and the answer behind it once that is taken in.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes the last message back, for a prompt that could not be answered.
    pub fn pop(&mut self) -> Option<Message> {
        self.messages.pop()
    }

    /// The prompt that asks for the next answer: the ids so far and those of what the template adds behind
    /// them; all ids anew when the template changes what came before.
    ///
    /// # Errors
    /// As [`AutoTokenizer::apply_chat_template`].
    pub fn prompt(&mut self, tokenizer: &AutoTokenizer, options: &ChatOptions) -> Result<Vec<u32>> {
        let text = tokenizer.render_chat(&self.messages, options)?;
        let as_written = EncodeOptions { add_special: false, parse_special: true };
        let encode = |text: &str| tokenizer.tokenizer().encode(text, as_written);
        let ids = match text.strip_prefix(&self.text) {
            Some(added) if !self.text.is_empty() => [self.ids.as_slice(), &encode(added)?].concat(),
            _ => encode(&text)?,
        };
        (self.text, self.ids) = (text, ids.clone());
        Ok(ids)
    }

    /// Takes the answer in: the ids as they were generated, and the message that they say.
    pub fn answered(&mut self, tokenizer: &AutoTokenizer, new_tokens: &[u32], message: Message) {
        let mut detokenizer = Detokenizer::new(tokenizer.tokenizer(), false).continuing();
        for id in new_tokens {
            self.text.push_str(detokenizer.push(*id));
        }
        self.text.push_str(detokenizer.finish());
        self.ids.extend_from_slice(new_tokens);
        self.messages.push(message);
    }
}
