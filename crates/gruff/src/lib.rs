//! GGUF checkpoints behind the API that transformers users know.
