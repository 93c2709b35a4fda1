//! llama-bench's tests: random tokens through the model, without tokenizing and sampling.

use std::time::{Duration, Instant};

use gruff::AutoModelForCausalLM;

use super::profile::Profile;
use super::sequences::Sequences;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens generated behind it.
    pub(super) generated: usize,
    /// Tokens that are there before.
    pub(super) depth: usize,
}

impl Test {
    /// llama-bench's name for it: `pp512`, `tg128 @ d4096`, `pp512+tg128`.
    pub(super) fn label(&self) -> String {
        let mut label = match (self.prompt, self.generated) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generated) => format!("tg{generated}"),
            (prompt, generated) => format!("pp{prompt}+tg{generated}"),
        };
        if self.depth > 0 {
            label.push_str(&format!(" @ d{}", self.depth));
        }
        label
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) test: Test,
    pub(super) label: String,
    /// Whether the best run counts instead of the mean.
    pub(super) best: bool,
    /// Tokens a run is credited with.
    pub(super) tokens: usize,
    /// When it began, UTC.
    pub(super) began: String,
    pub(super) times: Vec<Duration>,
    /// Where the time goes, if it was asked for.
    pub(super) profile: Option<Profile>,
}

/// Runs a test several times.
pub(super) fn measure(
    model: &AutoModelForCausalLM,
    test: Test,
    ubatch: usize,
    repetitions: u32,
    warmup: bool,
) -> anyhow::Result<Outcome> {
    let mut sequences = Sequences::new(model, 1, test.depth + test.prompt + test.generated, ubatch)?;
    if warmup {
        sequences.prompt(test.prompt.max(1))?;
    }
    let began = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut times = Vec::new();
    for _ in 0..repetitions {
        sequences.clear();
        sequences.prompt(test.depth)?;
        let started = Instant::now();
        sequences.prompt(test.prompt)?;
        for _ in 0..test.generated {
            sequences.generate()?.to_vec_f32()?;
        }
        times.push(started.elapsed());
    }
    let tokens = test.prompt + test.generated;
    Ok(Outcome { label: test.label(), test, best: false, tokens, began, times, profile: None })
}

impl Outcome {
    /// Tokens a second of each run.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.times.iter().map(|time| self.tokens as f64 / time.as_secs_f64().max(1e-9)).collect()
    }
}

/// Mean and standard deviation of a sample.
pub(super) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_llama_benchs() {
        let label = |prompt, generated, depth| Test { prompt, generated, depth }.label();
        assert_eq!(label(512, 0, 0), "pp512");
        assert_eq!(label(0, 128, 0), "tg128");
        assert_eq!(label(512, 128, 0), "pp512+tg128");
        assert_eq!(label(512, 0, 4096), "pp512 @ d4096");
    }

    #[test]
    fn deviation_is_a_samples() {
        assert_eq!(mean_and_deviation(&[2.0]), (2.0, 0.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
    }
}
