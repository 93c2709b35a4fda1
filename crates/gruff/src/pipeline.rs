//! Tokenizer and model as one function, as transformers' pipelines.

use std::sync::Arc;

use gruff_text::Detokenizer;
use gruff_text::chat::Message;

use crate::{
    AutoModelForCausalLM, AutoTokenizer, ChatOptions, Error, FinishReason, FromCheckpoint, GenerationConfig,
    LoadOptions, Pretrained, Result, Usage,
};

/// Texts or conversations in, generated texts out.
///
/// ```no_run
/// use gruff::{GenerationConfig, Message, pipeline};
///
/// let generator = pipeline("text-generation", "unsloth/Qwen3.5-4B-GGUF:Q4_K_M")?;
/// let config = GenerationConfig { max_new_tokens: Some(64), ..Default::default() };
/// let answers = generator.generate("The capital of France is", &config)?;
/// println!("{}", answers[0][0].generated_text.text());
/// let answers = generator.generate(vec![Message::user("Why is the sky blue?")], &config)?;
/// println!("{}", answers[0][0].generated_text.text());
/// # Ok::<(), gruff::Error>(())
/// ```
#[derive(Clone)]
pub struct TextGenerationPipeline {
    tokenizer: AutoTokenizer,
    model: Arc<AutoModelForCausalLM>,
    options: PipelineOptions,
}

/// How inputs are read and what comes back.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Whether the input comes back before what was generated: the text, or the conversation's messages.
    pub return_full_text: bool,
    /// Whether a conversation's last message is gone on with, instead of answered; `None`: where it is the assistant's.
    pub continue_final_message: Option<bool>,
    /// Tools and variables of the chat template.
    pub chat: ChatOptions,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self { return_full_text: true, continue_final_message: None, chat: ChatOptions::default() }
    }
}

/// One input of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineInput {
    /// A text to go on with.
    Text(String),
    /// A conversation to answer.
    Chat(Vec<Message>),
}

/// Inputs of a pipeline: one, or a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineInputs(pub Vec<PipelineInput>);

impl From<&str> for PipelineInputs {
    fn from(text: &str) -> Self {
        Self(vec![PipelineInput::Text(text.to_owned())])
    }
}

impl From<String> for PipelineInputs {
    fn from(text: String) -> Self {
        Self(vec![PipelineInput::Text(text)])
    }
}

impl From<Vec<&str>> for PipelineInputs {
    fn from(texts: Vec<&str>) -> Self {
        Self(texts.into_iter().map(|text| PipelineInput::Text(text.to_owned())).collect())
    }
}

impl From<Vec<String>> for PipelineInputs {
    fn from(texts: Vec<String>) -> Self {
        Self(texts.into_iter().map(PipelineInput::Text).collect())
    }
}

impl From<Vec<Message>> for PipelineInputs {
    fn from(messages: Vec<Message>) -> Self {
        Self(vec![PipelineInput::Chat(messages)])
    }
}

impl From<Vec<Vec<Message>>> for PipelineInputs {
    fn from(conversations: Vec<Vec<Message>>) -> Self {
        Self(conversations.into_iter().map(PipelineInput::Chat).collect())
    }
}

impl From<Vec<PipelineInput>> for PipelineInputs {
    fn from(inputs: Vec<PipelineInput>) -> Self {
        Self(inputs)
    }
}

/// What a pipeline made of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// transformers' `generated_text`.
    pub generated_text: GeneratedText,
    /// The ids that were generated.
    pub token_ids: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
}

/// A text, or a conversation with its answer.
#[derive(Clone, Debug, PartialEq)]
pub enum GeneratedText {
    /// Of a text, and of a conversation without `return_full_text`.
    Text(String),
    /// Of a conversation: all messages, the last of them the answer.
    Chat(Vec<Message>),
}

impl GeneratedText {
    /// The text; of a conversation, its last message's.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Chat(messages) => messages.last().map(Message::text).unwrap_or_default(),
        }
    }
}

