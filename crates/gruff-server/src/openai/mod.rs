//! Endpoints of OpenAI's API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod envelope;
pub(crate) mod models;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tool_choice;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::api_error::ApiError;

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk tells the usage.
    #[serde(default)]
    pub(crate) include_usage: bool,
    /// Whether chunks are padded, to hide their sizes; they are not.
    include_obfuscation: Option<bool>,
}

impl StreamOptions {
    /// Refuses what cannot be honoured.
    fn check(self) -> Result<(), ApiError> {
        match self.include_obfuscation {
            Some(true) => Err(ApiError::unsupported(
                "stream_options.include_obfuscation",
                "nothing is added to streams here; leave `include_obfuscation` out",
            )),
            _ => Ok(()),
        }
    }
}

/// Refuses what is not text, a length that models here are not asked for, and a cache that outlives the server's.
fn check_defaults(
    modalities: Option<&[String]>,
    verbosity: Option<&str>,
    retention: Option<&str>,
) -> Result<(), ApiError> {
    if modalities.is_some_and(|modalities| modalities != ["text"]) {
        return Err(ApiError::unsupported("modalities", "answers are text; leave `modalities` out"));
    }
    if verbosity.is_some_and(|verbosity| verbosity != "medium") {
        return Err(ApiError::unsupported("verbosity", "models here know no `verbosity`; leave it out"));
    }
    if retention.is_some_and(|retention| !matches!(retention, "in_memory" | "in-memory")) {
        let message =
            "prompts are kept in memory, as long as there is room; leave `prompt_cache_retention` out";
        return Err(ApiError::unsupported("prompt_cache_retention", message));
    }
    Ok(())
}

/// Refuses a tier that this server does not have.
fn check_service_tier(tier: Option<&str>) -> Result<(), ApiError> {
    match tier {
        None | Some("auto" | "default") => Ok(()),
        Some(_) => Err(ApiError::unsupported("service_tier", "there is one tier; leave `service_tier` out")),
    }
}
