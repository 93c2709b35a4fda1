//! A tokenizer with its chat template, behind transformers' names.

use std::sync::Arc;

use gruff_gguf::Metadata;
use gruff_text::chat::{ChatTemplate, Continuation, Message, RenderInput, TemplateError};
use gruff_text::{Detokenizer, EncodeOptions, Tokenizer};
use serde_json::{Map, Value};

use crate::{Checkpoint, FromCheckpoint, LoadOptions, Pretrained, Result};

/// The named template that is taken when tools are given, where a file has one.
const TOOL_TEMPLATE: &str = "tool_use";

/// A checkpoint's tokenizer and chat template.
#[derive(Clone)]
pub struct AutoTokenizer {
    tokenizer: Tokenizer,
    template: Arc<Result<ChatTemplate, TemplateError>>,
    tool_template: Option<Arc<ChatTemplate>>,
}

/// How a conversation is rendered; the defaults are transformers'.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// Whether to end with the header of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether to end inside the last message, so that the model goes on with it.
    pub continue_final_message: bool,
    /// JSON schemas of the functions that the model may call.
    pub tools: Option<Vec<Value>>,
    /// Further variables of the template: `enable_thinking`, `reasoning_effort`, …
    pub variables: Map<String, Value>,
}

impl ChatOptions {
    /// For a conversation that the model shall answer: `add_generation_prompt` on.
    pub fn prompt() -> Self {
        Self { add_generation_prompt: true, ..Self::default() }
    }

    /// Sets a variable of the template.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }
}

impl AutoTokenizer {
    /// Starts loading a tokenizer by name. Weights are not read.
    pub fn from_pretrained(id: impl Into<String>) -> Pretrained<Self> {
        Pretrained::new(id)
    }

    fn new(tokenizer: Tokenizer, metadata: &Metadata) -> Self {
        let template = Arc::new(ChatTemplate::from_metadata(metadata));
        let tool_template = ChatTemplate::from_metadata_named(metadata, TOOL_TEMPLATE).ok().map(Arc::new);
        Self { tokenizer, template, tool_template }
    }

    /// The tokenizer beneath: ids, special tokens, options.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template.
    ///
    /// # Errors
    /// [`crate::Error::Template`] when the file has none, or one that cannot be compiled.
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        match &*self.template {
            Ok(template) => Ok(template),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// The same tokenizer with another chat template.
    #[must_use]
    pub fn with_chat_template(mut self, template: ChatTemplate) -> Self {
        self.template = Arc::new(Ok(template));
        self.tool_template = None;
        self
    }

    /// Ids of a prompt: special tokens written in it are parsed, and the ones that the model wants at its
    /// beginning or end are added.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] for a text that the vocabulary cannot express or that is too long.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, EncodeOptions::PROMPT)?)
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.tokenizer.decode(ids, skip_special_tokens)
    }

    /// A detokenizer for ids that arrive one by one.
    pub fn detokenizer(&self, skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::new(&self.tokenizer, skip_special_tokens)
    }

    /// The text that a conversation becomes.
    ///
    /// # Errors
    /// [`crate::Error::Template`] when there is no template or it refuses the messages.
    pub fn render_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let template = match (&self.tool_template, &options.tools) {
            (Some(template), Some(_)) => template,
            _ => self.chat_template()?,
        };
        let text = |id: Option<u32>| id.and_then(|id| self.tokenizer.id_to_token(id));
        let (bos, eos) = (text(self.tokenizer.bos()), text(self.tokenizer.eos()));
        let rendered = template.render(&RenderInput {
            messages,
            tools: options.tools.as_deref(),
            add_generation_prompt: options.add_generation_prompt,
            continue_final_message: match options.continue_final_message {
                true => Continuation::Field("content"),
                false => Continuation::None,
            },
            bos_token: bos.as_deref(),
            eos_token: eos.as_deref(),
            variables: options.variables.clone(),
            ..RenderInput::default()
        })?;
        Ok(rendered.text)
    }

    /// The ids that a conversation becomes. The template writes the special tokens itself, so none are added.
    ///
    /// # Errors
    /// As [`render_chat`](Self::render_chat) and [`encode`](Self::encode).
    pub fn apply_chat_template(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>> {
        let text = self.render_chat(messages, options)?;
        let as_written = EncodeOptions { add_special: false, parse_special: true };
        Ok(self.tokenizer.encode(&text, as_written)?)
    }
}

impl FromCheckpoint for AutoTokenizer {
    fn from_checkpoint(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        Ok(Self::new(checkpoint.tokenizer(options)?, checkpoint.gguf().metadata()))
    }
}
