//! How much a request may ask for.

use std::time::Duration;

/// Bytes of a body: an agent's tools and a long history, with room.
pub(crate) const MAX_BODY: usize = 32 << 20;

/// Bytes of a body above which it is not read on a thread that serves others.
pub(crate) const LARGE_BODY: usize = 256 << 10;

/// Values in a body: each takes many times the bytes in memory that it has in the body.
pub(crate) const MAX_VALUES: usize = 1 << 20;

/// Bytes of a request's line and headers (what one more read brings, as many again at most, is not held against it), and
/// how many headers.
pub(crate) const MAX_HEAD: usize = 64 << 10;
pub(crate) const MAX_HEADERS: usize = 100;

/// Bytes of the bodies that are being read at once, of all requests.
pub(crate) const MAX_BODIES: usize = 256 << 20;

/// How long a request waits for others to be prepared: read, rendered, turned into tokens, embedded.
pub(crate) const PREPARING_PATIENCE: Duration = Duration::from_secs(30);

/// Token ids of a text that are turned into text, or told with the text of each.
pub(crate) const MAX_IDS: usize = 1_000_000;

/// Bytes of the text that ids may become.
pub(crate) const MAX_TEXT: usize = 16 << 20;

/// Answers to one request (prompts times `n`).
pub(crate) const MAX_CHOICES: usize = 64;

/// Messages of a conversation.
pub(crate) const MAX_MESSAGES: usize = 10_000;

/// Tools of a request.
pub(crate) const MAX_TOOLS: usize = 1_024;

/// Texts to embed in a request, as in OpenAI's API.
pub(crate) const MAX_EMBEDDINGS: usize = 2_048;

/// The most likely tokens that are told in a token's place.
pub(crate) const MAX_LOGPROBS: usize = 20;

/// Stop strings of a request, and bytes of each.
pub(crate) const MAX_STOPS: usize = 16;
pub(crate) const MAX_STOP_BYTES: usize = 1_024;

/// How often a silent stream says that it is alive.
pub(crate) const PING: Duration = Duration::from_secs(15);
