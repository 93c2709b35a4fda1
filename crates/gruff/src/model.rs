//! A causal language model behind transformers' `generate`.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use gruff_engine::{Context, Engine, EngineOptions, MemoryPlan};
use gruff_kernels::Device;
use gruff_kernels::Tensor;
use gruff_models::{
    AttnImplementation, HookContext, HookError, HookGuard, Model, Module, ModuleGuard, ModuleInfo, PartBytes,
    Weight,
};
use gruff_text::Tokenizer;

use crate::constraint::Grammars;
use crate::placement::Loaded;
use crate::{Checkpoint, Error, FromCheckpoint, GenerationConfig, LoadOptions, Pretrained, Result};

/// Prompts of one batch that go through the model together at most.
const MOST_SEQUENCES: usize = 32;

/// A causal language model with its weights packed as in the file.
///
/// ```no_run
/// use gruff::{AutoModelForCausalLM, AutoTokenizer, ChatOptions, GenerationConfig, Message};
///
/// let id = "unsloth/Qwen3.5-4B-GGUF:Qwen3.5-4B-Q4_K_M.gguf";
/// let tokenizer = AutoTokenizer::from_pretrained(id).load()?;
/// let model = AutoModelForCausalLM::from_pretrained(id).load()?;
/// let inputs = tokenizer.apply_chat_template(&[Message::user("Why is the sky blue?")], &ChatOptions::prompt())?;
/// let outputs = model.generate(inputs, &GenerationConfig { max_new_tokens: Some(256), ..Default::default() })?;
/// println!("{}", tokenizer.decode(outputs.new_tokens(0), true));
/// # Ok::<(), gruff::Error>(())
/// ```
pub struct AutoModelForCausalLM {
    model: Arc<dyn Model>,
    device: Device,
    /// Why it computes where it does.
    reason: String,
    checkpoint: Checkpoint,
    engine: Mutex<Option<Engine>>,
    /// Who has the engine now.
    holder: Mutex<Option<ThreadId>>,
    /// Whether caches are to be given back before the next call.
    clear: AtomicBool,
    options: EngineOptions,
    generation_config: GenerationConfig,
    end_tokens: Vec<u32>,
    tokenizer: Option<Tokenizer>,
    grammars: Mutex<Option<Arc<Grammars>>>,
}

/// Prompts as token ids: one or a batch, of any lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts(pub Vec<Vec<u32>>);

impl From<Vec<u32>> for Prompts {
    fn from(prompt: Vec<u32>) -> Self {
        Self(vec![prompt])
    }
}

impl From<&[u32]> for Prompts {
    fn from(prompt: &[u32]) -> Self {
        Self(vec![prompt.to_vec()])
    }
}

impl From<Vec<Vec<u32>>> for Prompts {
    fn from(prompts: Vec<Vec<u32>>) -> Self {
        Self(prompts)
    }
}

/// A token as it is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamedToken {
    /// Which prompt of the batch it answers.
    pub prompt: usize,
    /// Which row of the output it belongs to: the prompt's, unless prompts have several answers.
    pub sequence: usize,
    /// The token.
    pub id: u32,
}

/// What happens while answers are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streamed {
    /// A part of a prompt went through the model; its answer has not begun.
    Prompt {
        /// Which prompt of the batch.
        prompt: usize,
        /// Tokens of it that are done.
        done: usize,
        /// Tokens of it in all.
        total: usize,
    },
    /// A new token.
    Token(StreamedToken),
}

impl Streamed {
    /// Which prompt of the batch this is about.
    pub fn prompt(&self) -> usize {
        match self {
            Streamed::Prompt { prompt, .. } | Streamed::Token(StreamedToken { prompt, .. }) => *prompt,
        }
    }
}

impl AutoModelForCausalLM {
    /// Starts loading a model by name.
    pub fn from_pretrained(id: impl Into<String>) -> Pretrained<Self> {
        Pretrained::new(id)
    }

    /// The model beneath: configuration, weights, `forward`.
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// The file that it was loaded from.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The parts of the model, in transformers' naming.
    pub fn named_modules(&self) -> &[ModuleInfo] {
        self.model.named_modules()
    }

