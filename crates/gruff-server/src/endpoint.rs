//! The table of endpoints: what the router serves, what metrics count, what the OpenAPI document tells.

use std::sync::{Arc, LazyLock};

use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use schemars::JsonSchema;

use crate::openapi::{SchemaOf, schema_of};
use crate::registry::Registry;
use crate::{anthropic, native, openai, tokens};

/// JSON, as most answers are.
const JSON: &str = "application/json";

/// What can be asked under one path.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// As the router writes it.
    pub(crate) path: &'static str,
    /// What it does, for readers of the document.
    pub(crate) about: &'static str,
    /// The schema of the request's body.
    pub(crate) request: Option<SchemaOf>,
    /// The media type of its answer.
    pub(crate) answer: &'static str,
    pub(crate) handler: MethodRouter<Arc<Registry>>,
}

impl Endpoint {
    /// One that tells something.
    fn get(path: &'static str, about: &'static str, handler: MethodRouter<Arc<Registry>>) -> Self {
        Self { method: Method::GET, path, about, request: None, answer: JSON, handler }
    }

    /// One that is asked something: an `R`.
    fn post<R: JsonSchema>(
        path: &'static str,
        about: &'static str,
        handler: MethodRouter<Arc<Registry>>,
    ) -> Self {
        Self { method: Method::POST, path, about, request: Some(schema_of::<R>), answer: JSON, handler }
    }
}

/// Every endpoint.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/health", "Whether the server answers", get(native::health)),
        Endpoint {
            answer: "text/plain",
            ..Endpoint::get(
                "/metrics",
                "Counters, gauges and histograms for Prometheus",
                get(native::metrics),
            )
        },
        Endpoint::get("/openapi.json", "This document", get(native::openapi)),
        Endpoint::get("/v1/models", "The models that can be asked for", get(openai::models::list)),
        Endpoint::get("/v1/models/{*id}", "One of them", get(openai::models::one)),
        Endpoint::post::<openai::chat::ChatRequest>(
            "/v1/chat/completions",
            "Answers a conversation",
            post(openai::chat::create),
        ),
        Endpoint::post::<openai::completions::CompletionRequest>(
            "/v1/completions",
            "Continues texts",
            post(openai::completions::create),
        ),
        Endpoint::post::<openai::responses::ResponsesRequest>(
            "/v1/responses",
            "Answers items, or continues an earlier answer",
            post(openai::responses::create),
        ),
        Endpoint::post::<openai::embeddings::EmbeddingsRequest>(
            "/v1/embeddings",
            "Turns texts into vectors",
            post(openai::embeddings::create),
        ),
        Endpoint::post::<openai::rerank::RerankRequest>(
            "/v1/rerank",
            "Orders documents, where a model can",
            post(openai::rerank::create),
        ),
        Endpoint::post::<openai::rerank::RerankRequest>(
            "/rerank",
            "The same, under llama-server's name",
            post(openai::rerank::create),
        ),
        Endpoint::post::<anthropic::MessagesRequest>(
            "/v1/messages",
            "Answers a conversation, as Anthropic's API does",
            post(anthropic::create),
        ),
        Endpoint::post::<anthropic::MessagesRequest>(
            "/v1/messages/count_tokens",
            "Counts the tokens of a conversation",
            post(anthropic::count_tokens),
        ),
        Endpoint::post::<tokens::Tokenize>("/tokenize", "Turns text into token ids", post(tokens::tokenize)),
        Endpoint::get("/tokenizer_info", "Special tokens, context and chat template", get(tokens::info)),
        Endpoint::post::<tokens::Detokenize>(
            "/detokenize",
            "Turns token ids into text",
            post(tokens::detokenize),
        ),
        Endpoint::post::<native::ApplyTemplate>(
            "/apply-template",
            "Renders the prompt that a conversation becomes",
            post(native::apply_template),
        ),
    ]
}

/// The path of the endpoint that a request is for, as metrics and logs have it; what does not exist goes together.
pub(crate) fn route(path: &str) -> &'static str {
    static PATHS: LazyLock<Vec<&'static str>> =
        LazyLock::new(|| endpoints().iter().map(|endpoint| endpoint.path).collect());
    if crate::page::is_page(path) {
        return "/";
    }
    let is = |route: &&str| match route.split_once("{*") {
        Some((prefix, _)) => path.len() > prefix.len() && path.starts_with(prefix),
        None => path == *route,
    };
    PATHS.iter().copied().find(is).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_by_their_endpoints() {
        for (path, counted) in [
            ("/health", "/health"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/", "other"),
            ("/v1/models/owner/name:file.gguf", "/v1/models/{*id}"),
            ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
            ("/v1/nothing", "other"),
            ("/", "/"),
        ] {
            assert_eq!(route(path), counted, "{path}");
        }
    }
}
