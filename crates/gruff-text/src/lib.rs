//! Tokenizers, chat templates and parsers built from GGUF metadata.

pub mod chat;
