use std::io::Write;

use clap::Args;

use crate::args::SourceArgs;
use crate::console::{Console, stdout};
use crate::size::Bytes;

/// Download models and print where their files are
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff download unsloth/Qwen3.5-4B-GGUF:Q4_K_M\n  \
                  gruff download unsloth/Qwen3.5-4B-GGUF --file Qwen3.5-4B-Q8_0.gguf --revision main")]
pub(crate) struct Download {
    /// The models, as for `gruff run`
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    #[command(flatten)]
    source: SourceArgs,
}

impl Download {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let mut out = stdout();
        for model in &self.models {
            let checkpoint = self.source.open(model, console)?;
            console.note(format_args!("{}: {}", checkpoint.files().id, Bytes(checkpoint.gguf().file_size())));
            for path in &checkpoint.files().parts {
                writeln!(out, "{}", path.display())?;
            }
        }
        Ok(())
    }
}
