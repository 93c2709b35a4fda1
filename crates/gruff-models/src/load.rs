//! From a container to a model.

use gruff_gguf::Gguf;
use gruff_kernels::Device;

use crate::keys::{Keys, file_name};
use crate::weights::Weights;
use crate::{Error, Model, Names, Placement, Result, gemma3, llama, qwen2, qwen3, qwen35, tensor_parallel};

/// One value of `general.architecture`, the file's names, and the function that puts the model together.
type Architecture = (&'static str, Names, fn(&Keys, &Weights) -> Result<Box<dyn Model>>);

/// Every architecture that can be run.
const ARCHITECTURES: &[Architecture] = &[
    ("llama", llama::NAMES, llama::load),
    ("qwen2", qwen2::NAMES, qwen2::load),
    ("qwen3", qwen3::NAMES, qwen3::load),
    ("qwen3moe", qwen3::NAMES, qwen3::load),
    ("qwen35", qwen35::NAMES, qwen35::load),
    ("qwen35moe", qwen35::NAMES, qwen35::load),
    ("gemma3", gemma3::NAMES, gemma3::load),
];

/// The values of `general.architecture` that [`load`] accepts.
pub fn supported_architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, ..)| *name)
}

/// The table of transformers' module names and GGUF's tensor names of an architecture, if it is supported.
pub fn names(architecture: &str) -> Option<Names> {
    ARCHITECTURES.iter().find(|(name, ..)| *name == architecture).map(|(_, names, _)| *names)
}

/// Puts the model of a file together on `device`. Matrices are borrowed from the file's map where the device
/// can address it, so this touches little more than the metadata.
///
/// # Errors
/// [`Error::Architecture`] for one that is not supported, [`Error::NotDecoder`] for a file without a decoder's
/// weights, [`Error::Key`], [`Error::TensorShape`] and [`Error::Gguf`] for one that contradicts itself or
/// lacks a part.
pub fn load(gguf: &Gguf, device: &Device) -> Result<Box<dyn Model>> {
    load_placed(gguf, &Placement::on(device))
}

/// As [`load`], each part on the device that `placement` says.
///
/// # Errors
/// As [`load`]; [`Error::Kernel`] when a device has no room for its part, or cannot compute with the others;
/// [`Error::Shard`] for matrices that cannot be shared out among the placement's devices.
pub fn load_placed(gguf: &Gguf, placement: &Placement) -> Result<Box<dyn Model>> {
    if !placement.ranks().is_empty() {
        return tensor_parallel::load(gguf, placement);
    }
    let architecture = gguf.metadata().require_str("general.architecture")?;
    check_decoder(gguf, architecture)?;
    let Some((_, names, load)) = ARCHITECTURES.iter().find(|(name, ..)| *name == architecture) else {
        return Err(Error::Architecture {
            file: file_name(gguf, 0),
            found: architecture.to_owned(),
            supported: supported_architectures().collect(),
        });
    };
    let weights = Weights::new(gguf, placement, *names);
    let model = load(&Keys::new(gguf, architecture), &weights)?;
    let unused = weights.unused();
    if !unused.is_empty() {
        tracing::debug!(count = unused.len(), ?unused, "tensors that the model does not use");
    }
    Ok(model)
}

/// Refuses what is no decoder at all, with the remedy.
fn check_decoder(gguf: &Gguf, architecture: &str) -> Result<()> {
    let metadata = gguf.metadata();
    let causal = metadata.bool(&format!("{architecture}.attention.causal"))?.unwrap_or(true);
    let nextn = metadata.usize_or(&format!("{architecture}.nextn_predict_layers"), 0)?;
    let (found, remedy) = match (metadata.str("general.type")?, architecture) {
        (Some("adapter"), _) => ("it is a LoRA adapter", "load the model that the adapter is for"),
        (Some("mmproj"), _) | (_, "clip") => {
            ("it is the projector of a vision or audio model", "load the language model beside it")
        }
        (Some("imatrix"), _) | (_, "imatrix") => ("it is an importance matrix", "load a model"),
        (_, "bert" | "nomic-bert" | "jina-bert-v2" | "modern-bert" | "t5encoder" | "gemma-embedding") => {
            ("it is an encoder", "load a decoder")
        }
        _ if !causal => ("it is an encoder: its attention is not causal", "load a decoder"),
        _ if gguf.tensors().len() == 0 => ("it is a vocabulary without weights", "load a complete model"),
        _ if nextn > 0 && gguf.tensor("blk.0.attn_norm.weight").is_none() => {
            ("it is only the block for multi-token prediction of a model", "load the model itself")
        }
        _ => return Ok(()),
    };
    Err(Error::NotDecoder { file: file_name(gguf, 0), found: found.to_owned(), remedy })
}
