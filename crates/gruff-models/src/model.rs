//! What every architecture is to the floors above.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gruff_kernels::{Device, Step, Tensor};

use crate::{
    Adapters, AttnChoice, AttnImplementation, CacheOptions, CachePlan, Caches, Error, ForwardOptions, Hooks,
    ModelOutput, Module, ModuleGuard, ModuleInfo, Modules, Names, Origin, Parameters, Placement, Result,
    Weight,
};

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
    /// The device that leaves its logits.
    pub device: Device,
    /// Where its parts live.
    pub placement: Placement,
    /// Functions that see or replace module outputs.
    pub hooks: Hooks,
    /// Its modules in transformers' naming, and the GGUF tensors that hold them.
    pub names: Names,
    /// The modules that a pass goes through, and those put in their place.
    pub modules: Modules,
    /// Its weights by name, and those put in their place.
    pub parameters: Parameters,
    /// Low-rank adapters beside its matrices.
    pub adapters: Adapters,
    /// How attention is computed where a pass does not say.
    pub attention: AttnChoice,
    /// The files that it was loaded from.
    pub origin: Origin,
    /// A number that no other model of the process has.
    id: u64,
}

impl ModelBase {
    /// A model on one device whose modules and weights have no names.
    pub fn new(config: ModelConfig, device: Device, names: Names) -> Self {
        Self::placed(config, Placement::on(&device), names)
    }

    /// A model on several devices whose modules and weights have no names.
    pub fn placed(config: ModelConfig, placement: Placement, names: Names) -> Self {
        Self {
            config,
            device: placement.head().clone(),
            placement,
            hooks: Hooks::default(),
            names,
            modules: Modules::default(),
            parameters: Parameters::default(),
            adapters: Adapters::default(),
            attention: AttnChoice::default(),
            origin: Origin::default(),
            id: {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                NEXT.fetch_add(1, Ordering::Relaxed)
            },
        }
    }

    /// Whether ids that are still on the device of the head are on that of the embedding table, or get there without waiting.
    pub(crate) fn takes_late_ids(&self) -> bool {
        let (from, to) = (self.placement.head(), self.placement.embedding());
        from.same(to) || (from.runs_behind() && to.runs_behind())
    }

    /// A number that no other model of the process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The same model with these modules and parameters.
    #[must_use]
    pub fn with_named(self, modules: Vec<ModuleInfo>, parameters: BTreeMap<String, Weight>) -> Self {
        Self {
            hooks: Hooks::new(&modules),
            modules: Modules::new(modules),
            parameters: Parameters::new(parameters),
            ..self
        }
    }
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

    /// As [`forward`](Self::forward), and gives what `options` ask for besides logits.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); [`crate::Error::Attention`] when attention weights are asked of an
    /// implementation that has none, [`crate::Error::Adapter`] for an adapter that is not loaded.
    fn forward_with(
        &self,
        step: &Step,
        caches: &mut Caches,
        options: &ForwardOptions,
    ) -> Result<ModelOutput> {
        if !options.is_plain() {
            return Err(Error::LogitsOnly { architecture: self.config().architecture.clone() });
        }
        let logits = self.forward(step, caches)?;
        Ok(ModelOutput { logits, hidden_states: None, last_hidden_state: None, attentions: None })
    }

    /// The modules that a pass goes through, in transformers' naming.
    fn named_modules(&self) -> &[ModuleInfo] {
        self.base().modules.all()
    }

    /// Puts a module of one's own in the place of the one called `name`, until the guard is dropped.
    ///
    /// # Errors
    /// As [`Modules::replace`].
    fn replace(&self, name: &str, module: Arc<dyn Module>) -> Result<ModuleGuard> {
        self.base().modules.replace(name, module)
    }

    /// The weights by name.
    fn named_parameters(&self) -> &Parameters {
        &self.base().parameters
    }

    /// The weight called `name`: `model.layers.3.mlp.up_proj.weight`.
    ///
    /// # Errors
    /// As [`Parameters::get`].
    fn weight(&self, name: &str) -> Result<Weight> {
        self.base().parameters.get(name)
    }

    /// Puts another weight in the place of the one called `name`.
    ///
    /// # Errors
    /// As [`Parameters::set`].
    fn set_weight(&self, name: &str, weight: Weight) -> Result<()> {
        self.base().parameters.set(name, weight)
    }

    /// Low-rank adapters beside its matrices.
    fn adapters(&self) -> &Adapters {
        &self.base().adapters
    }

    /// How attention is computed where a pass does not say.
    fn attn_implementation(&self) -> AttnImplementation {
        self.base().attention.get()
    }

    /// Chooses how attention is computed in passes that do not say.
    fn set_attn_implementation(&self, attention: AttnImplementation) {
        self.base().attention.set(attention);
    }

    /// A number that grows with every hook, module, weight or adapter that comes or goes and every change of
    /// [`set_attn_implementation`](Self::set_attn_implementation), and is never what it was before: what caches hold
    /// was computed with another model when it differs.
    fn revision(&self) -> u64 {
        let base = self.base();
        let named = base.modules.revision() + base.parameters.revision();
        base.hooks.revision() + named + base.adapters.revision() + base.attention.revision()
    }

    /// Whether it computes what its file says: no hook, replaced module, other weight or adapter is there.
    fn is_as_loaded(&self) -> bool {
        let base = self.base();
        let own = base.modules.replaced().is_none() && base.parameters.overridden().is_none();
        own && base.hooks.is_empty() && base.adapters.scales().is_empty()
    }

    /// Whether its steps may have ids that are still on a device ([`Step::with_late_ids`]), that of the embedding table
    /// ([`Placement::embedding`]); not while somebody may look at them on the host.
    fn takes_late_ids(&self) -> bool {
        false
    }

    /// Whether its passes draw what a step asks for ([`Step::with_draw`]); else whoever asks draws behind them.
    fn draws(&self) -> bool {
        false
    }

    /// Its sizes.
    fn config(&self) -> &ModelConfig {
        &self.base().config
    }

    /// The device that holds its weights and runs it; of a model on several devices the one that leaves its logits.
    fn device(&self) -> &Device {
        &self.base().device
    }

    /// Where its parts live.
    fn placement(&self) -> &Placement {
        &self.base().placement
    }

    /// The devices that its parts live on, in the order in which a pass comes to them.
    fn devices(&self) -> Vec<&Device> {
        self.placement().devices(self.config().num_hidden_layers)
    }

    /// Functions that see or replace module outputs.
    fn hooks(&self) -> &Hooks {
        &self.base().hooks
    }

    /// Its modules in transformers' naming, and the GGUF tensors that hold them.
    fn names(&self) -> Names {
        self.base().names
    }

    /// Takes memory for caches, of each layer on its device.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] when it cannot be had.
    fn new_caches(&self, options: &CacheOptions) -> Result<Caches> {
        Caches::placed(self.placement(), &self.config().caches, options)
    }
}
