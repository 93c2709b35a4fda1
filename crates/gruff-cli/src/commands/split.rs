use std::path::PathBuf;

use clap::Args;
use gruff::floors::convert::split;
use gruff::floors::gguf::Split as SplitBy;

use crate::args::SourceArgs;
use crate::console::Console;
use crate::progress::ConversionProgress;
use crate::size::parse_bytes;

/// Cut a GGUF model into several files
///
/// The files are OUT-00001-of-0000N.gguf and so on, as llama.cpp names and reads them; any of them opens the whole.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff split model.gguf model.gguf --max-size 2G\n  \
                  gruff split model.gguf parts/model.gguf --max-tensors 128")]
pub(crate) struct Split {
    /// The model
    model: String,
    /// What the files are named after
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Bytes of tensors that a file has at most, such as 2G; a larger tensor has a file to itself
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "max_tensors")]
    max_size: Option<u64>,
    /// Tensors that a file has at most [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tensors: Option<u32>,
    /// Replace files that are there
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    source: SourceArgs,
}

/// llama-gguf-split's default.
const MAX_TENSORS: u32 = 128;

impl Split {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let checkpoint = self.source.open(&self.model, console)?;
        let by = match self.max_size {
            Some(bytes) => SplitBy::Bytes(bytes),
            None => SplitBy::Tensors(self.max_tensors.unwrap_or(MAX_TENSORS) as usize),
        };
        let progress = ConversionProgress::new(*console, self.out.display().to_string());
        for path in split(checkpoint.gguf(), &self.out, by, self.overwrite, &progress)? {
            println!("{}", path.display());
        }
        Ok(())
    }
}
