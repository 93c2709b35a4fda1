use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gruff::floors::convert::{ConvertOptions, OutType, convert};

use crate::console::Console;
use crate::progress::ConversionProgress;
use crate::size::Bytes;

/// Make a GGUF file of a folder that transformers saved
///
/// The folder has config.json, safetensors (sharded or not) and tokenizer.json; chat template and
/// generation_config.json are taken over where they are. The file takes its name when it is whole.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff convert ./Qwen3.5-0.8B qwen3.5-0.8b-bf16.gguf\n  \
                  gruff convert ./my-finetune my-finetune-q8_0.gguf --outtype q8_0")]
pub(crate) struct Convert {
    /// The folder
    #[arg(value_name = "HF_DIR")]
    folder: PathBuf,
    /// The file to make
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// How weights are stored
    #[arg(long, value_enum, default_value = "bf16")]
    outtype: OutTypeArg,
    /// Name of the model [default: the model card's, or the folder's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Pre-tokenizer to write instead of the one that tokenizer.json shows
    #[arg(long, value_name = "NAME")]
    pre_tokenizer: Option<String>,
    /// Leave out the blocks for multi-token prediction
    #[arg(long)]
    no_mtp: bool,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutTypeArg {
    /// Exact
    F32,
    /// IEEE half precision
    F16,
    /// What most models are trained in
    Bf16,
    /// 8 bits
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<OutTypeArg> for OutType {
    fn from(outtype: OutTypeArg) -> Self {
        match outtype {
            OutTypeArg::F32 => OutType::F32,
            OutTypeArg::F16 => OutType::F16,
            OutTypeArg::Bf16 => OutType::BF16,
            OutTypeArg::Q8_0 => OutType::Q8_0,
        }
    }
}

impl Convert {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let options = ConvertOptions {
            outtype: self.outtype.into(),
            name: self.name,
            pre_tokenizer: self.pre_tokenizer,
            no_mtp: self.no_mtp,
            overwrite: self.overwrite,
        };
        let progress = ConversionProgress::new(*console, self.out.display().to_string());
        let made = convert(&self.folder, &self.out, &options, &progress)?;
        console.note(format_args!(
            "{}: {}, {} tensors, {}",
            made.path.display(),
            made.architecture,
            made.tensors,
            Bytes(made.bytes)
        ));
        Ok(())
    }
}
