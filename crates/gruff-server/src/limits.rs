//! How much a request may ask for.

use std::time::Duration;

/// Bytes of a body: an agent's tools and a long history, with room.
pub(crate) const MAX_BODY: usize = 32 << 20;

/// How long a body may take to arrive.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers to one request (prompts times `n`).
pub(crate) const MAX_CHOICES: usize = 64;

/// Messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 10_000;

/// Tools of a request.
pub(crate) const MAX_TOOLS: usize = 1_024;

/// Stop strings of a request, and bytes of each.
pub(crate) const MAX_STOPS: usize = 16;
pub(crate) const MAX_STOP_BYTES: usize = 1_024;

/// How often a silent stream says that it is alive.
pub(crate) const PING: Duration = Duration::from_secs(15);
