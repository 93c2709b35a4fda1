//! Arguments that several commands share.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use gruff::floors::kernels::Without;
use gruff::{
    AutoModelForCausalLM, AutoTokenizer, Checkpoint, Context, DEVICES, Dtype, FromCheckpoint, Hub, KvDtype,
    LoadOptions, Pretrained, SplitMode, is_device,
};
use gruff_eval::{Evaluator, EvaluatorOptions};

use crate::console::Console;
use crate::failure::usage;
use crate::progress::DownloadProgress;
use crate::size::parse_bytes;

/// Where a model's files come from.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model files")]
pub(crate) struct SourceArgs {
    /// File within the repository or folder
    #[arg(long, value_name = "NAME")]
    file: Option<String>,
    /// Branch, tag or commit of the repository
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Cache folder instead of huggingface_hub's
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Use what the cache has and never the network
    #[arg(long)]
    offline: bool,
    /// Pre-tokenizer to use instead of the one that the file names
    #[arg(long, value_name = "NAME")]
    pre_tokenizer: Option<String>,
}

impl SourceArgs {
    /// Finds the files of `model`, downloading what is missing, and opens them.
    pub(crate) fn open(&self, model: &str, console: &Console) -> anyhow::Result<Checkpoint> {
        let mut from = Pretrained::<AutoTokenizer>::new(model)
            .local_files_only(self.offline)
            .progress(Arc::new(DownloadProgress::new(*console)));
        if let Some(file) = &self.file {
            from = from.gguf_file(file);
        }
        if let Some(revision) = &self.revision {
            from = from.revision(revision);
        }
        if let Some(folder) = &self.cache_dir {
            from = from.cache_dir(folder);
        }
        let checkpoint = from.checkpoint()?;
        for path in checkpoint.gguf().paths() {
            console.detail(format_args!("file: {}", path.display()));
        }
        Ok(checkpoint)
    }

    /// A client of the Hub.
    pub(crate) fn hub(&self, console: &Console) -> anyhow::Result<Hub> {
        let mut hub =
            Hub::builder().local_files_only(self.offline).progress(Arc::new(DownloadProgress::new(*console)));
        if let Some(folder) = &self.cache_dir {
            hub = hub.cache_dir(folder);
        }
        Ok(hub.build()?)
    }

    /// The revision that is asked for.
    pub(crate) fn revision(&self) -> Option<String> {
        self.revision.clone()
    }

    /// The file that is asked for.
    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The options that these arguments alone give.
    pub(crate) fn options(&self) -> LoadOptions {
        LoadOptions { pre_tokenizer: self.pre_tokenizer.clone(), ..LoadOptions::default() }
    }

    /// The tokenizer of a checkpoint; what is odd about it goes to the console.
    pub(crate) fn tokenizer(
        &self,
        checkpoint: &Checkpoint,
        console: &Console,
    ) -> anyhow::Result<AutoTokenizer> {
        let tokenizer =
            AutoTokenizer::from_checkpoint(checkpoint, &self.options()).with_context(|| checkpoint.name())?;
        tokenizer.tokenizer().warnings().iter().for_each(|warning| console.warn(warning));
        Ok(tokenizer)
    }
}

/// How numbers are kept while computing.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum DtypeArg {
    /// Activations as int8 where weights are packed, keys and values in f16: fast
    #[default]
    Auto,
    /// Everything in f32: exact with respect to the packed weights, slower
    F32,
}

impl From<DtypeArg> for Dtype {
    fn from(dtype: DtypeArg) -> Self {
        match dtype {
            DtypeArg::Auto => Dtype::Auto,
            DtypeArg::F32 => Dtype::F32,
        }
    }
}

/// Reads the name of a type for keys and values.
pub(crate) fn parse_kv_dtype(text: &str) -> Result<KvDtype, String> {
    text.parse().map_err(|_| "choose f16, q8_0 or f32".to_owned())
}

/// Reads the name of a device, or of several.
pub(crate) fn parse_device(text: &str) -> Result<String, String> {
    if is_device(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "choose one of {}, cuda:N for the card numbered N, or several to split a model between: cuda:0,cuda:1 or cuda,cpu",
        DEVICES.join(", ")
    ))
}

