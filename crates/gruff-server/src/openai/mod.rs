//! Endpoints of OpenAI's API.

pub(crate) mod chat;
pub(crate) mod completions;
mod envelope;
pub(crate) mod models;
pub(crate) mod responses;

use serde::Deserialize;
use serde_json::Value;

use crate::api_error::ApiError;

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk tells the usage.
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// Refuses a tier that this server does not have.
fn check_service_tier(tier: Option<&str>) -> Result<(), ApiError> {
    match tier {
        None | Some("auto" | "default") => Ok(()),
        Some(_) => Err(ApiError::unsupported("service_tier", "there is one tier; leave `service_tier` out")),
    }
}

/// Refuses to make a model call a tool.
fn check_tool_choice(choice: Option<&Value>) -> Result<(), ApiError> {
    match choice {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(choice)) if choice == "auto" || choice == "none" => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "tool_choice",
            "this build of gruff cannot make a model call a tool; `tool_choice` is \"auto\" or \"none\"",
        )),
    }
}
