//! What a server is told at its start.

use std::sync::Arc;
use std::time::Duration;

use gruff::AutoModelForCausalLM;
use gruff::floors::engine::{EngineOptions, PrefixCacheFolder};
use gruff::floors::text::chat::ReasoningMode;
use serde_json::{Map, Value};

use crate::Library;
use crate::connection::Patience;

/// Choices for a server. The defaults fit one person's machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Keys of which a request must show one; empty for none.
    pub api_keys: Vec<String>,
    /// Memory that all models may use together, in bytes; `None` for what the system has available.
    pub memory: Option<u64>,
    /// Models that are loaded when requests name them.
    pub library: Option<Arc<Library>>,
    /// How long nobody may use a model of the library before it is unloaded; `None` for ever.
    pub model_timeout: Option<Duration>,
    /// Answers of a model in progress at once.
    pub max_sequences: usize,
    /// Bytes of what was computed for earlier requests that each model keeps, as
    /// [`EngineOptions::prefix_cache`](gruff::floors::engine::EngineOptions::prefix_cache).
    pub prefix_cache: Option<u64>,
    /// Answers that may wait beyond those; further requests are told to come again.
    pub queue: usize,
    /// How long a request may take; `None` for as long as it does.
    pub timeout: Option<Duration>,
    /// Connections at once; further ones wait to be accepted.
    pub connections: usize,
    /// How long a request's head may take to arrive, and a connection may be idle.
    pub head_timeout: Duration,
    /// How long a request's body may take to arrive.
    pub body_timeout: Duration,
    /// How long a reader may take nothing of what is sent to it before it is given up.
    pub reader_timeout: Duration,
    /// Where what was computed is written to, when there is nothing else to do and at the end, and read from.
    pub prefix_cache_folder: Option<PrefixCacheFolder>,
    /// Origins whose pages may use the server from a browser; `*` for all, empty for none.
    pub cors: Vec<String>,
    /// Whether the model is asked to reason, where a request does not say.
    pub reasoning: ReasoningMode,
    /// Tokens that an answer may reason with, where a request does not say; `None` for as many as it likes.
    pub reasoning_budget: Option<usize>,
    /// Variables of the chat template, where a request does not set them.
    pub template_variables: Map<String, Value>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            memory: None,
            library: None,
            model_timeout: None,
            max_sequences: 8,
            prefix_cache: None,
            queue: 64,
            timeout: None,
            connections: 1024,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            reader_timeout: Duration::from_secs(60),
            prefix_cache_folder: None,
            cors: Vec::new(),
            reasoning: ReasoningMode::Auto,
            reasoning_budget: None,
            template_variables: Map::new(),
        }
    }
}

impl ServerOptions {
    pub(crate) fn patience(&self) -> Patience {
        Patience { connections: self.connections, head: self.head_timeout, reader: self.reader_timeout }
    }

    /// What a model's engine is made with; it may use the memory that the model may.
    pub(crate) fn engine(&self, model: &AutoModelForCausalLM) -> EngineOptions {
        EngineOptions {
            max_sequences: self.max_sequences,
            prefix_cache_folder: self.prefix_cache_folder.clone(),
            prefix_cache: self.prefix_cache,
            ..model.engine_options().clone()
        }
    }
}
