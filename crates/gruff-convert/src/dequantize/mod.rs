//! From a GGUF file to a folder that transformers opens.

mod config;
mod dense;
mod folder;
mod generation;
mod tokenizer;
mod values;

use std::path::{Path, PathBuf};

use gruff_gguf::Gguf;
use serde_json::Value;

pub use crate::safetensors::Dtype;
use crate::safetensors::{ShardTensor, ShardWriter};
use crate::{Error, Progress, Result};
pub use dense::Dense;
use folder::NewFolder;

/// Bytes that a file of weights has at most, unless one tensor has more: transformers' own choice.
const SHARD_BYTES: u64 = 5_000_000_000;

/// What may be chosen about the folder.
#[derive(Clone, Debug)]
pub struct DequantizeOptions {
    /// How values are stored.
    pub dtype: Dtype,
    /// Bytes that a file of weights has at most.
    pub shard_bytes: u64,
}

impl Default for DequantizeOptions {
    fn default() -> Self {
        DequantizeOptions { dtype: Dtype::BF16, shard_bytes: SHARD_BYTES }
    }
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dequantized {
    /// The folder.
    pub folder: PathBuf,
    /// transformers' class.
    pub class: String,
    /// Tensors in it.
    pub tensors: usize,
    /// Values of all.
    pub values: u64,
}

/// Unpacks the model in `gguf` into `folder`, as `AutoModelForCausalLM.from_pretrained` opens it: safetensors
/// (several files and their index for large models), config.json, generation_config.json, tokenizer.json,
/// tokenizer_config.json and the chat template. Everything that differs between the two forms is turned back.
///
/// Blocks for multi-token prediction, which transformers' classes do not have, are left out. A few rows are in
/// memory at a time. The folder is made beside its place and takes its name when it is whole.
///
/// # Errors
/// [`Error::Exists`] when `folder` is there and not empty; otherwise as [`Dense::new`], and [`Error::Key`] for a
/// tokenizer that transformers has no form for.
pub fn dequantize(
    gguf: &Gguf,
    folder: &Path,
    options: &DequantizeOptions,
    progress: &dyn Progress,
) -> Result<Dequantized> {
    let dense = Dense::new(gguf)?;
    let tokenizer = tokenizer::files(gguf)?;
    let new = NewFolder::create(folder)?;
    let write = |name: &str, text: &str| {
        let path = new.path().join(name);
        std::fs::write(&path, text).map_err(Error::io("written", &path))
    };
    let mut config = dense.config();
    config["dtype"] = options.dtype.torch_name().into();
    write("config.json", &format!("{config:#}\n"))?;
    write("generation_config.json", &format!("{:#}\n", generation::config(gguf.metadata())))?;
    for (name, text) in &tokenizer {
        if let Some((inner, _)) = name.split_once('/') {
            let path = new.path().join(inner);
            std::fs::create_dir_all(&path).map_err(Error::io("created", &path))?;
        }
        write(name, text)?;
    }
    let tensors: Vec<ShardTensor> = dense
        .names()
        .map(|name| ShardTensor {
            name: name.to_owned(),
            shape: dense.shape(name).unwrap_or_default().to_vec(),
        })
        .collect();
    let mut writer = ShardWriter::new(new.path(), options.dtype, tensors, options.shard_bytes);
    let values = writer.total();
    progress.start(values);
    for name in dense.names() {
        dense.read(name, |values| {
            writer.write(values)?;
            progress.advance(values.len() as u64);
            Ok(())
        })?;
    }
    writer.finish()?;
    new.put_in_place()?;
    progress.finish();
    let class = config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Dequantized { folder: folder.to_owned(), class, tensors: dense.names().len(), values })
}
