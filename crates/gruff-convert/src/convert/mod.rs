//! From a folder that transformers saved to a GGUF file.

mod general;
mod hyperparameters;
pub(crate) mod names;
mod outtype;
mod plan;
pub(crate) mod tokenizer;

use std::path::{Path, PathBuf};

use gruff_gguf::{FileWriter, Metadata, Writer};

use crate::architecture::{Config, Sizes};
use crate::safetensors::Shards;
use crate::stream::ReadValues;
use crate::{Error, Progress, Result};
use general::Parameters;
pub(crate) use hyperparameters::{GEMMA3_PATTERN, llama3_divisors};
pub use outtype::OutType;
use plan::Planned;

/// The version of the block formats, `general.quantization_version`: ggml's `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;
/// Divisors of rotary frequencies.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// What may be chosen about a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// How weights are stored.
    pub outtype: OutType,
    /// `general.name`; `None` for what the folder and its model card say.
    pub name: Option<String>,
    /// The pre-tokenizer (`tokenizer.ggml.pre`); `None` to find it by what tokenizer.json does.
    pub pre_tokenizer: Option<String>,
    /// Leave out the blocks for multi-token prediction.
    pub no_mtp: bool,
    /// Replace a file that is there.
    pub overwrite: bool,
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The file.
    pub path: PathBuf,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Tensors in it.
    pub tensors: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// Converts the model in `folder` (safetensors, config.json and a tokenizer, as transformers saves them) to a
/// GGUF file.
///
/// A few rows are in memory at a time, whatever the model. The file is written beside `out` and takes its name
/// when it is whole.
///
/// # Errors
/// [`Error::Exists`] when `out` is there already; [`Error::Architecture`] for a model that cannot be converted;
/// [`Error::File`], [`Error::Key`] and [`Error::Tensor`] name what is missing from the folder or wrong in it.
pub fn convert(
    folder: &Path,
    out: &Path,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<Converted> {
    if !folder.is_dir() {
        return Err(Error::file(folder, "is no folder; give the folder of a model that transformers saved"));
    }
    if out.exists() && !options.overwrite {
        return Err(Error::Exists { path: out.to_owned() });
    }
    if is_input(folder, out) {
        return Err(Error::Argument(format!(
            "{} is a file of the model itself; choose another name",
            out.display()
        )));
    }
    let mut config = Config::read(folder)?;
    let shards = Shards::open(folder)?;
    settle_mtp(&mut config, &shards, options);
    let sizes = Sizes::new(&config)?;
    if sizes.layers > shards.names().count() as u64 {
        let fault = format!("is {}, more than the folder has tensors", sizes.layers);
        return Err(config.document.refuse("num_hidden_layers", fault));
    }
    let architecture = config.architecture();
    let names = gruff_models::names(architecture)
        .ok_or_else(|| Error::Argument(format!("no table of names for {architecture}")))?;
    let planned = plan::plan(&shards, &config, &sizes, names, options.outtype)?;
    let rope_freqs = hyperparameters::rope_freqs(&config, &sizes)?;

    let metadata = describe(folder, &config, &sizes, &planned, options)?;
    let mut writer = Writer::new(metadata);
    if let Some(divisors) = &rope_freqs {
        writer.add(ROPE_FREQS, &[divisors.len() as u64], gruff_blocks::BlockType::F32)?;
    }
    for tensor in &planned {
        writer.add(&tensor.name, &tensor.shape, tensor.block_type)?;
    }
    let mut file = writer.create(out)?;
    let total = planned.iter().map(|tensor| tensor.job.rows * tensor.job.columns).sum();
    progress.start(total);
    if let Some(divisors) = &rope_freqs {
        let bytes: Vec<u8> = divisors.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.write(ROPE_FREQS, &bytes)?;
    }
    for tensor in &planned {
        write(tensor, &shards, &mut file, progress)?;
    }
    let tensors = file.tensors().len();
    file.finish()?;
    let bytes = std::fs::metadata(out).map_err(Error::io("read", out))?.len();
    progress.finish();
    Ok(Converted { path: out.to_owned(), architecture, tensors, bytes })
}

/// Whether a file is one of those that are read: in the folder, and no GGUF file.
fn is_input(folder: &Path, out: &Path) -> bool {
    let (Ok(folder), Ok(out)) = (folder.canonicalize(), out.canonicalize()) else { return false };
    out.starts_with(folder) && out.extension().is_none_or(|extension| extension != "gguf")
}

impl ReadValues for Shards {
    fn read(&self, name: &str, first: u64, out: &mut [f32]) -> Result<()> {
        Shards::read(self, name, first, out)
    }
}

fn write(tensor: &Planned, shards: &Shards, file: &mut FileWriter, progress: &dyn Progress) -> Result<()> {
    let mut packed = Vec::new();
    tensor.job.run(shards, |values| {
        let bytes = tensor.block_type.row_bytes(values.len())?;
        packed.resize(bytes, 0);
        tensor.block_type.pack(values, &mut packed)?;
        file.write(&tensor.name, &packed)?;
        progress.advance(values.len() as u64);
        Ok(())
    })
}

/// Makes the configuration say how many blocks for multi-token prediction the files have, or none.
fn settle_mtp(config: &mut Config, shards: &Shards, options: &ConvertOptions) {
    let blocks = shards.names().filter_map(names::mtp_layer).max().map_or(0, |last| last.saturating_add(1));
    let wanted = if options.no_mtp { 0 } else { blocks.min(u64::from(u16::MAX)) };
    config.document.insert("mtp_num_hidden_layers", wanted);
}

/// All metadata, in the order that people read them.
fn describe(
    folder: &Path,
    config: &Config,
    sizes: &Sizes,
    planned: &[Planned],
    options: &ConvertOptions,
) -> Result<Metadata> {
    let mut parameters = Parameters::default();
    planned.iter().for_each(|tensor| parameters.add(&tensor.name, &tensor.shape));
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", config.architecture());
    metadata.insert("general.type", "model");
    general::sampling(folder, &mut metadata);
    general::authorship(folder, &config.document, options.name.as_deref(), &parameters, &mut metadata);
    hyperparameters::describe(config, sizes, &mut metadata)?;
    metadata.insert("general.file_type", options.outtype.file_type());
    metadata.insert("general.quantization_version", QUANTIZATION_VERSION);
    tokenizer::describe(folder, config, options.pre_tokenizer.as_deref(), &mut metadata)?;
    Ok(metadata)
}
