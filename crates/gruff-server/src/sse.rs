//! Server-sent events.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc::{OwnedPermit, Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use crate::background;
use crate::limits::PING;

/// Frames that may wait for a slow reader before generation waits for it too.
const WAITING: usize = 64;

/// Where a stream's frames go.
pub(crate) struct Frames {
    sender: Sender<io::Result<String>>,
    /// When a reader has been waited for too long.
    deadline: Option<Instant>,
    /// Room to break the stream, however full it is.
    last: Mutex<Option<OwnedPermit<io::Result<String>>>>,
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
        let sent = self.sender.send(Ok(frame));
        let Some(deadline) = self.deadline else { return sent.await.map_err(|_| Gone) };
        match tokio::time::timeout_at(deadline.into(), sent).await {
            Ok(sent) => sent.map_err(|_| Gone),
            Err(_) => {
                if let Some(last) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    let fault = io::Error::new(io::ErrorKind::TimedOut, "the reader is too slow");
                    drop(last.send(Err(fault)));
                }
                Err(Gone)
            }
        }
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
    let (sender, receiver) = channel(WAITING + 1);
    let last = Mutex::new(sender.clone().try_reserve_owned().ok());
    tokio::spawn(produce(Frames { sender, deadline: background::deadline(), last }));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_stream_whose_reader_is_too_slow_breaks_at_its_deadline() {
        let (sender, mut receiver) = channel(3);
        let last = Mutex::new(sender.clone().try_reserve_owned().ok());
        let deadline = Instant::now().checked_add(Duration::from_millis(20));
        let frames = Frames { sender, deadline, last };
        for _ in 0..2 {
            frames.raw("frame".to_owned()).await.unwrap();
        }
        frames.raw("frame".to_owned()).await.unwrap_err();
        drop(frames);
        assert_eq!(receiver.recv().await.unwrap().unwrap(), "frame");
        assert_eq!(receiver.recv().await.unwrap().unwrap(), "frame");
        assert_eq!(receiver.recv().await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(receiver.recv().await.is_none());
    }
}