    /// Calls `hook` with the output of every module whose name matches `pattern`, until the guard is dropped.
    ///
    /// # Errors
    /// As [`gruff_models::Hooks::on`].
    pub fn register_forward_hook<F>(&self, pattern: &str, hook: F) -> Result<HookGuard>
    where
        F: Fn(&HookContext, &Tensor) -> Result<Option<Tensor>, HookError> + Send + Sync + 'static,
    {
        Ok(self.model.hooks().on(pattern, hook)?)
    }

    /// Puts a module of one's own in the place of the one called `name`, until the guard is dropped.
    ///
    /// # Errors
    /// As [`gruff_models::Modules::replace`].
    pub fn replace(&self, name: &str, module: Arc<dyn Module>) -> Result<ModuleGuard> {
        Ok(self.model.replace(name, module)?)
    }

    /// The weight called `name`, packed and unpacked.
    ///
    /// # Errors
    /// As [`gruff_models::Parameters::get`].
    pub fn weight(&self, name: &str) -> Result<Weight> {
        Ok(self.model.weight(name)?)
    }

    /// Puts another weight in the place of the one called `name`.
    ///
    /// # Errors
    /// As [`gruff_models::Parameters::set`].
    pub fn set_weight(&self, name: &str, weight: Weight) -> Result<()> {
        Ok(self.model.set_weight(name, weight)?)
    }

    /// Chooses how attention is computed from now on.
    pub fn set_attn_implementation(&self, attention: AttnImplementation) {
        self.model.set_attn_implementation(attention);
    }

    /// The device it computes on; of several the one that leaves its logits.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where its parts live and why, for people: `cuda:0 (…) (the whole model fits)`.
    pub fn devices(&self) -> String {
        let layers = self.model.config().num_hidden_layers;
        let sparse = PartBytes::of(&*self.model).is_sparse();
        format!("{} ({})", self.model.placement().describe(layers, sparse), self.reason)
    }

    /// The defaults that the checkpoint recommends.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// Tokens that end an answer unless a request says otherwise.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Where memory goes, for as many sequences as were generated together so far.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] when the model does not fit.
    pub fn memory(&self) -> Result<MemoryPlan> {
        let mut engine = self.lock()?;
        Ok(self.ready(&mut engine, 1, 1, 0)?.memory().clone())
    }

    /// Forgets what earlier calls have left in caches, and gives their memory back.
    ///
    /// Called from within an answer of the same model, it takes effect when that has ended.
    pub fn clear_caches(&self) {
        self.clear.store(true, Ordering::Relaxed);
        if let Ok(mut engine) = self.lock() {
            *engine = None;
            self.clear.store(false, Ordering::Relaxed);
        }
    }

    /// Tokens that a sequence can have at most, however much memory there is.
    pub(crate) fn longest_context(&self) -> usize {
        let trained = self.model().config().max_position_embeddings;
        match self.options.context {
            Context::Tokens(asked) => asked.min(trained),
            Context::Auto => trained,
        }
    }

    /// What an engine for this model is made with.
    pub fn engine_options(&self) -> &EngineOptions {
        &self.options
    }

