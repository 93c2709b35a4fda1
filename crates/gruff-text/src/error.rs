//! What can be wrong with a model's text side.

/// Why a tokenizer could not be built from a file's metadata, or could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key is missing or holds another type than it should.
    #[error(transparent)]
    Metadata(#[from] gruff_gguf::Error),
    /// The file says that it carries no vocabulary.
    #[error(
        "the file carries no vocabulary (`tokenizer.ggml.model` is `{model}`): text cannot be turned into \
         tokens with it. Give token ids, or take the tokenizer from another file of the same model"
    )]
    NoVocabulary {
        /// What `tokenizer.ggml.model` says.
        model: String,
    },
    /// The kind of tokenizer is not one of those implemented.
    #[error(
        "`tokenizer.ggml.model` is `{model}`, a kind of tokenizer that this version of gruff does not have; \
         it has {known}"
    )]
    UnknownModel {
        /// What `tokenizer.ggml.model` says.
        model: String,
        /// The kinds there are.
        known: String,
    },
    /// The pre-tokenizer's name is not in the table.
    #[error(
        "`tokenizer.ggml.pre` is `{pre}`, a pre-tokenizer that this version of gruff does not know; guessing \
         would give wrong token ids. If the model's tokenizer.json splits text the way a known model does, \
         name that one in place of the file's (option `pre`, on the command line --pre-tokenizer); known: {known}"
    )]
    UnknownPre {
        /// The name in the file, or the one given in its place.
        pre: String,
        /// Every name in the table.
        known: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is damaged: `{key}`: {fault}")]
    Vocabulary {
        /// The metadata key at fault.
        key: &'static str,
        /// What is wrong with its value.
        fault: String,
    },
    /// A text too long for 32-bit positions.
    #[error("the text is {bytes} bytes long; at most {limit} can be tokenized at once: cut it into parts")]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The most there may be.
        limit: usize,
    },
}

impl Error {
    pub(crate) fn vocabulary(key: &'static str, fault: impl Into<String>) -> Self {
        Error::Vocabulary { key, fault: fault.into() }
    }
}
