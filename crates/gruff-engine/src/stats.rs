//! What an engine tells of itself.

use crate::CacheStats;

/// What an engine did so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests in progress.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Pages of keys and values in the pool.
    pub pages: usize,
    /// Those that hold nothing.
    pub free_pages: usize,
    /// Bytes of one page, in all layers.
    pub page_bytes: u64,
    /// How often a request had to give back what it held and wait, because others ran out of pages.
    pub preemptions: u64,
    /// What is kept of earlier tokens.
    pub prefix_cache: CacheStats,
}
