//! Server-sent events.

use std::convert::Infallible;
use std::future::Future;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use crate::limits::PING;

/// Frames that may wait for a slow reader before generation waits for it too.
const WAITING: usize = 64;

/// Where a stream's frames go.
pub(crate) struct Frames {
    sender: Sender<Result<String, Infallible>>,
}

/// The reader has gone away.
#[derive(Debug)]
pub(crate) struct Gone;

impl Frames {
    /// `data: JSON`.
    pub(crate) async fn data(&self, value: &Value) -> Result<(), Gone> {
        self.raw(format!("data: {value}\n\n")).await
    }

    /// `event: NAME` and `data: JSON`.
    pub(crate) async fn event(&self, name: &str, value: &Value) -> Result<(), Gone> {
        self.raw(format!("event: {name}\ndata: {value}\n\n")).await
    }

    /// A frame as it stands.
    pub(crate) async fn raw(&self, frame: String) -> Result<(), Gone> {
        self.sender.send(Ok(frame)).await.map_err(|_| Gone)
    }

    /// Waits for something to tell, saying now and then that the stream is alive.
    pub(crate) async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::pin!(next);
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Gone),
                value = &mut next => return Ok(value),
                () = tokio::time::sleep(PING) => self.raw(": still here\n\n".to_owned()).await?,
            }
        }
    }
}

/// A response whose frames `produce` makes. It ends early, at its next frame or wait, when the reader goes away.
pub(crate) fn stream<F, P>(produce: P) -> Response
where
    P: FnOnce(Frames) -> F,
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = channel(WAITING);
    tokio::spawn(produce(Frames { sender }));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}
