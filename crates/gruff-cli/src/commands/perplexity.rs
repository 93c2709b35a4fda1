use std::fmt::Display;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use gruff_eval::{
    ChunkDivergence, ChunkPerplexity, Divergence, Estimate, Evaluator, MultipleChoice, Percentiles, Windows,
    kl_divergence, multiple_choice, perplexity, plot_perplexity, read_tasks, save_logits,
};
use serde_json::{Value as Json, json};

use crate::args::{DeviceArgs, SourceArgs, read_file};
use crate::console::{Console, stdout};
use crate::failure::usage;
use crate::progress::Counter;

/// Measure how well a model foretells a text
///
/// The text is cut into windows of --ctx tokens, each begins with the model's begin-of-text token, and the second
/// half of each is scored: llama-perplexity's measure, so its values can be compared. --save-logits keeps what the
/// model foretold; --kl-divergence measures how far another model (a quantization, say) is from that.
/// --multiple-choice scores HellaSwag-style tasks instead of a text.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gruff perplexity model-F16.gguf -f wiki.test.raw --save-logits base.kld\n  \
                  gruff perplexity model-Q4_K_M.gguf --kl-divergence base.kld\n  \
                  gruff perplexity model.gguf --multiple-choice hellaswag_val.jsonl --tasks 400"
)]
pub(crate) struct Perplexity {
    /// The model
    model: String,
    /// Text to score; - for standard input
    #[arg(short, long = "text", value_name = "FILE", required_unless_present_any = ["kl_divergence", "multiple_choice"])]
    f: Option<PathBuf>,
    /// Tokens in a window [default: 512]
    #[arg(long, value_name = "N", conflicts_with_all = ["kl_divergence", "multiple_choice"])]
    ctx: Option<usize>,
    /// Tokens from window to window; the last so many of each are scored
    #[arg(long, value_name = "N", conflicts_with = "save_logits")]
    stride: Option<usize>,
    /// The first so many windows only
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Keep the log-probabilities in this file, as llama-perplexity's --save-all-logits does
    #[arg(long, value_name = "FILE", conflicts_with = "kl_divergence")]
    save_logits: Option<PathBuf>,
    /// Compare with the log-probabilities in this file, on the text that it holds
    #[arg(long, value_name = "FILE", conflicts_with_all = ["f", "stride"])]
    kl_divergence: Option<PathBuf>,
    /// Score tasks: a JSON object a line with ctx, endings and label; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["f", "stride", "chunks", "save_logits", "kl_divergence"])]
    multiple_choice: Option<PathBuf>,
    /// The first so many tasks only
    #[arg(long, value_name = "N", requires = "multiple_choice", conflicts_with = "f")]
    tasks: Option<usize>,
    /// Draw the perplexity window by window
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["kl_divergence", "multiple_choice"])]
    plot: Option<PathBuf>,
    /// Print a JSON object at the end, instead of lines
    #[arg(long)]
    json: bool,
    /// Replace files that exist
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Perplexity {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let targets = [&self.save_logits, &self.plot];
        if let Some(path) = targets.into_iter().flatten().find(|path| !self.overwrite && path.exists()) {
            return usage(format!("{} exists; --overwrite replaces it", path.display()));
        }
        if self.save_logits.is_some() && self.save_logits == self.plot {
            return usage("--save-logits and --plot name the same file; give each its own");
        }
        if let Some(path) = &self.kl_divergence {
            // A file of another kind is found out before the model is loaded.
            gruff_eval::LogitsReader::open(path)?;
        }
        let checkpoint = self.source.open(&self.model, console)?;
        let evaluator = self.device.evaluator(&self.source, &checkpoint, console)?;
        let mut report = match (&self.multiple_choice, &self.kl_divergence, &self.f) {
            (Some(path), ..) => self.score_tasks(&evaluator, path, console)?,
            (_, Some(path), _) => self.compare(&evaluator, path, console)?,
            (_, _, Some(path)) => self.score_text(&evaluator, path, console)?,
            (None, None, None) => return usage("there is nothing to score; give a text with -f"),
        };
        if self.json {
            report["model"] = json!(checkpoint.files().id);
            writeln!(stdout(), "{report:#}")?;
        }
        Ok(())
    }

    fn score_text(&self, evaluator: &Evaluator, path: &Path, console: &Console) -> anyhow::Result<Json> {
        let tokens = evaluator.tokenize(&read_file(path)?)?;
        let ctx = self.ctx.unwrap_or(Windows::default().ctx);
        let windows = Windows { ctx, stride: self.stride, chunks: self.chunks };
        let mut lines = Lines::new(console, self.json, "windows");
        let mut on_chunk = |chunk: &ChunkPerplexity| {
            let &ChunkPerplexity { chunk, chunks, perplexity, own } = chunk;
            lines.add(
                chunk,
                chunks,
                &[
                    ("chunk", chunk.to_string()),
                    ("perplexity", fixed(perplexity, 4)),
                    ("of this chunk", format!("{own:.4}")),
                ],
            )
        };
        let result = match &self.save_logits {
            Some(path) => save_logits(evaluator, &tokens, &windows, path, &mut on_chunk)?,
            None => perplexity(evaluator, &tokens, &windows, &mut on_chunk)?,
        };
        let stopped = lines.finish()?;
        if let Some(plot) = &self.plot {
            plot_perplexity(plot, &format!("{} on {}", self.model, path.display()), &result.chunks)?;
        }
        let bits = result.bits_per_byte.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}"));
        self.print(&[
            ("perplexity", fixed(result.perplexity, 4)),
            ("mean nll", fixed(result.nll, 5)),
            ("bits per byte", bits),
            ("tokens scored", result.tokens.to_string()),
        ])?;
        stopped?;
        let mut report = serde_json::to_value(&result)?;
        report["ctx"] = json!(windows.ctx);
        report["stride"] = json!(self.stride);
        Ok(report)
    }

    fn compare(&self, evaluator: &Evaluator, path: &Path, console: &Console) -> anyhow::Result<Json> {
        let mut lines = Lines::new(console, self.json, "windows");
        let result = kl_divergence(evaluator, path, self.chunks, |chunk: &ChunkDivergence| {
            let fields = [
                ("chunk", chunk.chunk.to_string()),
                ("perplexity", fixed(chunk.perplexity, 4)),
                ("ln(PPL/PPL base)", fixed(chunk.ln_ratio, 5)),
                ("KL divergence", fixed(chunk.kld, 5)),
                ("RMS Δp", percent(chunk.rms_delta_p)),
                ("same top", percent(chunk.same_top)),
            ];
            lines.add(chunk.chunk, chunk.chunks, &fields)
        })?;
        let stopped = lines.finish()?;
        self.print(&divergence_lines(&result))?;
        stopped?;
        Ok(serde_json::to_value(&result)?)
    }

    fn score_tasks(&self, evaluator: &Evaluator, path: &Path, console: &Console) -> anyhow::Result<Json> {
        let text = read_file(path)?;
        let mut tasks = read_tasks(&text).with_context(|| path.display().to_string())?;
        tasks.truncate(self.tasks.unwrap_or(usize::MAX));
        if tasks.is_empty() {
            return usage("--tasks 0 scores nothing; take 1 or more");
        }
        let counter = Counter::new(console, "tasks");
        let result = multiple_choice(evaluator, &tasks, |done| counter.step(done, tasks.len()))
            .with_context(|| path.display().to_string())?;
        let stopped = counter.finish();
        let MultipleChoice { tasks, acc, acc_norm, acc_token, .. } = &result;
        let line = |accuracy: &gruff_eval::Accuracy| {
            let (low, high) = (100.0 * accuracy.low, 100.0 * accuracy.high);
            format!("{}  (95 %: {low:.2} .. {high:.2} %)", percent(accuracy.share))
        };
        self.print(&[
            ("acc", line(acc)),
            ("acc_norm", line(acc_norm)),
            ("acc_token", line(acc_token)),
            ("tasks", tasks.to_string()),
        ])?;
        stopped?;
        Ok(serde_json::to_value(&result)?)
    }

    /// Names and values below one another, for people.
    fn print(&self, lines: &[(&str, String)]) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let mut out = stdout();
        for (name, value) in lines {
            writeln!(out, "{name:<20} {value}")?;
        }
        Ok(())
    }
}

