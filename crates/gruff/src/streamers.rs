//! Answers as they come: transformers' streamers.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use gruff_text::Detokenizer;

use crate::{AutoTokenizer, Result, StopMatcher};

/// Is told of an answer token by token. Of one answer: batches and beams are not streamed this way.
pub trait Streamer {
    /// A token: first those of the prompt, then those of the answer.
    ///
    /// # Errors
    /// An error ends the answer and is given back by `generate`.
    fn on_token(&mut self, id: u32, is_prompt: bool) -> Result<()>;

    /// The answer has ended.
    ///
    /// # Errors
    /// An error is given back by `generate`.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Turns tokens into pieces of text for a function: [`TextStreamer`] and [`TextIteratorStreamer`] are two such
/// functions.
pub struct TextPieces<F> {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    skip_prompt: bool,
    on_text: F,
}

impl<F: FnMut(&str) -> Result<()>> TextPieces<F> {
    /// Hands text to `on_text` as soon as it is whole characters. Special tokens are left out.
    pub fn new(tokenizer: &AutoTokenizer, on_text: F) -> Self {
        Self {
            detokenizer: tokenizer.detokenizer(true),
            matcher: StopMatcher::default(),
            skip_prompt: false,
            on_text,
        }
    }

    /// Leaves the prompt out.
    #[must_use]
    pub fn skip_prompt(mut self) -> Self {
        self.skip_prompt = true;
        self
    }

    /// Ends before the first of these texts, holding back what may be the beginning of one.
    #[must_use]
    pub fn stop_strings(mut self, stops: Vec<String>) -> Self {
        self.matcher = StopMatcher::new(stops);
        self
    }

    fn tell(&mut self, text: &str) -> Result<()> {
        if text.is_empty() { Ok(()) } else { (self.on_text)(text) }
    }
}

impl<F: FnMut(&str) -> Result<()>> Streamer for TextPieces<F> {
    fn on_token(&mut self, id: u32, is_prompt: bool) -> Result<()> {
        if is_prompt {
            if self.skip_prompt {
                return Ok(());
            }
            let text = self.detokenizer.push(id).to_owned();
            return self.tell(&text);
        }
        let text = self.matcher.push(self.detokenizer.push(id));
        self.tell(&text)
    }

    fn end(&mut self) -> Result<()> {
        let mut text = self.matcher.push(self.detokenizer.finish());
        text.push_str(&self.matcher.finish());
        self.tell(&text)
    }
}

/// Prints an answer as it comes.
pub struct TextStreamer;

impl TextStreamer {
    /// A streamer that prints to standard output.
    #[expect(clippy::new_ret_no_self, reason = "named as in transformers; the type says where the text goes")]
    pub fn new(tokenizer: &AutoTokenizer) -> TextPieces<impl FnMut(&str) -> Result<()>> {
        TextPieces::new(tokenizer, |text| {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())
                .and_then(|()| out.flush())
                .map_err(|error| crate::Error::Option(format!("standard output: {error}")))
        })
    }
}

/// An answer as an iterator of texts, for another thread than the one that generates.
///
/// ```no_run
/// # use gruff::{AutoModelForCausalLM, AutoTokenizer, GenerateOptions, GenerationConfig, TextIteratorStreamer};
/// # fn show(model: &AutoModelForCausalLM, tokenizer: &AutoTokenizer, prompt: Vec<u32>) -> gruff::Result<()> {
/// let (streamer, texts) = TextIteratorStreamer::new(tokenizer, None);
/// let mut streamer = streamer.skip_prompt();
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let options = GenerateOptions { streamer: Some(&mut streamer), ..Default::default() };
///         model.generate_with_options(prompt, &GenerationConfig::default(), options)
///     });
///     for text in texts {
///         print!("{text}");
///     }
/// });
/// # Ok(())
/// # }
/// ```
pub struct TextIteratorStreamer {
    texts: Receiver<Option<String>>,
    timeout: Option<Duration>,
}

/// Sends the pieces of a [`TextIteratorStreamer`], and the end.
pub struct TextSender<F> {
    pieces: TextPieces<F>,
    sender: Sender<Option<String>>,
}

impl TextIteratorStreamer {
    /// The streamer to give to `generate`, and the texts. The iterator ends with the answer, or when no text comes for
    /// `timeout`.
    pub fn new(
        tokenizer: &AutoTokenizer,
        timeout: Option<Duration>,
    ) -> (TextSender<impl FnMut(&str) -> Result<()> + Send>, Self) {
        let (sender, texts) = channel();
        let own = sender.clone();
        let pieces = TextPieces::new(tokenizer, move |text: &str| {
            own.send(Some(text.to_owned()))
                .map_err(|_| crate::Error::Option("nobody reads the answer any more".to_owned()))
        });
        (TextSender { pieces, sender }, Self { texts, timeout })
    }
}

impl<F: FnMut(&str) -> Result<()>> TextSender<F> {
    /// Leaves the prompt out.
    #[must_use]
    pub fn skip_prompt(mut self) -> Self {
        self.pieces = self.pieces.skip_prompt();
        self
    }
}

impl<F: FnMut(&str) -> Result<()>> Streamer for TextSender<F> {
    fn on_token(&mut self, id: u32, is_prompt: bool) -> Result<()> {
        self.pieces.on_token(id, is_prompt)
    }

    fn end(&mut self) -> Result<()> {
        self.pieces.end()?;
        // Whoever has stopped reading has no use for the end.
        let _ = self.sender.send(None);
        Ok(())
    }
}

impl Iterator for TextIteratorStreamer {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.timeout {
            Some(timeout) => self.texts.recv_timeout(timeout).ok()?,
            None => self.texts.recv().ok()?,
        }
    }
}
