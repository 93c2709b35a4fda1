//! From a model's name to an opened checkpoint.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use gruff_engine::{Context, EngineOptions, SplitMode};
use gruff_gguf::Gguf;
use gruff_hub::{Environment, Hub, ModelFiles, ModelId, Progress};
use gruff_kernels::{Device, KvDtype, Without};
use gruff_models::AttnImplementation;
use gruff_text::{Tokenizer, TokenizerOptions};

use crate::bundled::{self, BUNDLED};
use crate::{Error, Result};

/// A GGUF checkpoint, opened: only its header has been read.
#[derive(Clone)]
pub struct Checkpoint {
    files: ModelFiles,
    gguf: Arc<Gguf>,
    /// Built once for all that is loaded from here.
    tokenizer: Arc<OnceLock<Tokenizer>>,
}

impl Checkpoint {
    /// Opens files that a [`Hub`] has found.
    ///
    /// # Errors
    /// [`Error::Gguf`] names the file and what is wrong with it.
    pub fn open(files: ModelFiles) -> Result<Self> {
        let gguf = Arc::new(Gguf::open(files.path())?);
        Ok(Self { files, gguf, tokenizer: Arc::default() })
    }

    /// The files it consists of; none for the bundled model.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// What to call it: its path, or [`BUNDLED`].
    pub fn name(&self) -> String {
        match self.files.parts.first() {
            Some(path) => path.display().to_string(),
            None => self.files.id.clone(),
        }
    }

    /// The container.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The tokenizer that the metadata describe.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] names the key at fault.
    pub fn tokenizer(&self, options: &LoadOptions) -> Result<Tokenizer> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer.clone());
        }
        let mut wanted = TokenizerOptions::new();
        if let Some(pre) = &options.pre_tokenizer {
            wanted = wanted.pre(pre);
        }
        let tokenizer = Tokenizer::from_gguf(self.gguf.metadata(), &wanted)?;
        Ok(self.tokenizer.get_or_init(|| tokenizer).clone())
    }
}

/// How numbers are kept while computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dtype {
    /// Activations rounded to int8 in blocks of 32 where weights are packed, keys and values in f16: fast.
    #[default]
    Auto,
    /// Activations, keys and values in f32: exact with respect to the packed weights, slower.
    F32,
}

/// What can be loaded from a checkpoint.
pub trait FromCheckpoint: Sized {
    /// Loads it.
    ///
    /// # Errors
    /// [`Error`] names what is wrong with the file or the options.
    fn from_checkpoint(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self>;
}

/// Everything [`Pretrained`] lets one choose besides the name.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Device name: `auto`, `cpu`, `cuda`, `cuda:1`, `reference`, or several: `cuda:0,cuda:1`, `cuda,cpu`. `auto`, the
    /// default, is what [`place`](Self::place) finds: the card where the model fits, else parts of it on the CPU; the CPU
    /// where no card can be used.
    pub device: Option<String>,
    /// Layers on cards, the last ones, the head counting as one: llama.cpp's `-ngl`. `None` for what fits.
    pub gpu_layers: Option<usize>,
    /// Layers whose experts are on the CPU, the first ones: llama.cpp's `--n-cpu-moe`. `None` for what is needed.
    pub cpu_moe: Option<usize>,
    /// What goes to which of several cards: layers, or with [`SplitMode::Tensor`] a part of every matrix to each, as with
    /// transformers' `tp_plan="auto"`.
    pub split_mode: SplitMode,
    /// The cards' shares of the layers; empty for shares like their free memory.
    pub tensor_split: Vec<f64>,
    /// Devices by module names, as transformers' `device_map`: `model.layers.3` or `model.layers.3.mlp.experts` to
    /// `cuda:1`, an empty name for all else. Where it says anything, [`device`](Self::device) and the four above do not
    /// count.
    pub device_map: BTreeMap<String, String>,
    /// Refuse what would make an answer depend on more than the file, these options and the request: a division between devices
    /// that free memory decides (`auto`, or the CPU beside cards without a word of what goes there), answers that end by the clock
    /// (`max_time`). Computing is deterministic without it, as `docs/generation.md` says.
    pub deterministic: bool,
    /// Threads that compute; `None` for the physical cores.
    pub threads: Option<usize>,
    /// How numbers are kept.
    pub dtype: Dtype,
    /// How keys and values are kept; `None` for what `dtype` says: f16, or f32 where everything is.
    pub kv_dtype: Option<KvDtype>,
    /// Kernel families to compute in their plainest form, or parts of the decode loop to leave out, to see what they
    /// contribute.
    pub without: Vec<Without>,
    /// Tokens a sequence may have.
    pub context: Context,
    /// Prompts computed together at most; grows by itself when a larger batch is generated.
    pub max_sequences: usize,
    /// Memory that may be used, in bytes; `None` for what the system has available.
    pub memory: Option<u64>,
    /// How attention is computed.
    pub attn_implementation: AttnImplementation,
    /// Pre-tokenizer to use instead of the file's (`tokenizer.ggml.pre`).
    pub pre_tokenizer: Option<String>,
}