/// What goes to which of several cards.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum SplitModeArg {
    /// Each layer to one of them, which compute one after the other
    #[default]
    Layer,
    /// A part of every matrix to each, which compute together, through NCCL (tensor parallelism)
    Tensor,
}

impl From<SplitModeArg> for SplitMode {
    fn from(mode: SplitModeArg) -> Self {
        match mode {
            SplitModeArg::Layer => SplitMode::Layer,
            SplitModeArg::Tensor => SplitMode::Tensor,
        }
    }
}

/// How a model is divided between devices.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct DivisionArgs {
    /// Layers on the card or cards, the last ones, the head counting as one; the others are on the CPU [default: what fits]
    #[arg(long, value_name = "N", visible_alias = "n-gpu-layers", allow_negative_numbers = true)]
    gpu_layers: Option<usize>,
    /// Layers whose experts are on the CPU, the first ones [default: what does not fit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    n_cpu_moe: Option<usize>,
    /// Have the experts of all layers on the CPU
    #[arg(long, conflicts_with = "n_cpu_moe")]
    cpu_moe: bool,
    /// What goes to which of several cards
    #[arg(long, value_enum, default_value_t)]
    split_mode: SplitModeArg,
    /// The cards' shares of the layers, such as 3,1 [default: like their free memory]
    #[arg(long, value_name = "SHARES", value_delimiter = ',', allow_negative_numbers = true)]
    tensor_split: Vec<f64>,
}

impl DivisionArgs {
    /// The same options with these.
    pub(crate) fn apply(&self, options: LoadOptions) -> LoadOptions {
        LoadOptions {
            split_mode: self.split_mode.into(),
            gpu_layers: self.gpu_layers,
            cpu_moe: if self.cpu_moe { Some(usize::MAX) } else { self.n_cpu_moe },
            tensor_split: self.tensor_split.clone(),
            ..options
        }
    }
}

/// What a model is computed with, whatever the context.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct DeviceArgs {
    /// Device: auto (the card where there is one), cpu, cuda (cuda:1 for the second card), reference, or several:
    /// cuda:0,cuda:1 or cuda,cpu
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = parse_device)]
    device: String,
    #[command(flatten)]
    division: DivisionArgs,
    /// Have answers depend on the file, the options and the request alone: refuse what free memory or the clock decides (--device
    /// auto, --max-time), and draw with seed 0 where none is given. Sums are made in one order without it
    #[arg(long)]
    deterministic: bool,
    /// Threads that compute [default: the physical cores]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    threads: Option<NonZeroUsize>,
    /// How numbers are kept while computing
    #[arg(long, value_enum, default_value_t)]
    dtype: DtypeArg,
    /// How keys and values are kept: f16, q8_0 (half the room) or f32 [default: f16; f32 with --dtype f32]
    #[arg(long, value_name = "TYPE", value_parser = parse_kv_dtype)]
    kv_dtype: Option<KvDtype>,
    /// Memory that may be used, of each device, such as 4G [default: what the system has available]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_negative_numbers = true)]
    memory: Option<u64>,
    /// Leave parts out, to see what they contribute (`gruff bench --help` names them)
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parse_without)]
    without: Vec<Without>,
}

/// Reads the name of a part that can be left out.
pub(crate) fn parse_without(text: &str) -> Result<Without, String> {
    text.parse().map_err(|error: gruff::floors::kernels::Error| error.to_string())
}

impl DeviceArgs {
    /// Everything that these and the source's arguments say.
    pub(crate) fn options(&self, source: &SourceArgs) -> LoadOptions {
        let options = LoadOptions {
            device: Some(self.device.clone()),
            deterministic: self.deterministic,
            threads: self.threads.map(NonZeroUsize::get),
            dtype: self.dtype.into(),
            kv_dtype: self.kv_dtype,
            memory: self.memory,
            without: self.without.clone(),
            ..source.options()
        };
        self.division.apply(options)
    }

