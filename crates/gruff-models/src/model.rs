//! What every architecture is to the floors above.

use gruff_kernels::{Device, Step, Tensor};

use crate::{CacheOptions, CachePlan, Caches, Hooks, Names, Result};

/// A model's sizes, as its metadata and tensors state them.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, for people.
    pub name: Option<String>,
    /// Layers that [`Model::forward`] runs; a block for multi-token prediction behind them does not count.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding table: token ids are below it, logits are this wide.
    pub vocab_size: usize,
    /// Tokens of context the model was trained for, after any rope scaling.
    pub max_position_embeddings: usize,
    /// Parameters in the tensors that the model uses; a tied head counts once.
    pub num_parameters: u64,
    /// Packed bytes of those tensors.
    pub weight_bytes: u64,
    /// What the layers remember.
    pub caches: CachePlan,
}

/// What all architectures have in common.
#[derive(Debug)]
pub struct ModelBase {
    /// The model's sizes.
    pub config: ModelConfig,
    /// The device that holds its weights and runs it.
    pub device: Device,
    /// Functions that see or replace module outputs.
    pub hooks: Hooks,
    /// Its modules in transformers' naming, and the GGUF tensors that hold them.
    pub names: Names,
}

/// A loaded model.
pub trait Model: Send + Sync {
    /// What it has in common with all others.
    fn base(&self) -> &ModelBase;

    /// Runs a step: reads and extends the caches of its sequences and gives logits `[R, vocab_size]` f32, one
    /// row for each of the step's output rows. A step without output rows only fills the caches.
    ///
    /// A token's logits depend on its own sequence only, however the step is composed.
    ///
    /// # Errors
    /// [`crate::Error`] when a token id, page or slot is out of range, the caches belong to another model,
    /// scratch memory cannot be had, or a hook fails. The caches of the step's sequences are then undefined
    /// from their `past` on.
    fn forward(&self, step: &Step, caches: &mut Caches) -> Result<Tensor>;

    /// Its sizes.
    fn config(&self) -> &ModelConfig {
        &self.base().config
    }

    /// The device that holds its weights and runs it.
    fn device(&self) -> &Device {
        &self.base().device
    }

    /// Functions that see or replace module outputs.
    fn hooks(&self) -> &Hooks {
        &self.base().hooks
    }

    /// Its modules in transformers' naming, and the GGUF tensors that hold them.
    fn names(&self) -> Names {
        self.base().names
    }

    /// Takes memory for caches on the model's device.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] when it cannot be had.
    fn new_caches(&self, options: &CacheOptions) -> Result<Caches> {
        Caches::new(self.device(), &self.config().caches, options)
    }
}
