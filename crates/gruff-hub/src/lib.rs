//! Model names to files on disk, in huggingface_hub's cache layout.
