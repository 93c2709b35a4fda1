//! What keeps a server from starting or running.

/// Why a server does not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model or its caches cannot be made ready.
    #[error(transparent)]
    Model(#[from] gruff::Error),
    /// The connection could not be served.
    #[error("the server cannot go on: {0}")]
    Io(#[from] std::io::Error),
}
