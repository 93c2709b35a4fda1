//! Tokenizers, chat templates and parsers built from GGUF metadata.

pub mod chat;
mod detokenizer;
mod error;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::Error;
pub use tokenizer::{
    EncodeOptions, FillTokens, TokenType, Tokenizer, TokenizerOptions, pre_tokenizer_json, pre_tokenizer_name,
};
