/// What can go wrong between a request and its tokens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model or its caches refused.
    #[error(transparent)]
    Model(#[from] gruff_models::Error),
    /// A device operation failed.
    #[error(transparent)]
    Kernel(#[from] gruff_kernels::Error),
    /// The model and the asked context do not fit into memory.
    #[error("{0}")]
    Memory(String),
    /// A request that cannot be served as it stands.
    #[error("{field}: {fault}")]
    Request {
        /// The field of the request.
        field: &'static str,
        /// What is wrong with it and what to do.
        fault: String,
    },
    /// A prompt that leaves no room for an answer.
    #[error(
        "{field}: its {tokens} tokens leave no room in a context of {context}; shorten it or choose a larger --ctx"
    )]
    ContextLength {
        /// The field of the request.
        field: &'static str,
        /// How many tokens it has.
        tokens: usize,
        /// How many tokens prompt and answer may have together.
        context: usize,
    },
    /// Processors left no token to choose.
    #[error("every token was ruled out at token {position}; the processors were {}: loosen one of them", processors.join(", "))]
    RuledOut {
        /// Index of the token in its sequence.
        position: usize,
        /// The processors' names, in order.
        processors: Vec<String>,
    },
    /// What a processor, a stopping criterion or a drafter of the caller's own says.
    #[error("{0}")]
    Custom(String),
    /// A row of logits without a finite value: broken weights, or every token ruled out.
    #[error("the model gave no usable logits at token {position}; the file may be damaged")]
    Logits {
        /// Index of the token in its sequence.
        position: usize,
    },
}

/// The engine's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn refuse<T>(field: &'static str, fault: impl Into<String>) -> Result<T> {
    Err(Error::Request { field, fault: fault.into() })
}
