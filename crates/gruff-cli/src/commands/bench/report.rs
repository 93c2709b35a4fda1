//! Results in llama-bench's formats.

use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use gruff::system;
use serde_json::{Map, Value, json};

use super::batched::BatchOutcome;
use super::measure::{Outcome, mean_and_deviation};
use crate::size::Bytes;

/// A format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table
    #[default]
    Md,
    /// An array of objects
    Json,
    /// An object a line
    Jsonl,
    /// Comma-separated values
    Csv,
}

/// What all results of a loaded model share.
pub(super) struct ModelFacts {
    pub(super) path: String,
    pub(super) label: String,
    pub(super) size: u64,
    pub(super) parameters: u64,
    pub(super) backend: &'static str,
    /// Kernel families in their plainest form.
    pub(super) without: Vec<&'static str>,
    pub(super) threads: usize,
    pub(super) ubatch: u32,
    pub(super) kv_type: &'static str,
    pub(super) load: Duration,
    pub(super) peak_memory: Option<u64>,
    pub(super) bytes_per_token: u64,
    /// Bytes a second that this machine reads.
    pub(super) bandwidth: Option<f64>,
}

/// Writes results as they come.
pub(super) struct Report<W> {
    format: Format,
    out: W,
    begun: bool,
    /// What is said below the table.
    notes: Vec<String>,
}

impl<W: Write> Report<W> {
    pub(super) fn new(format: Format, out: W) -> Self {
        Self { format, out, begun: false, notes: Vec::new() }
    }

    pub(super) fn add(&mut self, facts: &ModelFacts, outcomes: &[Outcome]) -> anyhow::Result<()> {
        for outcome in outcomes {
            let first = !std::mem::replace(&mut self.begun, true);
            match self.format {
                Format::Md => self.row(facts, outcome, first)?,
                format => write_record(&mut self.out, format, &json!(record(facts, outcome)), first)?,
            }
            self.out.flush()?;
        }
        if self.format == Format::Md {
            for profile in outcomes.iter().filter_map(|outcome| outcome.profile.as_ref()) {
                profile.write(&mut self.out)?;
            }
        }
        self.notes.push(note(facts, outcomes));
        Ok(())
    }

