//! Bodies on their way in: how large, how long, and how much of all requests at once.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::Sleep;

use crate::api_error::ApiError;
use crate::limits::{MAX_BODIES, MAX_BODY};

/// Bytes that requests hold of what may be read at once.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_BODIES)))
    }
}

impl Room {
    /// A request's share, given back when all clones of it are dropped.
    pub(crate) fn share(&self) -> Arc<Share> {
        Arc::new(Share { room: self.0.clone(), taken: AtomicUsize::new(0) })
    }
}

/// What one request holds.
pub(crate) struct Share {
    room: Arc<Semaphore>,
    taken: AtomicUsize,
}

impl Share {
    fn take(&self, bytes: usize) -> Result<(), Fault> {
        let permits = u32::try_from(bytes).map_err(|_| Fault::TooLarge)?;
        self.room.try_acquire_many(permits).map_err(|_| Fault::NoRoom)?.forget();
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.add_permits(self.taken.load(Ordering::Relaxed));
    }
}

/// Why a body is not read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the body has more than {} MiB", MAX_BODY >> 20)]
    TooLarge,
    #[error("the body took more than {0} seconds to arrive")]
    TooSlow(u64),
    #[error("the server is reading as many large requests as it can; come again")]
    NoRoom,
}

impl Fault {
    /// The one behind an error of reading.
    pub(crate) fn of(error: &axum::Error) -> Option<Self> {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(fault) = error.downcast_ref::<Fault>() {
                return Some(*fault);
            }
            cause = error.source();
        }
        None
    }

    pub(crate) fn error(self) -> ApiError {
        let (status, code) = match self {
            Fault::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "request_too_large"),
            Fault::TooSlow(_) => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Fault::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
        };
        ApiError::status(status, code, self.to_string())
    }
}

/// A body that ends with a [`Fault`] when it is too large or too slow.
pub(crate) struct Intake {
    body: Body,
    share: Arc<Share>,
    read: usize,
    patience: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Intake {
    pub(crate) fn new(body: Body, share: Arc<Share>, patience: Duration) -> Self {
        Self { body, share, read: 0, patience, timer: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl HttpBody for Intake {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let fail = |fault| Poll::Ready(Some(Err(axum::Error::new(fault))));
        // Where the length was announced, nothing need be read of what is too long.
        if self.read == 0 && self.body.size_hint().lower() > MAX_BODY as u64 {
            return fail(Fault::TooLarge);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            return fail(Fault::TooSlow(self.patience.as_secs()));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        self.read += bytes;
        if self.read > MAX_BODY {
            return fail(Fault::TooLarge);
        }
        match self.share.take(bytes) {
            Ok(()) => Poll::Ready(frame),
            Err(fault) => fail(fault),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_hold_is_bounded_and_given_back() {
        let room = Room::default();
        let (one, two) = (room.share(), room.share());
        one.take(MAX_BODIES - 10).unwrap();
        two.take(10).unwrap();
        assert_eq!(two.take(1), Err(Fault::NoRoom));
        drop(one);
        two.take(MAX_BODIES - 10).unwrap();
        drop(two);
        room.share().take(MAX_BODIES).unwrap();
    }

    #[test]
    fn faults_are_found_behind_other_errors() {
        let error = axum::Error::new(axum::Error::new(Fault::TooLarge));
        assert_eq!(Fault::of(&error), Some(Fault::TooLarge));
        assert_eq!(Fault::of(&axum::Error::new(std::io::Error::other("x"))), None);
    }
}
