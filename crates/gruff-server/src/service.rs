//! One model being served: its text side, its engine.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use gruff::floors::engine::{Checker, Engine, EngineOptions, Request};
use gruff::floors::text::chat::OutputFormat;
use gruff::{AutoModelForCausalLM, AutoTokenizer, GenerateOptions, GenerationConfig, MemoryPlan};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;

use crate::answer::{Generation, Progress};
use crate::api_error::ApiError;
use crate::background;
use crate::client::Client;
use crate::engine_thread::{EngineThread, Job};
use crate::ids;
use crate::limits::MAX_CHOICES;
use crate::metrics::Metrics;
use crate::openai::responses::Store;
use crate::queue::Queue;
use crate::request_log::Record;
use crate::same_files::SameFiles;
use crate::{Error, ServedModel, ServerOptions};

/// A model, ready to answer.
pub(crate) struct Service {
    /// What answers call it.
    pub(crate) id: String,
    /// What else requests may call it.
    pub(crate) names: Vec<String>,
    /// What it was read from, where that is known.
    pub(crate) files: Option<SameFiles>,
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) model: Arc<AutoModelForCausalLM>,
    pub(crate) tokenizer: AutoTokenizer,
    pub(crate) format: OutputFormat,
    pub(crate) generation_config: GenerationConfig,
    pub(crate) end_tokens: Arc<[u32]>,
    pub(crate) description: Description,
    pub(crate) memory: MemoryPlan,
    pub(crate) engine: EngineThread,
    checker: Checker,
    pub(crate) queue: Queue,
    /// Whose texts are being embedded.
    pub(crate) embedding: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    /// Conversations that may be continued by an answer's id.
    pub(crate) responses: Arc<Store>,
    /// Seconds since 1970 when it was ready.
    pub(crate) created: u64,
}

/// What all models of a server share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) responses: Arc<Store>,
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
    /// Takes a model's memory and starts the thread that computes.
    ///
    /// # Errors
    /// [`Error::Model`] when the model with its caches does not fit.
    pub(crate) fn start(served: ServedModel, options: EngineOptions, shared: &Shared) -> Result<Self, Error> {
        let ServedModel { id, names, files, model, tokenizer } = served;
        // Numbers that nobody can guess are for servers whose answers may differ.
        let seed = options.deterministic.then_some(0);
        let generation_config = GenerationConfig { seed, ..model.generation_config().clone() };
        let engine = Engine::new(model.model().clone(), options).map_err(gruff::Error::from)?;
        let memory = engine.memory().clone();
        let config = model.model().config();
        let description = Description {
            architecture: config.architecture.clone(),
            parameters: config.num_parameters,
            vocabulary: config.vocab_size,
            context: memory.context,
            context_trained: config.max_position_embeddings,
            bytes: config.weight_bytes,
        };
        Ok(Self {
            id,
            names,
            files,
            format: tokenizer.chat_template().map(OutputFormat::of).unwrap_or_default(),
            tokenizer,
            generation_config,
            end_tokens: model.end_tokens().into(),
            model,
            description,
            memory,
            checker: engine.checker(),
            engine: EngineThread::start(engine, shared.metrics.clone())?,
            queue: Queue::new(Self::places(&shared.options)),
            embedding: Arc::new(Semaphore::new(1)),
            options: shared.options.clone(),
            metrics: shared.metrics.clone(),
            responses: shared.responses.clone(),
            created: ids::now(),
        })
    }

    pub(crate) fn places(options: &ServerOptions) -> usize {
        options.max_sequences.saturating_add(options.queue).max(1)
    }

    /// Answers that are being generated or wait for it.
    pub(crate) fn in_progress(&self) -> usize {
        self.queue.taken()
    }

    /// Whether a request's `model` means this one.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.id == name || self.names.iter().any(|other| other == name)
    }

    /// The engine's requests for prompts, each to be answered `n` times: answer number `i` of prompt number `p` is
    /// request `p * n + i`. What the engine
    /// would refuse is refused here, before a response has begun. Grammars are compiled here, which may take a while: not for a thread that serves others.
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
        each.iter()
            .try_for_each(|request| self.checker.check(request))
            .map_err(|error| ApiError::engine(&error))?;
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
    pub(crate) fn begin(self: &Arc<Self>, requests: Vec<Request>) -> Result<Generation, ApiError> {
        let choices = requests.len();
        let begins =
            |request: &Request| Progress { prompt_tokens: request.prompt.len(), tokens: 0, ended: false };
        let progress = requests.iter().map(begins).collect();
        let client = Client::current();
        let places = self.queue.take(client, choices)?;
        let (sender, updates) = unbounded_channel();
        let cancelled: Vec<Arc<AtomicBool>> = (0..choices).map(|_| Arc::default()).collect();
        let answers = requests.into_iter().zip(&cancelled).zip(places);
        for (choice, ((request, flag), place)) in answers.enumerate() {
            let request = Request { client: client.0, ..request };
            let (updates, cancelled, place) = (sender.clone(), flag.clone(), Some(place));
            self.engine.submit(Job { request, choice, updates, cancelled, place })?;
        }
        let started = Instant::now();
        let record = Record::current();
        record.model(&self.id);
        Ok(Generation {
            updates,
            progress,
            cancelled,
            deadline: background::deadline(),
            started,
            record,
            metrics: self.metrics.clone(),
            _service: self.clone(),
        })
    }

    /// A response's id.
    pub(crate) fn new_id(prefix: &str) -> String {
        ids::id(prefix)
    }
}
