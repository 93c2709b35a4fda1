//! The server: routes, and how it starts and stops.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use gruff::floors::engine::{Engine, EngineOptions};
use gruff::floors::text::chat::OutputFormat;
use gruff::{AutoModelForCausalLM, AutoTokenizer, MemoryPlan};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::access::{Access, guard};
use crate::api_error::ApiError;
use crate::engine_thread::EngineThread;
use crate::service::{Description, Service};
use crate::{Error, ServerOptions, anthropic, ids, native, openai};

/// A model, ready to be served.
pub struct Server {
    service: Arc<Service>,
    memory: MemoryPlan,
}

/// Every route as metrics name it; one that ends with a slash stands for what lies under it.
const ROUTES: [&str; 12] = [
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// The name in metrics of a path: what does not exist is counted together.
pub(crate) fn route(path: &str) -> &'static str {
    let is = |route: &&str| path == *route || (route.ends_with('/') && path.starts_with(*route));
    ROUTES.into_iter().find(is).unwrap_or("other")
}

impl Server {
    /// Takes a model's memory and starts the thread that computes.
    ///
    /// # Errors
    /// [`Error::Model`] when the model with its caches does not fit.
    pub fn new(
        model: Arc<AutoModelForCausalLM>,
        tokenizer: AutoTokenizer,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        let engine_options =
            EngineOptions { max_sequences: options.max_sequences, ..model.engine_options().clone() };
        let engine = Engine::new(model.model().clone(), engine_options).map_err(gruff::Error::from)?;
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
        let format = tokenizer.chat_template().map(OutputFormat::of).unwrap_or_default();
        let service = Service {
            format,
            tokenizer,
            generation_config: model.generation_config().clone(),
            end_tokens: model.end_tokens().into(),
            model,
            description,
            engine: EngineThread::start(engine)?,
            places: Arc::new(Semaphore::new(Service::places(&options))),
            metrics: Arc::default(),
            responses: openai::responses::Store::default(),
            created: ids::now(),
            options,
        };
        Ok(Self { service: Arc::new(service), memory })
    }

    /// Where memory goes.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Serves until `stop` is ready; then takes no more requests and returns when those in progress are answered.
    ///
    /// # Errors
    /// [`Error::Io`] when the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let loopback = listener.local_addr()?.ip().is_loopback();
        axum::serve(listener, self.router(loopback)).with_graceful_shutdown(stop).await?;
        Ok(())
    }

    fn router(&self, loopback: bool) -> Router {
        let access = Access::new(self.service.clone(), loopback);
        Router::new()
            .route("/health", get(native::health))
            .route("/metrics", get(native::metrics))
            .route("/v1/models", get(openai::models::list))
            .route("/v1/models/{*id}", get(openai::models::one))
            .route("/v1/chat/completions", post(openai::chat::create))
            .route("/v1/completions", post(openai::completions::create))
            .route("/v1/responses", post(openai::responses::create))
            .route("/v1/messages", post(anthropic::create))
            .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
            .route("/tokenize", post(native::tokenize))
            .route("/detokenize", post(native::detokenize))
            .route("/apply-template", post(native::apply_template))
            .fallback(async || {
                ApiError::status(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "there is nothing here; see `gruff serve --help`",
                )
            })
            .method_not_allowed_fallback(async || {
                let message =
                    "this address wants another method: GET for what is, POST for what is to be made";
                ApiError::status(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
            })
            .with_state(self.service.clone())
            .layer(axum::middleware::from_fn_with_state(access, guard))
    }
}
