//! Work that takes a while.

use crate::api_error::ApiError;

/// Does `work` on a thread that serves nobody else meanwhile.
///
/// # Errors
/// Those of the work; a panic in it is the server's error.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::stopped())?
}