/// What [`LoadOptions::device`] may be; behind `cuda` the card's number may follow: `cuda:1`.
pub const DEVICES: [&str; 4] = ["auto", "cpu", "cuda", "reference"];

/// Whether `name` may be a device, or several that a model is split between.
pub fn is_device(name: &str) -> bool {
    let names: Vec<&str> = name.split(',').map(str::trim).collect();
    let part = |name: &&str| cuda_ordinal(name).is_some() || *name == "cpu";
    let different = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
    DEVICES.contains(&name) || (names.iter().all(part) && different && names != ["cpu"])
}

/// The number of the card that a device's name means, if it means one: `cuda` is 0.
pub fn cuda_ordinal(device: &str) -> Option<usize> {
    match device.strip_prefix("cuda")? {
        "" => Some(0),
        number => number.strip_prefix(':')?.parse().ok(),
    }
}

impl LoadOptions {
    /// The device that these options ask for where no model is in sight; of several the first.
    ///
    /// # Errors
    /// [`Error::Option`] for a device that there is not, [`Error::Kernel`] for a card that cannot be used.
    pub fn open_device(&self) -> Result<Device> {
        match self.device.as_deref().unwrap_or("auto") {
            "auto" => self.auto_device(),
            "cpu" => self.whole_cpu(),
            "reference" => Ok(Device::reference(self.activations())),
            names => self.card(names.split(',').map(str::trim).find(|name| *name != "cpu").unwrap_or(names)),
        }
    }

    /// How keys and values are kept.
    pub fn kv_dtype(&self) -> KvDtype {
        self.kv_dtype.unwrap_or(if self.dtype == Dtype::F32 { KvDtype::F32 } else { KvDtype::F16 })
    }

    pub(crate) fn engine(&self) -> EngineOptions {
        EngineOptions {
            context: self.context,
            max_sequences: self.max_sequences.max(1),
            kv_dtype: self.kv_dtype(),
            memory: self.memory,
            deterministic: self.deterministic,
            late_ids: self.without.contains(&Without::LateIds).then_some(false),
            ..EngineOptions::default()
        }
    }
}

/// A name on its way to becoming a `T`: `from_pretrained(…)`, options, [`load`](Self::load).
#[must_use = "nothing is loaded before `load`"]
pub struct Pretrained<T> {
    id: String,
    file: Option<String>,
    revision: Option<String>,
    cache_dir: Option<PathBuf>,
    local_files_only: bool,
    environment: Option<Environment>,
    progress: Option<Arc<dyn Progress>>,
    options: LoadOptions,
    target: PhantomData<T>,
}

