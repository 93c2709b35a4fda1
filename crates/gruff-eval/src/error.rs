use std::path::{Path, PathBuf};

/// Why something could not be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model refused a step.
    #[error(transparent)]
    Model(#[from] gruff_models::Error),
    /// Memory does not suffice, or the model was not trained for so many tokens.
    #[error(transparent)]
    Engine(#[from] gruff_engine::Error),
    /// A device operation failed.
    #[error(transparent)]
    Kernel(#[from] gruff_kernels::Error),
    /// The text could not be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] gruff_text::Error),
    /// A GGUF file could not be read or written.
    #[error(transparent)]
    Gguf(#[from] gruff_gguf::Error),
    /// A number that cannot be obeyed.
    #[error("{option}: {fault}")]
    Option {
        /// What it is called.
        option: &'static str,
        /// What is wrong with it and what to do.
        fault: String,
    },
    /// A text that is too short.
    #[error(
        "the text has {found} tokens, but {needed} are needed; take a longer text or a smaller context (--ctx)"
    )]
    ShortText {
        /// Its tokens.
        found: usize,
        /// The least it must have.
        needed: usize,
    },
    /// A row of logits with a value that is no number.
    #[error(
        "the model gave logits that are not finite at token {position} of window {window}; the file may be damaged"
    )]
    Logits {
        /// Which window, counted from 1.
        window: usize,
        /// Index of the token in the window.
        position: usize,
    },
    /// Two models that read a text differently.
    #[error("{fault}; logits can be compared between models with one vocabulary only")]
    Vocabulary {
        /// What differs.
        fault: String,
    },
    /// A picture that cannot be drawn.
    #[error("{} cannot be drawn: {fault}", path.display())]
    Plot {
        /// The file it was to become.
        path: PathBuf,
        /// Why.
        fault: String,
    },
    /// A file of saved logits that cannot be used.
    #[error("{}: {fault}", path.display())]
    LogitsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        fault: String,
    },
    /// Tasks that cannot be scored.
    #[error("line {line} of the tasks: {fault}")]
    Task {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it and what to do.
        fault: String,
    },
    /// A file that cannot be read or written.
    #[error("{} cannot be {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), action: "read", source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), action: "written", source }
    }
}

/// The results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn refuse<T>(option: &'static str, fault: impl Into<String>) -> Result<T> {
    Err(Error::Option { option, fault: fault.into() })
}
