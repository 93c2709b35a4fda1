//! Counters in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gruff::Usage;
use gruff::floors::engine::EngineStats;

use crate::engine_counters::EngineCounters;

/// Upper bounds of the histograms, in seconds.
const BOUNDS: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

/// Durations by how long they were.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {}", bucket.load(Ordering::Relaxed));
        }
        let count = self.count.load(Ordering::Relaxed);
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        let _ =
            writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}");
    }
}

/// What the models do now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Now {
    pub(crate) in_progress: usize,
    pub(crate) models: usize,
    pub(crate) memory: u64,
    pub(crate) engines: Vec<EngineStats>,
}

/// What the server has done so far.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Responses by route and status.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    left_answers: AtomicU64,
    left_tokens: AtomicU64,
    loads: AtomicU64,
    unloads: AtomicU64,
    pub(crate) engines: EngineCounters,
    first_token: Histogram,
    answer: Histogram,
}

impl Metrics {
    pub(crate) fn response(&self, route: &'static str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route, status)).or_insert(0) += 1;
    }

    /// An answer has ended.
    pub(crate) fn answer(&self, usage: &Usage, time: Duration) {
        let add = |counter: &AtomicU64, count: usize| counter.fetch_add(count as u64, Ordering::Relaxed);
        add(&self.prompt_tokens, usage.prompt_tokens);
        add(&self.cached_tokens, usage.cached_tokens);
        add(&self.generated_tokens, usage.new_tokens);
        self.answer.observe(time);
    }

    /// An answer was left before its end, its client gone or its time over, when so many of its tokens had come.
    pub(crate) fn left(&self, tokens: usize) {
        self.left_answers.fetch_add(1, Ordering::Relaxed);
        self.left_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// The first token of an answer has come.
    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token.observe(time);
    }

    /// A model was loaded for a request.
    pub(crate) fn loaded(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// A model was unloaded.
    pub(crate) fn unloaded(&self) {
        self.unloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Everything, with what the models do now.
    pub(crate) fn text(&self, now: &Now) -> String {
        let mut out = String::new();
        let counters = [
            ("gruff_prompt_tokens_total", "Tokens of prompts answered.", &self.prompt_tokens),
            ("gruff_cached_tokens_total", "Prompt tokens that caches saved.", &self.cached_tokens),
            ("gruff_generated_tokens_total", "Tokens of answers that ended.", &self.generated_tokens),
            ("gruff_left_answers_total", "Answers left before their end.", &self.left_answers),
            ("gruff_left_tokens_total", "Tokens of answers left before their end.", &self.left_tokens),
            ("gruff_model_loads_total", "Models loaded for a request.", &self.loads),
            ("gruff_model_unloads_total", "Models unloaded.", &self.unloads),
        ];
        for (name, help, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        let gauges = [
            (
                "gruff_answers_in_progress",
                "Answers being generated or waiting for it.",
                now.in_progress as u64,
            ),
            ("gruff_models_loaded", "Models that are loaded.", now.models as u64),
            ("gruff_planned_memory_bytes", "Memory that was planned for them.", now.memory),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        self.engines.write(&now.engines, &mut out);
        let name = "gruff_responses_total";
        let _ = writeln!(out, "# HELP {name} HTTP responses by route and status.\n# TYPE {name} counter");
        for ((route, status), count) in self.responses.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let help = "From a request to an answer's first token.";
        self.first_token.write("gruff_time_to_first_token_seconds", help, &mut out);
        self.answer.write("gruff_answer_seconds", "From a request to an answer's end.", &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_prometheus_reads() {
        let metrics = Metrics::default();
        metrics.response("/health", 200);
        metrics.first_token(Duration::from_millis(200));
        let usage = Usage { prompt_tokens: 5, cached_tokens: 2, new_tokens: 3, ..Usage::default() };
        metrics.answer(&usage, Duration::from_secs(3));
        let text = metrics.text(&Now { in_progress: 4, ..Now::default() });
        for line in [
            "gruff_prompt_tokens_total 5",
            "gruff_generated_tokens_total 3",
            "gruff_answers_in_progress 4",
            "gruff_responses_total{route=\"/health\",status=\"200\"} 1",
            "gruff_time_to_first_token_seconds_bucket{le=\"0.1\"} 0",
            "gruff_time_to_first_token_seconds_bucket{le=\"0.25\"} 1",
            "gruff_answer_seconds_sum 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