impl<T> Pretrained<T> {
    /// Starts from a name: [`BUNDLED`], a file or folder, `repo:file.gguf`, `repo:Q4_K_M`, `repo@revision:file.gguf`, or a
    /// repository together with [`gguf_file`](Self::gguf_file).
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            file: None,
            revision: None,
            cache_dir: None,
            local_files_only: false,
            environment: None,
            progress: None,
            options: LoadOptions::default(),
            target: PhantomData,
        }
    }

    /// The file within the repository or folder.
    pub fn gguf_file(mut self, name: impl Into<String>) -> Self {
        self.file = Some(name.into());
        self
    }

    /// Branch, tag or commit of the repository.
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = Some(revision.into());
        self
    }

    /// The cache to use instead of huggingface_hub's.
    pub fn cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// Use what the cache has and never the network.
    pub fn local_files_only(mut self, only: bool) -> Self {
        self.local_files_only = only;
        self
    }

    /// Environment variables to see instead of the process's.
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Told how downloads go.
    pub fn progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// `auto`, `cpu`, `cuda`, `cuda:1`, `reference`, or several: `cuda:0,cuda:1`, `cuda,cpu`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.options.device = Some(name.into());
        self
    }

    /// Devices by module names, as transformers' `device_map`: see [`LoadOptions::device_map`].
    pub fn device_map<M: Into<String>, D: Into<String>>(
        mut self,
        map: impl IntoIterator<Item = (M, D)>,
    ) -> Self {
        self.options.device_map =
            map.into_iter().map(|(module, device)| (module.into(), device.into())).collect();
        self
    }

    /// What goes to which of several cards: see [`LoadOptions::split_mode`].
    pub fn split_mode(mut self, mode: SplitMode) -> Self {
        self.options.split_mode = mode;
        self
    }

    /// How many layers are on cards, the last ones, the head counting as one.
    pub fn gpu_layers(mut self, layers: usize) -> Self {
        self.options.gpu_layers = Some(layers);
        self
    }

    /// Of how many layers the experts are on the CPU, the first ones.
    pub fn cpu_moe(mut self, layers: usize) -> Self {
        self.options.cpu_moe = Some(layers);
        self
    }

    /// Whether to refuse what would make an answer depend on more than the file, the options and the request: see
    /// [`LoadOptions::deterministic`].
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.options.deterministic = deterministic;
        self
    }

    /// How numbers are kept while computing.
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.options.dtype = dtype;
        self
    }

    /// How attention is computed: `auto`, `eager` or `flash`.
    pub fn attn_implementation(mut self, attention: AttnImplementation) -> Self {
        self.options.attn_implementation = attention;
        self
    }

    /// How keys and values are kept, whatever [`dtype`](Self::dtype) says.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.options.kv_dtype = Some(dtype);
        self
    }

    /// Threads that compute.
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Tokens a sequence may have.
    pub fn context(mut self, context: Context) -> Self {
        self.options.context = context;
        self
    }

    /// Prompts computed together at most.
    pub fn max_sequences(mut self, sequences: usize) -> Self {
        self.options.max_sequences = sequences;
        self
    }

    /// All options at once.
    pub fn options(mut self, options: LoadOptions) -> Self {
        self.options = options;
        self
    }

    /// Finds the files (downloading what is missing) and opens them.
    ///
    /// # Errors
    /// [`Error::Hub`] or [`Error::Gguf`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        if self.id == BUNDLED {
            return self.bundled();
        }
        let mut id = ModelId::parse(&self.id)?;
        if let Some(revision) = &self.revision {
            id = id.with_revision(revision)?;
        }
        if let Some(file) = &self.file {
            id = id.with_file(file)?;
        }
        let mut hub = Hub::builder();
        if let Some(environment) = &self.environment {
            hub = hub.environment(environment.clone());
        }
        if let Some(folder) = &self.cache_dir {
            hub = hub.cache_dir(folder);
        }
        if self.local_files_only {
            hub = hub.local_files_only(true);
        }
        if let Some(progress) = &self.progress {
            hub = hub.progress(progress.clone());
        }
        Checkpoint::open(hub.build()?.resolve(&id)?)
    }

    fn bundled(&self) -> Result<Checkpoint> {
        if self.file.is_some() || self.revision.is_some() {
            return Err(Error::Option(
                "the bundled model has no files or revisions to choose from".to_owned(),
            ));
        }
        let files = ModelFiles {
            id: BUNDLED.to_owned(),
            parts: Vec::new(),
            generation_config: None,
            repo: None,
            commit: None,
        };
        Ok(Checkpoint { files, gguf: Arc::new(bundled::open()?), tokenizer: Arc::default() })
    }
}

impl<T: FromCheckpoint> Pretrained<T> {
    /// Loads it.
    ///
    /// # Errors
    /// [`Error`] names what is wrong: the name, the network, the file, an option.
    pub fn load(self) -> Result<T> {
        T::from_checkpoint(&self.checkpoint()?, &self.options)
    }
}
