use std::path::PathBuf;

use clap::Args;
use gruff_eval::{ImatrixOptions, importance_matrix};

use crate::args::{DeviceArgs, SourceArgs, read_file};
use crate::console::Console;
use crate::failure::usage;
use crate::progress::Counter;

/// Collect an importance matrix: which inputs of each matrix matter
///
/// Puts a text through the model and sums the squares of what enters every matrix of its blocks, for experts
/// apart. The GGUF file is the one that llama-imatrix writes; `quantize --imatrix`, here and in llama.cpp, spends
/// bits where it says. Take an unquantized model and a text like the ones it will see.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff imatrix model-F16.gguf -f calibration.txt -o imatrix.gguf\n  \
                  gruff imatrix model-F16.gguf -f calibration.txt -o imatrix.gguf --chunks 100")]
pub(crate) struct Imatrix {
    /// The model
    model: String,
    /// Text to put through it; - for standard input
    #[arg(short, long = "text", value_name = "FILE")]
    f: PathBuf,
    /// Where to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens in a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    ctx: usize,
    /// The first so many windows only
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Collect for the output matrix, too
    #[arg(long)]
    process_output: bool,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Imatrix {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        if !self.overwrite && self.out.exists() {
            return usage(format!("{} exists; --overwrite replaces it", self.out.display()));
        }
        let text = read_file(&self.f)?;
        let checkpoint = self.source.open(&self.model, console)?;
        let evaluator = self.device.evaluator(&self.source, &checkpoint, console)?;
        let tokens = evaluator.tokenize(&text)?;
        let options =
            ImatrixOptions { ctx: self.ctx, chunks: self.chunks, process_output: self.process_output };
        let counter = Counter::new(console, "windows");
        let matrix =
            importance_matrix(&evaluator, &tokens, &options, |done, total| counter.step(done, total))?;
        counter.finish()?;
        for (tensor, empty, experts) in matrix.partial() {
            console.warn(format_args!(
                "{tensor}: no token reached {empty} of {experts} experts; take more text"
            ));
        }
        matrix.write(&self.out, &[&self.f.display().to_string()])?;
        console.note(format_args!(
            "{}: {} tensors, {} windows of {} tokens",
            self.out.display(),
            matrix.tensors.len(),
            matrix.chunks,
            matrix.ctx
        ));
        Ok(())
    }
}
