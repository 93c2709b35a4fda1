//! What keeps a server from starting or running.

/// Why a server does not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to serve.
    #[error("there is no model to serve; name one")]
    NoModel,
    /// Requests could not tell two models apart.
    #[error("two models are called {0:?}; leave one out")]
    Name(String),
    /// The model or its caches cannot be made ready.
    #[error(transparent)]
    Model(#[from] gruff::Error),
    /// The connection could not be served.
    #[error("the server cannot go on: {0}")]
    Io(#[from] std::io::Error),
}
