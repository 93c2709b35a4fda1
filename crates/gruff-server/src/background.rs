//! Work that takes a while, and what it may hold.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::ApiError;
use crate::intake::Share;
use crate::limits::PREPARING_PATIENCE;

tokio::task_local! {
    /// What the request that this task answers holds.
    static HELD: Held;
}

/// What work for a request keeps until it ends, also where the client has gone away meanwhile: threads cannot be
/// stopped, so that only what is not given back bounds how many there are.
#[derive(Clone)]
pub(crate) struct Held {
    /// Of what may be read at once.
    _share: Arc<Share>,
    /// Who may work at once.
    workers: Arc<Semaphore>,
    deadline: Option<Instant>,
}

impl Held {
    pub(crate) fn new(share: Arc<Share>, workers: Arc<Semaphore>, deadline: Option<Instant>) -> Self {
        Self { _share: share, workers, deadline }
    }

    /// Answers a request that holds this.
    pub(crate) async fn scope<T>(self, answer: impl Future<Output = T>) -> T {
        HELD.scope(self, answer).await
    }

    async fn place(&self, patience: Duration) -> Result<OwnedSemaphorePermit, ApiError> {
        match tokio::time::timeout(patience, self.workers.clone().acquire_owned()).await {
            Ok(place) => place.map_err(|_| ApiError::stopped()),
            Err(_) => Err(ApiError::status(
                StatusCode::TOO_MANY_REQUESTS,
                "overloaded",
                "the server is preparing as many requests as it can; come again",
            )),
        }
    }
}

/// When the request that this task answers has taken too long.
pub(crate) fn deadline() -> Option<Instant> {
    HELD.try_with(|held| held.deadline).ok().flatten()
}

/// How many requests may be worked on beside the engine: as many as there are cores, and a few where there are fewer.
pub(crate) fn workers() -> Arc<Semaphore> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new(cores.clamp(4, 64)))
}

/// Does `work` on a thread that serves nobody else meanwhile.
///
/// # Errors
/// Those of the work; a panic in it is the server's error. Status 429 where so many others work that none of them has
/// ended for long.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    run_within(PREPARING_PATIENCE, work).await
}

async fn run_within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let held = HELD.try_with(Clone::clone).ok();
    let place = match &held {
        Some(held) => Some(held.place(patience).await?),
        None => None,
    };
    let work = move || {
        let done = work();
        drop((held, place));
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::stopped())?
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::intake::Room;

    #[tokio::test]
    async fn abandoned_work_keeps_its_place_and_share_until_it_ends() {
        let (share, workers) = (Room::default().share(), Arc::new(Semaphore::new(1)));
        let held = Held::new(share.clone(), workers.clone(), None);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go_on, may_end) = channel::<()>();
        let request = tokio::spawn(held.clone().scope(run(move || {
            let _ = begun.send(());
            let _ = may_end.recv();
            Ok(())
        })));
        has_begun.await.unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        let other = held.clone().scope(run_within(Duration::from_millis(50), || Ok(()))).await;
        assert_eq!(other.unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        // The test's own, that of `held`, and that of the work.
        assert_eq!(Arc::strong_count(&share), 3);
        go_on.send(()).unwrap();
        held.clone().scope(run(|| Ok(()))).await.unwrap();
        assert_eq!((Arc::strong_count(&share), workers.available_permits()), (2, 1));
    }

    #[tokio::test]
    async fn a_panic_gives_the_place_back() {
        let workers = Arc::new(Semaphore::new(1));
        let held = Held::new(Room::default().share(), workers.clone(), None);
        let error = held.scope(run::<()>(|| panic!("on purpose"))).await.unwrap_err();
        assert_eq!((error, workers.available_permits()), (ApiError::stopped(), 1));
    }
}
