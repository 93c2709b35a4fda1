//! Devices, tensors and the fused operations that language models are made of, on packed weights.