    /// The same for sequences that were measured together.
    pub(super) fn add_batched(
        &mut self,
        facts: &ModelFacts,
        outcomes: &[BatchOutcome],
    ) -> anyhow::Result<()> {
        let setup = setup_fields(facts);
        for outcome in outcomes {
            let first = !std::mem::replace(&mut self.begun, true);
            outcome.write(&mut self.out, self.format, first, &setup)?;
            self.out.flush()?;
        }
        if self.format == Format::Md {
            for profile in outcomes.iter().flat_map(|outcome| &outcome.profiles) {
                profile.write(&mut self.out)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        match self.format {
            Format::Md => {
                writeln!(self.out)?;
                for note in &self.notes {
                    writeln!(self.out, "{note}")?;
                }
                writeln!(self.out, "build: gruff {}", env!("CARGO_PKG_VERSION"))?;
            }
            Format::Json => writeln!(self.out, "{}", if self.begun { "\n]" } else { "[]" })?,
            Format::Jsonl | Format::Csv => {}
        }
        Ok(self.out.flush()?)
    }

    fn row(&mut self, facts: &ModelFacts, outcome: &Outcome, first: bool) -> anyhow::Result<()> {
        let (mean, deviation) = mean_and_deviation(&outcome.rates());
        let speed = match outcome.best {
            true => format!("{:.2} best of {}", best(outcome), outcome.times.len()),
            false => format!("{mean:.2} ± {deviation:.2}"),
        };
        let cells = [
            ("model", facts.label.clone(), -30),
            ("size", size(facts.size), 10),
            ("params", parameters(facts.parameters), 10),
            ("backend", facts.backend.to_owned(), -10),
            ("threads", facts.threads.to_string(), 7),
            ("test", outcome.label.clone(), 15),
            ("t/s", speed, 20),
        ];
        if first {
            let heads = cells.iter().map(|(name, _, width)| cell(name, *width));
            writeln!(self.out, "| {} |", heads.collect::<Vec<_>>().join(" | "))?;
            let lines = cells.iter().map(|(.., width)| rule(*width));
            writeln!(self.out, "| {} |", lines.collect::<Vec<_>>().join(" | "))?;
        }
        let values = cells.iter().map(|(_, value, width)| cell(value, *width));
        Ok(writeln!(self.out, "| {} |", values.collect::<Vec<_>>().join(" | "))?)
    }
}

/// A record of some format, behind others or as the first.
pub(super) fn write_record(
    out: &mut impl Write,
    format: Format,
    record: &Value,
    first: bool,
) -> anyhow::Result<()> {
    match format {
        Format::Jsonl => writeln!(out, "{record}")?,
        Format::Csv => {
            let fields = record.as_object().into_iter().flatten();
            let columns: Vec<(&String, &Value)> =
                fields.filter(|(_, value)| !value.is_array() && !value.is_object()).collect();
            if first {
                let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                writeln!(out, "{}", names.join(","))?;
            }
            let values: Vec<String> = columns.iter().map(|(_, value)| csv_value(value)).collect();
            writeln!(out, "{}", values.join(","))?;
        }
        Format::Json | Format::Md => {
            let text = format!("{record:#}").replace('\n', "\n  ");
            write!(out, "{}  {text}", if first { "[\n" } else { ",\n" })?;
        }
    }
    Ok(())
}

/// A value in a column; a negative width aligns to the left.
fn cell(text: &str, width: i32) -> String {
    let size = width.unsigned_abs() as usize;
    if width < 0 { format!("{text:<size$}") } else { format!("{text:>size$}") }
}

fn rule(width: i32) -> String {
    let size = width.unsigned_abs() as usize;
    if width < 0 { "-".repeat(size) } else { format!("{}:", "-".repeat(size - 1)) }
}

fn csv_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Bool(value) => format!("\"{}\"", u8::from(*value)),
        Value::Null => "\"\"".to_owned(),
        other => format!("\"{other}\""),
    }
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn parameters(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 1000.0 { format!("{millions:.2} M") } else { format!("{:.2} B", millions / 1000.0) }
}

fn best(outcome: &Outcome) -> f64 {
    outcome.rates().into_iter().fold(0.0, f64::max)
}

/// The share of the memory bandwidth that generation reads weights with; `None` where prompts are part of the
/// test.
fn bandwidth_share(facts: &ModelFacts, outcome: &Outcome) -> Option<f64> {
    let generation = outcome.test.prompt == 0 || outcome.best;
    let (mean, _) = mean_and_deviation(&outcome.rates());
    let rate = if outcome.best { best(outcome) } else { mean };
    generation.then_some(rate * facts.bytes_per_token as f64 / facts.bandwidth?)
}

fn note(facts: &ModelFacts, outcomes: &[Outcome]) -> String {
    let mut text =
        format!("{}, {} threads: load {:.1} ms", facts.label, facts.threads, facts.load.as_secs_f64() * 1e3);
    if !facts.without.is_empty() {
        text.push_str(&format!(", without {}", facts.without.join(", ")));
    }
    if let Some(peak) = facts.peak_memory {
        text.push_str(&format!(", peak memory {}", Bytes(peak)));
    }
    if let Some(bandwidth) = facts.bandwidth {
        text.push_str(&format!(", memory read at {:.1} GB/s", bandwidth / 1e9));
    }
    for outcome in outcomes {
        if let Some(share) = bandwidth_share(facts, outcome) {
            text.push_str(&format!(", {} {:.0} % of that", outcome.label, share * 100.0));
        }
    }
    text
}

/// llama-bench's fields in its order, then gruff's own.
fn record(facts: &ModelFacts, outcome: &Outcome) -> Map<String, Value> {
    let parts = [setup_fields(facts), foreign_fields(), result_fields(outcome), own_fields(facts, outcome)];
    let objects = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    objects.flatten().collect()
}

fn setup_fields(facts: &ModelFacts) -> Value {
    json!({
        "build_commit": concat!("gruff-", env!("CARGO_PKG_VERSION")),
        "build_number": 0,
        "cpu_info": system::cpu_name().unwrap_or_default(),
        "gpu_info": "",
        "backends": facts.backend,
        "model_filename": facts.path,
        "model_type": facts.label,
        "model_size": facts.size,
        "model_n_params": facts.parameters,
        "n_batch": facts.ubatch,
        "n_ubatch": facts.ubatch,
        "n_threads": facts.threads,
        "cpu_mask": "0x0",
        "cpu_strict": false,
        "poll": 0,
        "type_k": facts.kv_type,
        "type_v": facts.kv_type,
    })
}

/// Settings that gruff does not have, with the values that describe what it does.
fn foreign_fields() -> Value {
    json!({
        "n_gpu_layers": 0,
        "n_cpu_moe": 0,
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": true,
        "flash_attn": 1,
        "devices": "none",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "mmap",
        "lazy_mode": "auto",
        "embeddings": false,
        "no_op_offload": 0,
        "no_host": false,
        "repack": false,
        "fit_target": 0,
        "fit_min_ctx": 0,
    })
}

fn result_fields(outcome: &Outcome) -> Value {
    let nanoseconds: Vec<f64> = outcome.times.iter().map(|time| time.as_nanos() as f64).collect();
    let rates = outcome.rates();
    let (average_ns, deviation_ns) = mean_and_deviation(&nanoseconds);
    let (average, deviation) = mean_and_deviation(&rates);
    json!({
        "n_prompt": outcome.test.prompt,
        "n_gen": outcome.test.generated,
        "n_depth": outcome.test.depth,
        "test_time": outcome.began,
        "avg_ns": average_ns.round() as u64,
        "stddev_ns": deviation_ns.round() as u64,
        "avg_ts": average,
        "stddev_ts": deviation,
        "samples_ns": nanoseconds.iter().map(|ns| *ns as u64).collect::<Vec<_>>(),
        "samples_ts": rates,
    })
}

fn own_fields(facts: &ModelFacts, outcome: &Outcome) -> Value {
    let mut fields = json!({
        "test": outcome.label,
        "best_ts": best(outcome),
        "without": facts.without,
        "load_ms": facts.load.as_secs_f64() * 1e3,
        "peak_memory": facts.peak_memory,
        "bytes_per_token": facts.bytes_per_token,
        "read_bandwidth": facts.bandwidth,
        "bandwidth_share": bandwidth_share(facts, outcome),
    });
    if let Some(profile) = &outcome.profile {
        fields["profile"] = profile.json();
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_llama_benchs_shape() {
        assert_eq!(cell("pp512", 15), "          pp512");
        assert_eq!(cell("CPU", -10), "CPU       ");
        assert_eq!(rule(10), "---------:");
        assert_eq!(rule(-10), "----------");
        assert_eq!(size(96_576_768), "92.10 MiB");
        assert_eq!(parameters(134_515_008), "134.52 M");
    }

    #[test]
    fn csv_values_are_quoted() {
        assert_eq!(csv_value(&json!("a\"b")), "\"a\"\"b\"");
        assert_eq!(csv_value(&json!(true)), "\"1\"");
        assert_eq!(csv_value(&json!(512)), "\"512\"");
        assert_eq!(csv_value(&json!(null)), "\"\"");
    }
}
