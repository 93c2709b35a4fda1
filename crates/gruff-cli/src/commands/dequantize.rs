use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gruff::floors::convert::{DequantizeOptions, Dtype, dequantize};

use crate::args::SourceArgs;
use crate::console::Console;
use crate::progress::ConversionProgress;
use crate::size::parse_bytes;

/// Unpack a GGUF model into a folder that transformers opens
///
/// `AutoModelForCausalLM.from_pretrained(OUT_DIR)` and `AutoTokenizer.from_pretrained(OUT_DIR)` open it as it is, to
/// fine-tune for example; `gruff convert` leads back. The folder takes its name when it is whole.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff dequantize model-Q4_K_M.gguf ./model\n  \
                  gruff dequantize unsloth/Qwen3.5-0.8B-GGUF:Q8_0 ./model --dtype f32")]
pub(crate) struct Dequantize {
    /// The model
    model: String,
    /// The folder to make; it must not exist, or be empty
    #[arg(value_name = "OUT_DIR")]
    out: PathBuf,
    /// How values are stored
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: DtypeArg,
    /// The most that one file of weights has
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = parse_bytes)]
    max_shard_size: u64,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DtypeArg {
    /// What most models are trained in
    Bf16,
    /// IEEE half precision
    F16,
    /// Exact
    F32,
}

impl From<DtypeArg> for Dtype {
    fn from(dtype: DtypeArg) -> Self {
        match dtype {
            DtypeArg::Bf16 => Dtype::BF16,
            DtypeArg::F16 => Dtype::F16,
            DtypeArg::F32 => Dtype::F32,
        }
    }
}

impl Dequantize {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let checkpoint = self.source.open(&self.model, console)?;
        let options = DequantizeOptions { dtype: self.dtype.into(), shard_bytes: self.max_shard_size };
        let progress = ConversionProgress::new(*console, self.out.display().to_string());
        let made = dequantize(checkpoint.gguf(), &self.out, &options, &progress)?;
        console.note(format_args!(
            "{}: {}, {} tensors, {} parameters",
            made.folder.display(),
            made.class,
            made.tensors,
            made.values
        ));
        Ok(())
    }
}
