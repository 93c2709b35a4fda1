/// Why a model could not be loaded or run. Messages name the file and the key, tensor or module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container, one of its keys or one of its tensors.
    #[error(transparent)]
    Gguf(#[from] gruff_gguf::Error),
    /// An operation of the device.
    #[error(transparent)]
    Kernel(#[from] gruff_kernels::Error),
    /// An architecture that this version does not know.
    #[error(
        "{file}: the architecture {found:?} is not supported; this version of gruff runs {}",
        supported.join(", ")
    )]
    Architecture {
        /// The file.
        file: String,
        /// `general.architecture`.
        found: String,
        /// The architectures that are.
        supported: Vec<&'static str>,
    },
    /// A file that holds something other than a decoder's weights.
    #[error("{file}: {found}, which cannot generate text; {remedy}")]
    NotDecoder {
        /// The file.
        file: String,
        /// What it holds instead.
        found: String,
        /// What to use instead.
        remedy: &'static str,
    },
    /// A key whose value the architecture cannot have.
    #[error("{file}: the key {key:?} is {found}, but {expected}")]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What the value should be, as a clause.
        expected: String,
    },
    /// A tensor whose shape disagrees with the metadata.
    #[error(
        "{file}: tensor {tensor:?} has the shape {found:?}, but the metadata make it {expected:?} \
         (row length first)"
    )]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape, row length first.
        found: Vec<u64>,
        /// The shape that the metadata imply, row length first.
        expected: Vec<u64>,
    },
    /// A tensor whose values cannot be used.
    #[error("{file}: tensor {tensor:?}: {fault}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        fault: String,
    },
    /// Caches that were made for another model.
    #[error(
        "layer {layer} needs {needed}, but the caches hold {found}; make them with this model's new_caches"
    )]
    Caches {
        /// The layer.
        layer: usize,
        /// What the layer needs.
        needed: &'static str,
        /// What it was given.
        found: &'static str,
    },
    /// A snapshot of recurrent state that was taken of other caches.
    #[error(
        "a snapshot behind {len} tokens has {values} values, but these caches hold {expected}; it is another model's"
    )]
    Snapshot {
        /// The tokens that it stands behind.
        len: usize,
        /// Its values.
        values: usize,
        /// The values that it should have.
        expected: usize,
    },
    /// A name or pattern that no module has.
    #[error("no module is called {pattern:?}; near names: {}; `named_modules` tells all", near.join(", "))]
    NoModule {
        /// What was asked for.
        pattern: String,
        /// Names that differ little from it.
        near: Vec<String>,
    },
    /// A module that cannot be replaced.
    #[error("{module} {fault}")]
    Replace {
        /// The module.
        module: String,
        /// Why, as a predicate.
        fault: &'static str,
    },
    /// A name that no parameter has.
    #[error("no parameter is called {name:?}; near names: {}; `named_parameters` tells all", near.join(", "))]
    NoWeight {
        /// What was asked for.
        name: String,
        /// Names that differ little from it.
        near: Vec<String>,
    },
    /// A weight that cannot take a parameter's place.
    #[error("{name} {fault}")]
    SetWeight {
        /// The parameter.
        name: String,
        /// Why, as a predicate.
        fault: String,
    },
    /// An adapter's matrices that do not fit the model.
    #[error("adapter, {module}: {fault}")]
    Lora {
        /// The module that they stand beside.
        module: String,
        /// Why they do not fit.
        fault: String,
    },
    /// An adapter by a name that is not loaded or taken, or with a scale that is no number.
    #[error("{name:?} {fault}")]
    Adapter {
        /// Its name.
        name: String,
        /// What is wrong, as a predicate.
        fault: String,
    },
    /// A model whose parts cannot be shared out among so many devices.
    #[error(
        "tensor parallelism on {of} devices: {fault}; choose another number of cards (--device cuda:0,cuda:1), or \
         --split-mode layer"
    )]
    Shard {
        /// How many devices there are.
        of: usize,
        /// What cannot be shared out.
        fault: String,
    },
    /// Something that takes a model in one piece, or split by layers.
    #[error(
        "{what} are not for a model whose matrices are shared out among devices (--split-mode tensor); load it on one \
         device, or with --split-mode layer"
    )]
    Shared {
        /// What was asked for, in the plural.
        what: &'static str,
    },
    /// An attention implementation that is not known or cannot do what is asked.
    #[error("attn_implementation: {0}")]
    Attention(String),
    /// More was asked of a pass than logits, and this model gives logits only.
    #[error("{architecture}: this model gives logits only; leave the other outputs and adapters out")]
    LogitsOnly {
        /// `general.architecture`.
        architecture: String,
    },
    /// A hook failed, or gave back a tensor that does not fit.
    #[error("hook on {module}: {source}")]
    Hook {
        /// The module whose output the hook saw, or that was replaced.
        module: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The result of loading or running a model.
pub type Result<T, E = Error> = std::result::Result<T, E>;