/// A pipeline for `task`, which is `text-generation`, with the model called `id`.
///
/// # Errors
/// [`Error::Option`] for another task, and whatever loading a model may say.
pub fn pipeline(task: &str, id: impl Into<String>) -> Result<TextGenerationPipeline> {
    if task != "text-generation" {
        return Err(Error::Option(format!(
            "the task {task:?} is not one of gruff's pipelines; there is \"text-generation\" (for embeddings: \
             AutoModelForCausalLM::embed)"
        )));
    }
    Pretrained::new(id).load()
}

impl FromCheckpoint for TextGenerationPipeline {
    fn from_checkpoint(checkpoint: &crate::Checkpoint, options: &LoadOptions) -> Result<Self> {
        let tokenizer = AutoTokenizer::from_checkpoint(checkpoint, options)?;
        Ok(Self::new(tokenizer, Arc::new(AutoModelForCausalLM::from_checkpoint(checkpoint, options)?)))
    }
}

impl TextGenerationPipeline {
    /// Of parts that are loaded already.
    pub fn new(tokenizer: AutoTokenizer, model: Arc<AutoModelForCausalLM>) -> Self {
        Self { tokenizer, model, options: PipelineOptions::default() }
    }

    /// The same pipeline with other options.
    #[must_use]
    pub fn options(mut self, options: PipelineOptions) -> Self {
        self.options = options;
        self
    }

    /// Its model.
    pub fn model(&self) -> &AutoModelForCausalLM {
        &self.model
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &AutoTokenizer {
        &self.tokenizer
    }

    /// Goes on with every text and answers every conversation, all in one batch. For each input there are as many
    /// results as sequences were asked for.
    ///
    /// # Errors
    /// As [`AutoTokenizer::apply_chat_template`] and [`AutoModelForCausalLM::generate`].
    pub fn generate(
        &self,
        inputs: impl Into<PipelineInputs>,
        config: &GenerationConfig,
    ) -> Result<Vec<Vec<Generated>>> {
        let PipelineInputs(inputs) = inputs.into();
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let prompts = inputs.iter().map(|input| self.prompt(input)).collect::<Result<Vec<_>>>()?;
        let output = self.model.generate(prompts, config)?;
        let each = (output.sequences.len() / inputs.len()).max(1);
        let generated = (0..output.sequences.len()).map(|index| {
            let ids = output.new_tokens(index).to_vec();
            Generated {
                generated_text: self.text(&inputs[index / each], &ids),
                token_ids: ids,
                finish_reason: output.finish_reasons[index],
                usage: output.usage[index],
            }
        });
        let mut generated = generated.collect::<Vec<_>>().into_iter();
        Ok(inputs.iter().map(|_| generated.by_ref().take(each).collect()).collect())
    }

    fn prompt(&self, input: &PipelineInput) -> Result<Vec<u32>> {
        let messages = match input {
            PipelineInput::Text(text) => return self.tokenizer.encode(text),
            PipelineInput::Chat(messages) => messages,
        };
        let continues = self.continues(messages);
        let chat = ChatOptions {
            add_generation_prompt: !continues,
            continue_final_message: continues,
            ..self.options.chat.clone()
        };
        self.tokenizer.apply_chat_template(messages, &chat)
    }

    /// Whether the last message is gone on with.
    fn continues(&self, messages: &[Message]) -> bool {
        let assistant = || messages.last().is_some_and(|message| message.role() == Some("assistant"));
        self.options.continue_final_message.unwrap_or_else(assistant)
    }

    /// What comes back for an input and the ids generated for it.
    fn text(&self, input: &PipelineInput, ids: &[u32]) -> GeneratedText {
        let mut detokenizer = Detokenizer::new(self.tokenizer.tokenizer(), true).continuing();
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
        text.push_str(detokenizer.finish());
        match input {
            PipelineInput::Text(prompt) if self.options.return_full_text => {
                GeneratedText::Text(prompt.clone() + &text)
            }
            PipelineInput::Chat(messages) if self.options.return_full_text => {
                let mut messages = messages.clone();
                if self.continues(&messages) {
                    let begun = messages.pop().map(|message| message.text()).unwrap_or_default();
                    messages.push(Message::assistant(begun + &text));
                } else {
                    messages.push(Message::assistant(text));
                }
                GeneratedText::Chat(messages)
            }
            _ => GeneratedText::Text(text),
        }
    }
}
