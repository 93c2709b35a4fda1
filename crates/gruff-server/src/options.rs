//! What a server is told at its start.

use std::time::Duration;

use gruff::floors::text::chat::ReasoningMode;
use serde_json::{Map, Value};

/// Choices for a server. The defaults fit one person's machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The model's id in requests and answers.
    pub model_id: String,
    /// Keys of which a request must show one; empty for none.
    pub api_keys: Vec<String>,
    /// Answers in progress at once.
    pub max_sequences: usize,
    /// Answers that may wait beyond those; further requests are told to come again.
    pub queue: usize,
    /// How long a request may take; `None` for as long as it does.
    pub timeout: Option<Duration>,
    /// Origins whose pages may use the server from a browser; `*` for all, empty for none.
    pub cors: Vec<String>,
    /// Whether the model is asked to reason, where a request does not say.
    pub reasoning: ReasoningMode,
    /// Variables of the chat template, where a request does not set them.
    pub template_variables: Map<String, Value>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            model_id: gruff::BUNDLED.to_owned(),
            api_keys: Vec::new(),
            max_sequences: 8,
            queue: 64,
            timeout: None,
            cors: Vec::new(),
            reasoning: ReasoningMode::Auto,
            template_variables: Map::new(),
        }
    }
}
