//! What a checkpoint is, from its header alone.

use std::collections::BTreeMap;

use gruff_gguf::TensorInfo;

use crate::{Checkpoint, Result};

/// Tensors of one block type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeShare {
    /// The type's name; `type 99` for one that gruff does not know.
    pub name: String,
    /// Tensors.
    pub tensors: usize,
    /// Values in them.
    pub values: u64,
    /// Packed bytes, where the type is known.
    pub bytes: u64,
}

impl Checkpoint {
    /// Values in all tensors.
    pub fn parameters(&self) -> u64 {
        self.gguf().tensors().map(TensorInfo::values).fold(0, u64::saturating_add)
    }

    /// Packed bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.gguf().tensors().filter_map(TensorInfo::bytes).fold(0, u64::saturating_add)
    }

    /// Tensors by block type, the largest share of bytes first.
    pub fn types(&self) -> Vec<TypeShare> {
        let mut shares: BTreeMap<u32, TypeShare> = BTreeMap::new();
        for tensor in self.gguf().tensors() {
            let share = shares.entry(tensor.type_id()).or_insert_with(|| TypeShare {
                name: type_name(tensor),
                tensors: 0,
                values: 0,
                bytes: 0,
            });
            share.tensors += 1;
            share.values = share.values.saturating_add(tensor.values());
            share.bytes = share.bytes.saturating_add(tensor.bytes().unwrap_or(0));
        }
        let mut shares: Vec<TypeShare> = shares.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }

    /// Bytes of weights that one generated token reads: all of them, but of experts the chosen ones only, and of
    /// an embedding table that is not the output matrix too, one row (which is not counted).
    ///
    /// # Errors
    /// [`crate::Error::Gguf`] when a key has another type.
    pub fn bytes_per_token(&self) -> Result<u64> {
        let metadata = self.gguf().metadata();
        let architecture = metadata.require_str("general.architecture")?;
        let count = |name: &str, default: u64| metadata.u64_or(&format!("{architecture}.{name}"), default);
        let (experts, used) = (count("expert_count", 0)?.max(1), count("expert_used_count", 1)?);
        let layers = count("block_count", u64::MAX)?;
        // Blocks for multi-token prediction stand behind the model's own and are not run.
        let run = layers.saturating_sub(count("nextn_predict_layers", 0)?);
        let tied = self.gguf().tensor("output.weight").is_none();
        let mut bytes: u64 = 0;
        for tensor in self.gguf().tensors() {
            let (name, size) = (tensor.name(), tensor.bytes().unwrap_or(0));
            let block =
                name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
            let read = match block {
                Some(block) if block >= run => 0,
                _ if name.contains("_exps.") => {
                    (u128::from(size) * u128::from(used) / u128::from(experts)) as u64
                }
                _ if name == "token_embd.weight" && !tied => 0,
                _ => size,
            };
            bytes = bytes.saturating_add(read);
        }
        Ok(bytes)
    }
}

/// The name of a tensor's block type.
pub(crate) fn type_name(tensor: &TensorInfo) -> String {
    match tensor.block_type() {
        Ok(block_type) => block_type.to_string(),
        Err(_) => format!("type {}", tensor.type_id()),
    }
}
