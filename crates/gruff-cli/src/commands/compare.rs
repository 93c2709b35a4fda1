use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use gruff::Checkpoint;
use gruff::floors::convert::{ConvertOptions, OutType, convert};
use gruff::floors::gguf::Unfinished;
use gruff_eval::{
    LogitsComparison, TensorComparison, Windows, compare_logits, compare_tensors, plot_tensors,
};
use serde_json::{Value as Json, json};

use crate::args::{DeviceArgs, SourceArgs, read_file};
use crate::console::{Console, stdout};
use crate::failure::usage;
use crate::progress::{ConversionProgress, Counter};

/// Compare two checkpoints, tensor by tensor and by their logits on a text
///
/// Each is a GGUF model, or a folder that transformers saved: that is converted to f32 beside the system's temporary
/// files first. A line a tensor: type in both, the largest and the root mean square difference, that relative to the tensor
/// itself, and the cosine between both. With a text, the second model's logits are held against the first's, too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff compare model-F16.gguf model-Q8_0.gguf\n  \
                  gruff compare model-F16.gguf model-Q4_K_M.gguf -f text.txt --chunks 8 --plot errors.svg\n  \
                  gruff compare a.gguf b.gguf --tolerance 0 -q && echo the same weights")]
pub(crate) struct Compare {
    /// The checkpoint to compare with
    a: String,
    /// The checkpoint to compare
    b: String,
    /// Text to compare logits on; - for standard input
    #[arg(short, long = "text", value_name = "FILE")]
    f: Option<PathBuf>,
    /// Tokens in a window of the text
    #[arg(long, value_name = "N", default_value_t = 512, requires = "f")]
    ctx: usize,
    /// The first so many windows of the text only
    #[arg(long, value_name = "N", requires = "f")]
    chunks: Option<usize>,
    /// End with exit code 1 when a tensor's relative error, or the NMSE of logits, is above this, or tensors are
    /// missing or of other shapes
    #[arg(long, value_name = "ERROR")]
    tolerance: Option<f64>,
    /// Draw the relative error of each tensor
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Replace the picture if it is there
    #[arg(long)]
    overwrite: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Compare {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        if let Some(path) = self.plot.as_deref().filter(|path| !self.overwrite && path.exists()) {
            return usage(format!("{} exists; --overwrite replaces it", path.display()));
        }
        if self.tolerance.is_some_and(|tolerance| !(0.0..f64::INFINITY).contains(&tolerance)) {
            return usage("--tolerance is an error: 0 or more");
        }
        let text = self.f.as_deref().map(read_file).transpose()?;
        let scratch = tempfile::tempdir().context("no folder for temporary files can be made")?;
        // Removed at the end, be it by Ctrl-C.
        let scratch = Unfinished::scratch(scratch.keep());
        let a = self.open(&self.a, &scratch.path().join("a.gguf"), console)?;
        let b = self.open(&self.b, &scratch.path().join("b.gguf"), console)?;
        let tensors = self.tensors(&a, &b, console)?;
        let logits = text.map(|text| self.logits(&a, &b, &text, console)).transpose()?;
        if let Some(path) = &self.plot {
            let title = format!("{} against {}", self.b, self.a);
            plot_tensors(path, &title, &tensors)?;
        }
        if self.json {
            let report = json!({
                "a": self.a, "b": self.b,
                "tensors": tensors, "logits": logits, "summary": summary(&tensors),
            });
            writeln!(stdout(), "{report:#}")?;
        } else {
            print(&tensors, logits.as_ref())?;
        }
        self.judge(&tensors, logits.as_ref())
    }

    /// Opens a checkpoint, by way of `converted` where it is a folder that transformers saved.
    fn open(&self, name: &str, converted: &Path, console: &Console) -> anyhow::Result<Checkpoint> {
        let folder = Path::new(name);
        if !folder.join("config.json").is_file() || holds_gguf(folder) {
            return self.source.open(name, console);
        }
        let options = ConvertOptions { outtype: OutType::F32, ..ConvertOptions::default() };
        convert(folder, converted, &options, &ConversionProgress::new(*console, name))?;
        self.source.open(&converted.display().to_string(), console)
    }

    fn tensors(
        &self,
        a: &Checkpoint,
        b: &Checkpoint,
        console: &Console,
    ) -> anyhow::Result<Vec<TensorComparison>> {
        let counter = Counter::new(console, "tensors");
        let mut done = 0;
        let tensors = compare_tensors(a.gguf(), b.gguf(), |_, total| {
            done += 1;
            counter.step(done, total)
        })?;
        counter.finish()?;
        Ok(tensors)
    }

    fn logits(
        &self,
        a: &Checkpoint,
        b: &Checkpoint,
        text: &str,
        console: &Console,
    ) -> anyhow::Result<LogitsComparison> {
        let evaluator = |checkpoint| self.device.evaluator(&self.source, checkpoint, console);
        let (a, b) = (evaluator(a)?, evaluator(b)?);
        let windows = Windows { ctx: self.ctx, stride: None, chunks: self.chunks };
        let counter = Counter::new(console, "windows");
        let logits = compare_logits(&a, &b, text, &windows, |done, total| counter.step(done, total))?;
        counter.finish()?;
        Ok(logits)
    }