fn divergence_lines(result: &Divergence) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("perplexity", fixed(result.perplexity, 6)),
        ("base perplexity", fixed(result.base_perplexity, 6)),
        ("correlation", format!("{:.2} %", 100.0 * result.correlation)),
        ("ln(PPL/PPL base)", fixed(result.ln_ratio, 6)),
        ("PPL/PPL base", fixed(result.ratio, 6)),
        ("PPL - PPL base", fixed(result.difference, 6)),
        ("", String::new()),
        ("mean KLD", fixed(result.kld, 6)),
    ];
    lines.extend(percentile_lines(&result.kld_percentiles, |value| format!("{value:.6}")));
    lines.extend([
        ("", String::new()),
        ("mean Δp", percent(result.delta_p)),
        ("RMS Δp", percent(result.rms_delta_p)),
    ]);
    lines.extend(percentile_lines(&result.delta_p_percentiles, |value| format!("{:.3} %", 100.0 * value)));
    lines.extend([
        ("", String::new()),
        ("same top", percent(result.same_top)),
        ("tokens compared", result.tokens.to_string()),
    ]);
    lines
}

fn percentile_lines(percentiles: &Percentiles, show: impl Fn(f64) -> String) -> Vec<(&'static str, String)> {
    let p = percentiles;
    [
        ("  maximum", p.maximum),
        ("  99.9 %", p.p99_9),
        ("  99 %", p.p99),
        ("  95 %", p.p95),
        ("  90 %", p.p90),
        ("  75 %", p.p75),
        ("  median", p.median),
        ("  25 %", p.p25),
        ("  10 %", p.p10),
        ("  5 %", p.p5),
        ("  1 %", p.p1),
        ("  0.1 %", p.p0_1),
        ("  minimum", p.minimum),
    ]
    .map(|(name, value)| (name, show(value)))
    .to_vec()
}

