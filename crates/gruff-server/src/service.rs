//! What all endpoints share: the model's text side, the engine, counters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use axum::http::StatusCode;
use gruff::floors::engine::Request;
use gruff::floors::text::chat::OutputFormat;
use gruff::{AutoModelForCausalLM, AutoTokenizer, GenerateOptions, GenerationConfig};
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
    pub(crate) model: Arc<AutoModelForCausalLM>,
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

    /// The engine's requests for prompts, each to be answered `n` times: answer number `i` of prompt number `p` is
    /// request `p * n + i`. Grammars are compiled here, which may take a while: not for a thread that serves others.
    pub(crate) fn requests(
        &self,
        prompts: &[Vec<u32>],
        n: usize,
        config: &GenerationConfig,
    ) -> Result<Vec<Request>, ApiError> {
        let choices = prompts.len().saturating_mul(n);
        let most = MAX_CHOICES.min(Self::places(&self.options));
        if choices == 0 || choices > most {
            let message = format!("{choices} answers to one request; from 1 to {most} are possible");
            return Err(ApiError::field("n", message));
        }
        let each = self.model.requests(prompts, config, &GenerateOptions::default())?;
        let seed = config.seed.unwrap_or(0);
        let answers = each.iter().flat_map(|request| std::iter::repeat_n(request, n)).enumerate();
        let numbered = answers.map(|(choice, request)| {
            let mut request = request.clone();
            request.sampling.seed = seed.wrapping_add(choice as u64);
            request
        });
        Ok(numbered.collect())
    }

    /// Hands requests to the engine.
    pub(crate) fn begin(&self, requests: Vec<Request>) -> Result<Generation, ApiError> {
        let choices = requests.len();
        let Ok(permit) = self.places.clone().try_acquire_many_owned(choices as u32) else {
            return Err(ApiError::status(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                "the server has as many requests as it can hold; come again",
            ));
        };
        let (sender, updates) = unbounded_channel();
        let cancelled: Vec<Arc<AtomicBool>> = (0..choices).map(|_| Arc::default()).collect();
        for (choice, (request, flag)) in requests.into_iter().zip(&cancelled).enumerate() {
            self.engine.submit(Job { request, choice, updates: sender.clone(), cancelled: flag.clone() })?;
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
