//! What all endpoints share: the model's text side, the engine, counters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use axum::http::StatusCode;
use gruff::floors::text::chat::OutputFormat;
use gruff::{AutoTokenizer, GenerationConfig};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;

use crate::ServerOptions;
use crate::answer::Generation;
use crate::api_error::ApiError;
use crate::engine_thread::{EngineThread, Job};
use crate::ids;
use crate::limits::MAX_CHOICES;
use crate::metrics::Metrics;
use crate::openai::responses::Store;

/// The server's state.
pub(crate) struct Service {
    pub(crate) options: ServerOptions,
    pub(crate) tokenizer: AutoTokenizer,
    pub(crate) format: OutputFormat,
    pub(crate) generation_config: GenerationConfig,
    pub(crate) end_tokens: Arc<[u32]>,
    pub(crate) description: Description,
    pub(crate) engine: EngineThread,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    /// Conversations that may be continued by an answer's id.
    pub(crate) responses: Store,
    /// Seconds since 1970 at the start.
    pub(crate) created: u64,
}

/// What `/v1/models` says of the model.
pub(crate) struct Description {
    pub(crate) architecture: String,
    pub(crate) parameters: u64,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) context_trained: usize,
    pub(crate) bytes: u64,
}

impl Service {
    pub(crate) fn places(options: &ServerOptions) -> usize {
        options.max_sequences.saturating_add(options.queue).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// Answers that are being generated or wait for it.
    pub(crate) fn in_progress(&self) -> usize {
        Self::places(&self.options).saturating_sub(self.places.available_permits())
    }

    /// Refuses a model that this server does not have.
    pub(crate) fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(model) if model != self.options.model_id => Err(ApiError {
                param: Some("model".to_owned()),
                ..ApiError::status(
                    StatusCode::NOT_FOUND,
                    "model_not_found",
                    format!("the model `{}` is served here; ask for that", self.options.model_id),
                )
            }),
            _ => Ok(()),
        }
    }

    /// Hands prompts to the engine, each to be answered `n` times. Answer number `i` of prompt number `p` is choice
    /// `p * n + i`.
    pub(crate) fn begin(
        &self,
        prompts: &[Vec<u32>],
        n: usize,
        config: &GenerationConfig,
    ) -> Result<Generation, ApiError> {
        let choices = prompts.len().saturating_mul(n);
        if choices == 0 || choices > MAX_CHOICES || choices > Self::places(&self.options) {
            let most = MAX_CHOICES.min(Self::places(&self.options));
            return Err(ApiError::field(
                "n",
                format!("{choices} answers to one request; from 1 to {most} are possible"),
            ));
        }
        let Ok(permit) = self.places.clone().try_acquire_many_owned(choices as u32) else {
            return Err(ApiError::status(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                "the server has as many requests as it can hold; come again",
            ));
        };
        let (sender, updates) = unbounded_channel();
        let cancelled: Vec<Arc<AtomicBool>> = (0..choices).map(|_| Arc::default()).collect();
        for (choice, flag) in cancelled.iter().enumerate() {
            let Some(prompt) = prompts.get(choice / n.max(1)) else { continue };
            self.engine.submit(Job {
                request: config.request(prompt.clone(), choice, &self.end_tokens),
                choice,
                updates: sender.clone(),
                cancelled: flag.clone(),
            })?;
        }
        let started = Instant::now();
        Ok(Generation {
            updates,
            begun: vec![false; choices],
            cancelled,
            deadline: self.options.timeout.map(|timeout| started + timeout),
            started,
            metrics: self.metrics.clone(),
            _permit: permit,
        })
    }

    /// A response's id.
    pub(crate) fn new_id(prefix: &str) -> String {
        ids::id(prefix)
    }
}
