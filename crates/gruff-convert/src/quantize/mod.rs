//! GGUF to GGUF with other block types: llama-quantize's presets, importance, and files of any size in little memory.
//!
//! [`Plan`] says what would become of each tensor, from the header alone; [`quantize`] does it.
//!
//! ```no_run
//! use gruff_convert::quantize::{Plan, QuantizeOptions, quantize};
//! use gruff_gguf::Gguf;
//!
//! # fn main() -> gruff_convert::Result<()> {
//! let options = QuantizeOptions::new("Q4_K_M".parse()?);
//! let model = Gguf::open("model-f16.gguf")?;
//! println!("{} bytes", Plan::new(&model, &options)?.bytes());
//! quantize(&model, "model-q4_k_m.gguf".as_ref(), &options, &())?;
//! # Ok(())
//! # }
//! ```

mod importance;
mod metadata;
mod pattern;
mod plan;
mod source;
mod stream;

use std::num::NonZeroUsize;
use std::path::Path;

pub use gruff_blocks::mix::{MixOptions, Preset};
use gruff_gguf::{Gguf, Value, Writer};

pub use importance::ImportanceMatrix;
pub use metadata::parse_override;
pub use pattern::TensorType;
pub use plan::{Plan, TensorPlan};

use crate::{Error, Progress, Result};

/// How to quantize.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// The mix.
    pub preset: Preset,
    /// Departures from the mix. Whether there is importance follows from `importance`.
    pub mix: MixOptions,
    /// Types for tensors whose names match a pattern; the first match counts.
    pub tensor_types: Vec<TensorType>,
    /// What errors in each column cost.
    pub importance: Option<ImportanceMatrix>,
    /// Whether tensors that are packed already may be packed again.
    pub allow_requantize: bool,
    /// Metadata to set in the new file, over what the old one has.
    pub metadata: Vec<(String, Value)>,
    /// Threads that quantize.
    pub threads: NonZeroUsize,
    /// Whether a file of the new file's name is replaced.
    pub overwrite: bool,
}

impl QuantizeOptions {
    /// The preset and nothing else, on all cores.
    pub fn new(preset: Preset) -> Self {
        QuantizeOptions {
            preset,
            mix: MixOptions::default(),
            tensor_types: Vec::new(),
            importance: None,
            allow_requantize: false,
            metadata: Vec::new(),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            overwrite: false,
        }
    }
}

/// Quantizes `model` into a new file at `path`, and gives the plan that was carried out.
///
/// The file gets its name when it is whole; an error or an interruption leaves what was there before. Memory does not
/// grow with the model: a few megabytes of rows a thread are in work at any time. Results do not depend on the number
/// of threads. `progress` is told of values, on this thread.
///
/// # Errors
/// What [`Plan::new`] refuses; [`Error::Exists`] when `path` exists and may not be replaced; [`Error::Tensor`] names a
/// tensor that needs importance and has none, that would be packed a second time, or that has values which are not
/// finite; [`Error::Gguf`] when the file cannot be written.
pub fn quantize(
    model: &Gguf,
    path: &Path,
    options: &QuantizeOptions,
    progress: &dyn Progress,
) -> Result<Plan> {
    if !options.overwrite && path.exists() {
        return Err(Error::Exists { path: path.to_owned() });
    }
    let plan = Plan::new(model, options)?;
    plan.check_ready(model, options)?;
    let mut writer = Writer::new(metadata::of_quantized(model, options));
    for tensor in plan.tensors() {
        writer.add(tensor.name.as_str(), &tensor.shape, tensor.to)?;
    }
    let mut file = writer.create(path)?;
    stream::run(model, &plan, options, &mut file, progress)?;
    file.finish()?;
    Ok(plan)
}

/// The model's first file, for messages.
fn file_of(model: &Gguf) -> std::path::PathBuf {
    model.paths().first().cloned().unwrap_or_else(|| "GGUF in memory".into())
}
