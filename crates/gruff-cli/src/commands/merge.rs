use std::path::PathBuf;

use clap::Args;
use gruff::floors::convert::merge;

use crate::args::SourceArgs;
use crate::console::Console;
use crate::progress::ConversionProgress;

/// Put the files of a split GGUF model together in one
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gruff merge model-00001-of-00003.gguf model.gguf")]
pub(crate) struct Merge {
    /// The model: any of its files
    model: String,
    /// The file to make
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    source: SourceArgs,
}

impl Merge {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let checkpoint = self.source.open(&self.model, console)?;
        let progress = ConversionProgress::new(*console, self.out.display().to_string());
        let path = merge(checkpoint.gguf(), &self.out, self.overwrite, &progress)?;
        println!("{}", path.display());
        Ok(())
    }
}
