//! llama-batched-bench's test: several sequences, first their prompts, then one token of each at a time. Behind each token
//! an id is chosen on the device and waited for, where llama-batched-bench copies all logits.

use std::io::Write;
use std::time::{Duration, Instant};

use gruff::AutoModelForCausalLM;
use serde_json::{Value, json};

use super::measure::Test;
use super::profile::Profile;
use super::report::Format;
use super::sequences::Sequences;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchTest {
    /// Tokens of each prompt.
    pub(super) prompt: usize,
    /// Tokens generated of each sequence.
    pub(super) generated: usize,
    /// Sequences.
    pub(super) sequences: usize,
    /// Tokens of each that are there before.
    pub(super) depth: usize,
}

impl BatchTest {
    /// The tests of one kind of step that it consists of: prompts, then tokens behind them.
    pub(super) fn parts(&self) -> impl Iterator<Item = Test> {
        let prompts = Test { prompt: self.prompt, generated: 0, depth: self.depth };
        let tokens = Test { prompt: 0, generated: self.generated, depth: self.depth + self.prompt };
        [prompts, tokens].into_iter().filter(|test| test.prompt + test.generated > 0)
    }
}

/// What was measured: of several runs the one whose total is the median.
#[derive(Clone, Debug)]
pub(super) struct BatchOutcome {
    pub(super) test: BatchTest,
    prompt: Duration,
    generation: Duration,
    /// Where the time of prompts and of generation went, if that was asked for.
    pub(super) profiles: Vec<Profile>,
}

pub(super) fn measure(
    model: &AutoModelForCausalLM,
    test: BatchTest,
    ubatch: usize,
    repetitions: u32,
) -> anyhow::Result<BatchOutcome> {
    let capacity = test.depth + test.prompt + test.generated + 1;
    let mut sequences = Sequences::new(model, test.sequences, capacity, ubatch)?;
    // The first steps of a size take memory, and are recorded where that is done.
    sequences.prompt(test.prompt.clamp(1, 16))?;
    for _ in 0..test.generated.min(2) {
        sequences.generate_ids()?;
    }
    let mut times = Vec::new();
    for _ in 0..repetitions.max(1) {
        sequences.clear();
        sequences.prompt(test.depth)?;
        let started = Instant::now();
        sequences.prompt(test.prompt)?;
        let prompt = started.elapsed();
        let started = Instant::now();
        for _ in 0..test.generated {
            sequences.generate_ids()?;
        }
        times.push((prompt, started.elapsed()));
    }
    times.sort_by_key(|(prompt, generation)| *prompt + *generation);
    let (prompt, generation) = times[times.len() / 2];
    Ok(BatchOutcome { test, prompt, generation, profiles: Vec::new() })
}

/// Columns of llama-batched-bench, and their widths.
const COLUMNS: [(&str, usize); 10] = [
    ("PP", 6),
    ("TG", 6),
    ("B", 4),
    ("N_KV", 6),
    ("T_PP s", 8),
    ("S_PP t/s", 8),
    ("T_TG s", 8),
    ("S_TG t/s", 8),
    ("T s", 8),
    ("S t/s", 8),
];

impl BatchOutcome {
    /// Tokens that the caches hold at the end.
    fn cached(&self) -> usize {
        self.test.sequences * (self.test.depth + self.test.prompt + self.test.generated)
    }

    /// Seconds and tokens a second of prompts, of generation and of both.
    fn speeds(&self) -> [(f64, f64); 3] {
        let BatchTest { prompt, generated, sequences, .. } = self.test;
        let speed = |time: Duration, tokens: usize| {
            let seconds = time.as_secs_f64();
            (seconds, if tokens == 0 { 0.0 } else { (tokens * sequences) as f64 / seconds.max(1e-9) })
        };
        [
            speed(self.prompt, prompt),
            speed(self.generation, generated),
            speed(self.prompt + self.generation, prompt + generated),
        ]
    }

    /// A row of the table, below its head if it is the first; or a record.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        format: Format,
        first: bool,
        facts: &Value,
    ) -> anyhow::Result<()> {
        let BatchTest { prompt, generated, sequences, depth } = self.test;
        let [pp, tg, all] = self.speeds();
        if format != Format::Md {
            let mut record = facts.clone();
            let own = json!({
                "pp": prompt, "tg": generated, "pl": sequences, "n_depth": depth, "n_kv": self.cached(),
                "t_pp": pp.0, "speed_pp": pp.1, "t_tg": tg.0, "speed_tg": tg.1, "t": all.0, "speed": all.1,
            });
            if let (Value::Object(record), Value::Object(own)) = (&mut record, own) {
                record.extend(own);
                if !self.profiles.is_empty() {
                    record.insert("profiles".to_owned(), self.profiles.iter().map(Profile::json).collect());
                }
            }
            return super::report::write_record(out, format, &record, first);
        }
        if first {
            let heads: Vec<String> = COLUMNS.iter().map(|(name, width)| format!("{name:>width$}")).collect();
            writeln!(out, "| {} |", heads.join(" | "))?;
            let rules: Vec<String> =
                COLUMNS.iter().map(|(_, width)| format!("{}:", "-".repeat(width - 1))).collect();
            writeln!(out, "| {} |", rules.join(" | "))?;
        }
        let counts = [prompt, generated, sequences, self.cached()].map(|count| count.to_string());
        let speeds =
            [pp, tg, all].into_iter().flat_map(|(time, speed)| [format!("{time:.3}"), format!("{speed:.2}")]);
        let cells =
            counts.into_iter().chain(speeds).zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
        Ok(writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_count_every_sequence() {
        let test = BatchTest { prompt: 100, generated: 10, sequences: 4, depth: 5 };
        let outcome = BatchOutcome {
            test,
            prompt: Duration::from_secs(2),
            generation: Duration::from_secs(8),
            profiles: Vec::new(),
        };
        assert_eq!(outcome.cached(), 460);
        assert_eq!(outcome.speeds(), [(2.0, 200.0), (8.0, 5.0), (10.0, 44.0)]);
        let mut text = Vec::new();
        outcome.write(&mut text, Format::Md, true, &json!({})).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text.lines().next().unwrap(),
            "|     PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
        );
        assert_eq!(
            text.lines().last().unwrap(),
            "|    100 |     10 |    4 |    460 |    2.000 |   200.00 |    8.000 |     5.00 |   10.000 |    44.00 |"
        );
    }
}