    /// The tokenizer of the checkpoint, where it has a vocabulary that can be read.
    pub(crate) fn text_tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The vocabulary, ready for grammars; made when it is first needed.
    ///
    /// # Errors
    /// [`Error::Option`] when the checkpoint has no vocabulary or no end token.
    pub(crate) fn grammars(&self) -> Result<Arc<Grammars>> {
        let mut made = self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grammars) = &*made {
            return Ok(grammars.clone());
        }
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Error::Option(
                "constraint: the checkpoint has no vocabulary that can be read, so no grammar applies"
                    .to_owned(),
            ));
        };
        let grammars = Arc::new(Grammars::new(tokenizer, &self.end_tokens)?);
        *made = Some(grammars.clone());
        Ok(grammars)
    }

    /// The engine, once nobody else has it.
    ///
    /// # Errors
    /// [`Error::Option`] when it is this very thread that has it, which would wait for itself.
    pub(crate) fn lock(&self) -> Result<Held<'_>> {
        let this = std::thread::current().id();
        let holder = || self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if *holder() == Some(this) {
            return Err(Error::Option(
                "generate: this model is in the middle of an answer that called this; call it when the answer has \
                 ended, or use a batching manager"
                    .to_owned(),
            ));
        }
        // A panic inside a step leaves caches in an unknown state: start over.
        let engine = self.engine.lock().unwrap_or_else(|poisoned| {
            let mut engine = poisoned.into_inner();
            *engine = None;
            self.engine.clear_poison();
            engine
        });
        *holder() = Some(this);
        Ok(Held { engine, holder: &self.holder })
    }

    /// The engine, made or made larger for requests of up to `width` sequences, `sequences` of them together, that
    /// can take back `rollback` tokens.
    pub(crate) fn ready<'a>(
        &self,
        engine: &'a mut Option<Engine>,
        sequences: usize,
        width: usize,
        rollback: usize,
    ) -> Result<&'a mut Engine> {
        if self.clear.swap(false, Ordering::Relaxed) {
            *engine = None;
        }
        let least = self.options.max_sequences.max(width);
        let max_sequences = sequences.clamp(least, MOST_SEQUENCES.max(least));
        let serves = engine.as_ref().is_some_and(|engine| {
            engine.options().max_sequences >= max_sequences && engine.options().rollback >= rollback
        });
        if !serves {
            // The old caches go before the new ones are planned.
            let before = engine.take().map_or(0, |engine| engine.options().rollback);
            let rollback = rollback.max(before);
            let options = EngineOptions { max_sequences, rollback, ..self.options.clone() };
            return Ok(engine.insert(Engine::new(self.model.clone(), options)?));
        }
        match engine {
            Some(engine) => Ok(engine),
            None => unreachable!("made above when there was none"),
        }
    }
}

/// The engine of a model, and who has it.
pub(crate) struct Held<'a> {
    engine: MutexGuard<'a, Option<Engine>>,
    holder: &'a Mutex<Option<ThreadId>>,
}

impl Deref for Held<'_> {
    type Target = Option<Engine>;

    fn deref(&self) -> &Option<Engine> {
        &self.engine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Option<Engine> {
        &mut self.engine
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl FromCheckpoint for AutoModelForCausalLM {
    fn from_checkpoint(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        let Loaded { model, reason, engine } = options.load(checkpoint.gguf())?;
        let model: Arc<dyn Model> = Arc::from(model);
        let device = model.device().clone();
        model.set_attn_implementation(options.attn_implementation);
        let metadata = checkpoint.gguf().metadata();
        let mut generation_config = GenerationConfig::from_metadata(metadata)?;
        if let Some(path) = &checkpoint.files().generation_config {
            let vocabulary = model.config().vocab_size;
            let advice = GenerationConfig::from_file(path)?.within(vocabulary, &path.display());
            generation_config = advice.or(&generation_config);
        }
        // Without a vocabulary, or with one that cannot be read, a model still runs on ids.
        let tokenizer = match checkpoint.tokenizer(options) {
            Ok(tokenizer) => Some(tokenizer),
            Err(Error::Tokenizer(error)) => {
                tracing::warn!("{error}. The model runs on ids, and no token ends an answer");
                None
            }
            Err(error) => return Err(error),
        };
        let mut end_tokens =
            tokenizer.as_ref().map_or(Vec::new(), |tokenizer| tokenizer.end_of_generation().to_vec());
        // What `generation_config.json` names ends an answer too, but does not replace the file's own set.
        end_tokens.extend(generation_config.eos_token_id.take().unwrap_or_default());
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Ok(Self {
            model,
            device,
            reason,
            checkpoint: checkpoint.clone(),
            engine: Mutex::new(None),
            holder: Mutex::new(None),
            clear: AtomicBool::new(false),
            options: engine,
            generation_config,
            end_tokens,
            tokenizer,
            grammars: Mutex::new(None),
        })
    }
}
