//! Read, check and write GGUF containers.
