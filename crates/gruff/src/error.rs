use std::path::{Path, PathBuf};

/// What can go wrong on the way from a model's name to its answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name could not be turned into files.
    #[error(transparent)]
    Hub(#[from] gruff_hub::Error),
    /// The file is not a sound GGUF container.
    #[error(transparent)]
    Gguf(#[from] gruff_gguf::Error),
    /// The tokenizer could not be built, or refused a text.
    #[error(transparent)]
    Tokenizer(#[from] gruff_text::Error),
    /// The chat template could not be read, or refused the messages.
    #[error(transparent)]
    Template(#[from] gruff_text::chat::TemplateError),
    /// The weights do not make the model that the metadata describes.
    #[error(transparent)]
    Model(#[from] gruff_models::Error),
    /// The engine refused a request, or memory does not suffice.
    #[error(transparent)]
    Engine(#[from] gruff_engine::Error),
    /// The weights cannot be turned into transformers' tensors.
    #[error(transparent)]
    Convert(#[from] gruff_convert::Error),
    /// A device operation failed.
    #[error(transparent)]
    Kernel(#[from] gruff_kernels::Error),
    /// One prompt of a batch could not be answered to its end.
    #[error("prompt {prompt}: {message}")]
    Generation {
        /// Its index in the batch.
        prompt: usize,
        /// What the engine says.
        message: String,
    },
    /// `generation_config.json` beside the model cannot be read.
    #[error("{}: {fault}; mend or remove it", path.display())]
    GenerationConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// A file of a cache that cannot be written, or not be used.
    #[error("{}: {fault}", path.display())]
    CacheFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, as a predicate.
        fault: String,
    },
    /// A file of an adapter that cannot be applied to the model.
    #[error("{}: {fault}", path.display())]
    Adapter {
        /// The file.
        path: PathBuf,
        /// What is wrong, as a predicate.
        fault: String,
    },
    /// A temporary file cannot be written.
    #[error("no temporary file can be written: {0}; make room, or set TMPDIR")]
    Scratch(#[source] std::io::Error),
    /// A grammar that is too large, or allows too much at once.
    #[error("constraint: {0}")]
    GrammarSize(String),
    /// An option that cannot be honoured.
    #[error("{0}")]
    Option(String),
}

/// The results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn cache_file(path: &Path, fault: impl Into<String>) -> Self {
        Self::CacheFile { path: path.to_owned(), fault: fault.into() }
    }
}