/// A value with its error.
fn fixed(Estimate { value, error }: Estimate, digits: usize) -> String {
    format!("{value:.digits$} ± {error:.digits$}")
}

fn percent(Estimate { value, error }: Estimate) -> String {
    format!("{:.3} ± {:.3} %", 100.0 * value, 100.0 * error)
}

/// A table that grows by a line a window, under a progress bar. A reader that has gone away ends the work.
struct Lines {
    counter: Counter,
    silent: bool,
    begun: bool,
    fault: Option<std::io::Error>,
}

impl Lines {
    fn new(console: &Console, silent: bool, what: &'static str) -> Self {
        Self { counter: Counter::new(console, what), silent, begun: false, fault: None }
    }

    fn add(&mut self, done: usize, total: usize, fields: &[(&str, String)]) -> ControlFlow<()> {
        let (silent, begun) = (self.silent, std::mem::replace(&mut self.begun, true));
        let written = self.counter.advance(done, total, || {
            if silent {
                return Ok(());
            }
            let mut out = stdout();
            if !begun {
                row(&mut out, fields.iter().map(|(name, _)| name))?;
            }
            row(&mut out, fields.iter().map(|(_, value)| value))
        });
        match written {
            Ok(()) => self.counter.step(done, total),
            Err(error) => {
                self.fault = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Leaves a line between the table and what follows; within, an error when Ctrl-C has ended the work early.
    fn finish(self) -> std::io::Result<anyhow::Result<()>> {
        match self.fault {
            Some(fault) => return Err(fault),
            None if self.silent => {}
            None => writeln!(stdout())?,
        }
        Ok(self.counter.finish())
    }
}

/// Fields in columns; the first, a number, is narrow.
fn row(out: &mut impl Write, fields: impl Iterator<Item = impl Display>) -> std::io::Result<()> {
    for (index, field) in fields.enumerate() {
        if index == 0 {
            write!(out, "{field:<6}")?;
        } else {
            write!(out, " {field:<22}")?;
        }
    }
    writeln!(out)
}
