//! From a model's name to an opened checkpoint.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use gruff_engine::{Context, EngineOptions};
use gruff_gguf::Gguf;
use gruff_hub::{Environment, Hub, ModelFiles, ModelId, Progress};
use gruff_kernels::{Activations, CpuOptions, CudaOptions, Device, KvDtype, Without};
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
    /// Device name: `auto`, `cpu`, `cuda`, `cuda:1`, `reference`.
    pub device: Option<String>,
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

/// The number of the card that a device's name means, if it means one: `cuda` is 0.
pub fn cuda_ordinal(device: &str) -> Option<usize> {
    match device.strip_prefix("cuda")? {
        "" => Some(0),
        number => number.strip_prefix(':')?.parse().ok(),
    }
}

impl LoadOptions {
    /// The device that these options ask for.
    ///
    /// # Errors
    /// [`Error::Option`] for a device that there is not, [`Error::Kernel`] for a card that cannot be used.
    pub fn open_device(&self) -> Result<Device> {
        let or_exact = |rounded: Activations| match self.dtype {
            Dtype::Auto => rounded,
            Dtype::F32 => Activations::F32,
        };
        let activations = or_exact(Activations::Int8);
        match self.device.as_deref().unwrap_or("auto") {
            "auto" | "cpu" => {
                if let Some(part) = self.without.iter().find(|part| part.is_of_loop()) {
                    return Err(Error::Option(format!(
                        "{part} is what NVIDIA cards have and the CPU has not; choose --device cuda"
                    )));
                }
                let options = CpuOptions { threads: self.threads, activations, isa: None };
                Ok(Device::cpu_without(options, &self.without)?)
            }
            "reference" => Ok(Device::reference(activations)),
            name if cuda_ordinal(name).is_some() => {
                let graphs = !self.without.contains(&Without::Graphs);
                let activations = or_exact(Activations::Bf16);
                let early_launch = !self.without.contains(&Without::EarlyLaunch);
                let without = self.without.iter().copied().filter(|part| !part.is_of_loop()).collect();
                let options =
                    CudaOptions { activations, graphs, early_launch, without, ..CudaOptions::default() };
                Ok(Device::cuda(cuda_ordinal(name).unwrap_or(0), options)?)
            }
            other => Err(Error::Option(format!(
                "there is no device {other:?}; choose one of {} (`gruff doctor` lists what this \
                 machine has)",
                DEVICES.join(", ")
            ))),
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

    /// `auto`, `cpu` or `reference`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.options.device = Some(name.into());
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
