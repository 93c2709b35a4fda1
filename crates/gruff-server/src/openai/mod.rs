//! Endpoints of OpenAI's API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod models;
pub(crate) mod responses;

use serde::Deserialize;

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk tells the usage.
    #[serde(default)]
    pub(crate) include_usage: bool,
}
