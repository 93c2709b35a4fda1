//! What engines count, over all models, also those that were unloaded since.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use gruff::floors::engine::EngineStats;

/// Name, help and value of one counter.
type Row = (&'static str, &'static str, fn(&EngineStats) -> u64);

const COUNTERS: [Row; 5] = [
    ("gruff_prefix_cache_lookups_total", "Sequences that began.", |stats| stats.prefix_cache.lookups),
    ("gruff_prefix_cache_hits_total", "Sequences that found a part of their prompt.", |stats| {
        stats.prefix_cache.hits
    }),
    ("gruff_prefix_cache_evicted_pages_total", "Pages of keys and values given up.", |stats| {
        stats.prefix_cache.evicted_pages
    }),
    ("gruff_prefix_cache_evicted_snapshots_total", "Snapshots of recurrent state given up.", |stats| {
        stats.prefix_cache.evicted_snapshots
    }),
    (
        "gruff_preemptions_total",
        "Requests that had to wait again because others ran out of pages.",
        |stats| stats.preemptions,
    ),
];

const GAUGES: [Row; 5] = [
    ("gruff_prefix_cache_pages", "Pages of keys and values held, those in use included.", |stats| {
        stats.prefix_cache.pages as u64
    }),
    ("gruff_prefix_cache_snapshots", "Snapshots of recurrent state held.", |stats| {
        stats.prefix_cache.snapshots as u64
    }),
    ("gruff_prefix_cache_bytes", "Bytes of those pages and snapshots.", |stats| {
        stats.prefix_cache.pages as u64 * stats.page_bytes + stats.prefix_cache.snapshot_bytes
    }),
    ("gruff_kv_pages", "Pages of keys and values that there is room for.", |stats| stats.pages as u64),
    ("gruff_kv_pages_free", "Those that hold nothing.", |stats| stats.free_pages as u64),
];

/// Sums of what every engine has counted.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters([AtomicU64; COUNTERS.len()]);

impl EngineCounters {
    /// An engine has counted on.
    pub(crate) fn advance(&self, before: &EngineStats, now: &EngineStats) {
        for (sum, (_, _, of)) in self.0.iter().zip(COUNTERS) {
            sum.fetch_add(of(now).saturating_sub(of(before)), Ordering::Relaxed);
        }
    }

    /// The counters, and what `engines` hold now.
    pub(crate) fn write(&self, engines: &[EngineStats], out: &mut String) {
        for (sum, (name, help, _)) in self.0.iter().zip(COUNTERS) {
            let value = sum.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        for (name, help, of) in GAUGES {
            let value: u64 = engines.iter().map(of).sum();
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use gruff::floors::engine::CacheStats;

    use super::*;

    #[test]
    fn counters_go_on_when_engines_end_and_gauges_do_not() {
        let counters = EngineCounters::default();
        let stats = |hits, pages| EngineStats {
            page_bytes: 100,
            prefix_cache: CacheStats { hits, pages, snapshot_bytes: 5, ..CacheStats::default() },
            ..EngineStats::default()
        };
        for engine in [stats(3, 1), stats(4, 2)] {
            counters.advance(&EngineStats::default(), &engine);
        }
        counters.advance(&stats(4, 2), &stats(6, 3));
        let mut text = String::new();
        counters.write(&[stats(6, 3)], &mut text);
        for line in
            ["gruff_prefix_cache_hits_total 9", "gruff_prefix_cache_pages 3", "gruff_prefix_cache_bytes 305"]
        {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
