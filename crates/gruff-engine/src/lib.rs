//! Requests to batches to tokens: scheduler, caches, sampling, the decode loop.
