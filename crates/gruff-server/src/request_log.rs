//! A line for each request: who, what, how much and how long, and nothing of what was said.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, StatusCode};
use gruff::Usage;

tokio::task_local! {
    /// The request that this task answers.
    static CURRENT: Arc<Record>;
}

/// What answering a request took, filled in while it is answered.
#[derive(Debug, Default)]
pub(crate) struct Record {
    model: OnceLock<String>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    /// Microseconds to the first token, and one more; 0 before.
    first_token: AtomicU64,
}

impl Record {
    /// That of the request that this task answers; one that nobody reads elsewhere.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT.try_with(Arc::clone).unwrap_or_default()
    }

    /// Answers a request whose record this is.
    pub(crate) async fn scope<T>(self: Arc<Self>, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(self, answer).await
    }

    pub(crate) fn model(&self, id: &str) {
        self.model.get_or_init(|| id.to_owned());
    }

    /// The first token of an answer has come.
    pub(crate) fn first_token(&self, prompt_tokens: usize, time: Duration) {
        self.prompt_tokens.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        let _ = self.first_token.compare_exchange(0, micros, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A token of an answer has come: an answer that never ends is logged with those that have.
    pub(crate) fn token(&self) {
        self.generated_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer has ended, of which so many tokens had come.
    pub(crate) fn answer(&self, usage: &Usage, came: usize) {
        if came == 0 {
            self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        }
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        // Wraps where fewer are told than came, and so subtracts.
        let more = (usage.new_tokens as u64).wrapping_sub(came as u64);
        self.generated_tokens.fetch_add(more, Ordering::Relaxed);
    }

    /// Tokens of prompts, those of them that were cached, and generated ones.
    pub(crate) fn tokens(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.prompt_tokens), load(&self.cached_tokens), load(&self.generated_tokens))
    }
}

/// The line of a request, written when it is dropped.
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) method: Method,
    pub(crate) route: &'static str,
    pub(crate) status: StatusCode,
    /// The error's code, where it is one.
    pub(crate) error: Option<&'static str>,
    pub(crate) begun: Instant,
    pub(crate) record: Arc<Record>,
}

impl Line {
    fn write(&self, whole: bool) {
        let (prompt_tokens, cached_tokens, completion_tokens) = self.record.tokens();
        let millis = |micros: u64| (micros / 100) as f64 / 10.0;
        let first = self.record.first_token.load(Ordering::Relaxed).checked_sub(1).map(millis);
        tracing::info!(
            target: "gruff_server::requests",
            id = self.id,
            method = %self.method,
            route = self.route,
            status = self.status.as_u16(),
            error = self.error,
            model = self.record.model.get(),
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            first_token_ms = first,
            total_ms = millis(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)),
            whole,
            "request"
        );
    }
}

/// A response's body that tells when all of it has been taken, or no more of it will be.
pub(crate) struct Logged {
    body: Body,
    line: Line,
    whole: bool,
}

impl Logged {
    pub(crate) fn new(body: Body, line: Line) -> Self {
        Self { whole: body.is_end_stream(), body, line }
    }
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.whole = frame.is_none() || self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        self.line.write(self.whole);
    }
}