    /// An error when the tolerance is exceeded.
    fn judge(&self, tensors: &[TensorComparison], logits: Option<&LogitsComparison>) -> anyhow::Result<()> {
        let Some(tolerance) = self.tolerance else { return Ok(()) };
        let beyond: Vec<&TensorComparison> =
            tensors.iter().filter(|tensor| tensor.relative() > tolerance).collect();
        if let Some(first) = beyond.first() {
            bail!(
                "{} of {} tensors differ by more than {tolerance}, {} among them",
                beyond.len(),
                tensors.len(),
                first.name
            );
        }
        match logits {
            Some(logits) if logits.nmse > tolerance => {
                bail!("the NMSE of logits is {:.3e}, above {tolerance}", logits.nmse)
            }
            _ => Ok(()),
        }
    }
}

fn holds_gguf(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|path| path.extension().is_some_and(|extension| extension == "gguf"))
}

fn summary(tensors: &[TensorComparison]) -> Json {
    let comparable = || tensors.iter().filter_map(|tensor| tensor.errors.map(|errors| (tensor, errors)));
    let worst = comparable().max_by(|(_, a), (_, b)| a.relative.total_cmp(&b.relative));
    json!({
        "tensors": tensors.len(),
        "equal": comparable().filter(|(_, errors)| errors.max == 0.0 && errors.not_finite == 0).count(),
        "only_in_a": tensors.iter().filter(|tensor| tensor.other_shape.is_none()).count(),
        "only_in_b": tensors.iter().filter(|tensor| tensor.shape.is_none()).count(),
        "other_shapes": tensors.iter().filter(|tensor| {
            tensor.shape.is_some() && tensor.other_shape.is_some() && !tensor.matches()
        }).count(),
        "worst": worst.map(|(tensor, errors)| json!({ "name": tensor.name, "relative": errors.relative })),
    })
}

fn print(tensors: &[TensorComparison], logits: Option<&LogitsComparison>) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(stdout());
    let width = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0).clamp(6, 60);
    writeln!(
        out,
        "{:<width$} {:<16} {:>10} {:>10} {:>10} {:>10}",
        "tensor", "types", "max", "RMS", "relative", "cosine"
    )?;
    for tensor in tensors {
        writeln!(out, "{:<width$} {}", shown(&tensor.name), line(tensor))?;
    }
    let summary = summary(tensors);
    writeln!(out, "\n{:<20} {} of {}", "equal", summary["equal"], summary["tensors"])?;
    for (name, key) in [
        ("only in the first", "only_in_a"),
        ("only in the second", "only_in_b"),
        ("of other shapes", "other_shapes"),
    ] {
        if summary[key] != 0 {
            writeln!(out, "{name:<20} {}", summary[key])?;
        }
    }
    if let Some(logits) = logits {
        writeln!(out, "{:<20} {:.3e}", "NMSE of logits", logits.nmse)?;
        writeln!(out, "{:<20} {:.6} ± {:.6}", "KL divergence", logits.kld.value, logits.kld.error)?;
        let (value, error) = (100.0 * logits.same_top.value, 100.0 * logits.same_top.error);
        writeln!(out, "{:<20} {value:.3} ± {error:.3} %", "same top")?;
        let (a, b) = (logits.perplexity.value, logits.other_perplexity.value);
        writeln!(out, "{:<20} {a:.4} and {b:.4}", "perplexities")?;
        writeln!(out, "{:<20} {}", "positions", logits.tokens)?;
    }
    Ok(out.flush()?)
}

/// What stands behind a tensor's name.
fn line(tensor: &TensorComparison) -> String {
    let types = match (tensor.block_type.as_deref(), tensor.other_type.as_deref()) {
        (Some(a), Some(b)) if a == b => a.to_owned(),
        (Some(a), Some(b)) => format!("{a} {b}"),
        (Some(a), None) => return format!("{a:<16} only in the first"),
        (None, b) => return format!("{:<16} only in the second", b.unwrap_or("?")),
    };
    match &tensor.errors {
        None if !tensor.matches() => {
            let shape = |shape: &Option<Vec<u64>>| {
                shape.as_ref().map_or_else(String::new, |shape| format!("{shape:?}"))
            };
            format!("{types:<16} {} and {}", shape(&tensor.shape), shape(&tensor.other_shape))
        }
        None => format!("{types:<16} cannot be unpacked"),
        Some(errors) => {
            let odd = match errors.not_finite {
                0 => String::new(),
                count => format!("  {count} not finite"),
            };
            format!(
                "{types:<16} {:>10.3e} {:>10.3e} {:>10.3e} {:>10.7}{odd}",
                errors.max, errors.rms, errors.relative, errors.cosine
            )
        }
    }
}

/// A name for a terminal: control characters would be obeyed there.
fn shown(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
