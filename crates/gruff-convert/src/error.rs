use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong on the way from one checkpoint to another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A GGUF file is not sound, lacks something, or cannot be written.
    #[error(transparent)]
    Gguf(#[from] gruff_gguf::Error),
    /// Values could not be packed or unpacked.
    #[error(transparent)]
    Blocks(#[from] gruff_blocks::Error),
    /// A file could not be read or written.
    #[error("{} cannot be {action}: {source}", path.display())]
    Io {
        /// What was tried, as a participle: "read", "written".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file that is read for its content does not hold what it should.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do, as a sentence without a stop.
        fault: String,
    },
    /// A key of a JSON file is missing or has a value that cannot be used.
    #[error("{}: key {key:?} {fault}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with dots into objects.
        key: String,
        /// What is wrong with it, as the rest of the sentence.
        fault: String,
    },
    /// A tensor is missing, unexpected, or of the wrong shape or type.
    #[error("{}: tensor {tensor:?} {fault}", path.display())]
    Tensor {
        /// The file or folder that has it, or should.
        path: PathBuf,
        /// The tensor's name there.
        tensor: String,
        /// What is wrong with it, as the rest of the sentence.
        fault: String,
    },
    /// A model of an architecture that cannot be converted.
    #[error("{}: architecture {found:?} cannot be converted; supported are {supported}", path.display())]
    Architecture {
        /// The file or folder.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// What it could be, separated by commas.
        supported: String,
    },
    /// The target exists, and nothing said to replace it.
    #[error("{} exists already; remove it, choose another name, or ask to overwrite it", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// An argument that cannot be honoured.
    #[error("{0}")]
    Argument(String),
}

/// The results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an I/O error of what the operating system said about `path`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn file(path: &Path, fault: impl Into<String>) -> Self {
        Error::File { path: path.to_owned(), fault: fault.into() }
    }

    pub(crate) fn key(path: &Path, key: impl Into<String>, fault: impl Into<String>) -> Self {
        Error::Key { path: path.to_owned(), key: key.into(), fault: fault.into() }
    }

    pub(crate) fn tensor(path: &Path, tensor: impl Into<String>, fault: impl Into<String>) -> Self {
        Error::Tensor { path: path.to_owned(), tensor: tensor.into(), fault: fault.into() }
    }
}
