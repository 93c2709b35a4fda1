//! Connections: how many there are, and how long the server is patient with them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;

use crate::client::{FromPeer, Peer};
use crate::limits::{MAX_HEAD, MAX_HEADERS};

/// What a server bears of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How many there may be; further ones wait to be accepted.
    pub(crate) connections: usize,
    /// How long a request's head may take to arrive, and how long a connection may be idle.
    pub(crate) head: Duration,
    /// How long a reader may take nothing of what is sent to it.
    pub(crate) reader: Duration,
}

/// How long to wait where the system has no connection to give, because files are used up for example.
const AFTER_FAULT: Duration = Duration::from_millis(200);

/// Answers on every connection until `stop` is ready; then takes no more of them, and returns when the requests in
/// progress are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    patience: Patience,
    stop: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(patience.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    let (stopping, stopped) = watch::channel(false);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    tokio::pin!(stop);
    loop {
        let next = async {
            // Nothing closes the semaphore.
            let place = places.clone().acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = &mut stop => break,
            next = next => next,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(AFTER_FAULT).await;
                continue;
            }
        };
        // Tokens are to arrive one by one. Where that cannot be had, they arrive a little later.
        let _ = stream.set_nodelay(true);
        let begun = Arc::new(AtomicBool::new(false));
        let stream = Patient { stream, begun: begun.clone(), reader: patience.reader, stuck: None };
        let service = TowerToHyperService::new(router.clone());
        let service = FromPeer { service, peer: Peer(address.ip()) };
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        let mut stopped = stopped.clone();
        tokio::spawn(async move {
            let _place = place;
            let unused = async {
                let _ = stopped.wait_for(|stopping| *stopping).await;
                if begun.load(Ordering::Relaxed) {
                    std::future::pending().await
                }
            };
            tokio::select! {
                // Faults of connections are their clients'.
                ended = connection => drop(ended.inspect_err(|error| tracing::debug!("a connection broke: {error}"))),
                // On which nothing was ever asked: nothing is lost.
                () = unused => {}
            }
        });
    }
    drop(listener);
    let _ = stopping.send(true);
    graceful.shutdown().await;
}

/// A connection that breaks when its reader takes nothing for too long.
struct Patient {
    stream: TcpStream,
    /// Whether anything has come.
    begun: Arc<AtomicBool>,
    reader: Duration,
    /// Runs out when the reader has taken nothing for that long.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// What became of an attempt to write, unless the reader has been waited for too long.
    fn written<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stuck = None;
            return outcome;
        }
        let reader = self.reader;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(reader)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            self.begun.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.written(cx, outcome)
    }
}
