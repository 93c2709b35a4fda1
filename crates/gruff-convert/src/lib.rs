//! Checkpoints from one file to another: safetensors to GGUF and back, quantize, split, merge, edit.