    /// Loads a checkpoint for measuring.
    pub(crate) fn evaluator(
        &self,
        source: &SourceArgs,
        checkpoint: &Checkpoint,
        console: &Console,
    ) -> anyhow::Result<Evaluator> {
        let tokenizer = source.tokenizer(checkpoint, console)?;
        let options = self.options(source);
        let kv_dtype = options.kv_dtype();
        let model = AutoModelForCausalLM::from_checkpoint(checkpoint, &options)?;
        tell_devices(&model, console);
        let options = EvaluatorOptions { kv_dtype, memory: self.memory };
        Ok(Evaluator::new(model.model().clone(), tokenizer.tokenizer().clone(), options))
    }
}

/// What a model is computed with.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct ComputeArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens that prompt and answer may have together; auto takes what the model and memory allow
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = parse_context, allow_negative_numbers = true)]
    ctx: Context,
}

impl ComputeArgs {
    /// Everything that these and the source's arguments say.
    pub(crate) fn options(&self, source: &SourceArgs) -> LoadOptions {
        LoadOptions { context: self.ctx, ..self.device.options(source) }
    }

    /// Whether answers are to depend on the file, the options and the request alone.
    pub(crate) fn deterministic(&self) -> bool {
        self.device.deterministic
    }

    /// The memory that may be used, where that was said.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.device.memory
    }

    /// Refuses more tokens than `--ctx` has room for.
    pub(crate) fn check_room(&self, tokens: usize) -> anyhow::Result<()> {
        match self.ctx {
            Context::Tokens(ctx) if tokens > ctx => usage(format!(
                "there are {tokens} tokens, but --ctx {ctx} has room for {ctx}; give a larger one or auto"
            )),
            _ => Ok(()),
        }
    }

    /// Loads the model of a checkpoint.
    pub(crate) fn load(
        &self,
        source: &SourceArgs,
        checkpoint: &Checkpoint,
        console: &Console,
    ) -> anyhow::Result<AutoModelForCausalLM> {
        let model = AutoModelForCausalLM::from_checkpoint(checkpoint, &self.options(source))?;
        tell_devices(&model, console);
        Ok(model)
    }
}

/// Says where a model computes: to everyone where it is split, which makes it slower or faster than one would think.
pub(crate) fn tell_devices(model: &AutoModelForCausalLM, console: &Console) {
    let line = format!("device: {}", model.devices());
    if model.model().placement().is_split() { console.note(line) } else { console.detail(line) }
}

fn parse_context(text: &str) -> Result<Context, String> {
    match text {
        "auto" => Ok(Context::Auto),
        number => match number.parse::<NonZeroUsize>() {
            Ok(tokens) => Ok(Context::Tokens(tokens.get())),
            Err(_) => Err("give a number of tokens above 0, or auto".to_owned()),
        },
    }
}

/// Reads a text argument: itself, or standard input for `-`.
pub(crate) fn text_or_stdin(text: &str) -> anyhow::Result<String> {
    if text == "-" { read_stdin() } else { Ok(text.to_owned()) }
}

/// All of standard input, byte for byte.
pub(crate) fn read_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes)
        .context("standard input cannot be read")?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("standard input is not UTF-8 text: byte {at} begins no character; convert it first")
    })
}

/// Reads a file, or standard input for `-`, as text.
pub(crate) fn read_file(path: &std::path::Path) -> anyhow::Result<String> {
    if path.as_os_str() == "-" {
        return read_stdin();
    }
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Token ids as people write them: separated by commas, white space or both, in brackets or not.
pub(crate) fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let words = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|_| format!("{word:?} is not a token id"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in ["1,2,3", "1 2 3", "[1, 2, 3]\n", "1\n2\n3\n", "[1,2,3]"] {
            assert_eq!(parse_ids(text), Ok(vec![1, 2, 3]), "{text}");
        }
        assert_eq!(parse_ids(""), Ok(vec![]));
        assert_eq!(parse_ids("1,x"), Err("\"x\" is not a token id".to_owned()));
        assert!(parse_ids("-1").is_err());
        assert!(parse_ids("4294967296").is_err());
    }

    #[test]
    fn a_context_is_a_number_or_auto() {
        assert_eq!(parse_context("auto"), Ok(Context::Auto));
        assert_eq!(parse_context("4096"), Ok(Context::Tokens(4096)));
        assert!(parse_context("0").is_err() && parse_context("many").is_err());
    }
}
