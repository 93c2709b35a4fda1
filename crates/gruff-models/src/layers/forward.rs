//! What is the same for every module during one forward pass.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gruff_kernels::rope::RopeSpec;
use gruff_kernels::{Activation, DType, Device, PackedTensor, Step, Tensor, elementwise, sampling};

use super::RopeTable;
use crate::adapters::ActiveAdapters;
use crate::hooks::put;
use crate::modules::Replacements;
use crate::parameters::{Overrides, dense_of};
use crate::prepare;
use crate::{
    AttnImplementation, Caches, Error, ForwardOptions, HookContext, Hooks, InputContext, LayerAttentions,
    ModelBase, ModelOutput, Module, Placement, Result, RoutedRows, Weight,
};

/// One forward pass: its step, who intervenes in it, and what is kept of it.
///
/// Whatever is not in use is `None`, so that a module pays one branch for it.
pub(crate) struct Forward<'a> {
    pub(crate) step: &'a Step,
    pub(crate) placement: &'a Placement,
    /// Where the pass is.
    device: Cell<&'a Device>,
    /// The device whose kernels are got ready, where that is what the pass is for: nothing else is computed.
    rehearsed: Option<Device>,
    hooks: Option<&'a Hooks>,
    modules: Option<Arc<Replacements>>,
    weights: Option<Arc<Overrides>>,
    adapters: Option<ActiveAdapters>,
    eager: bool,
    kept: Kept,
    /// Whether rows are output rows, behind the last layer.
    at_head: Cell<bool>,
}

/// What a pass keeps besides logits.
#[derive(Default)]
struct Kept {
    hidden_states: Option<RefCell<Vec<Tensor>>>,
    last_hidden_state: Option<RefCell<Option<Tensor>>>,
    attentions: Option<RefCell<Vec<LayerAttentions>>>,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(base: &'a ModelBase, step: &'a Step, options: &ForwardOptions) -> Result<Self> {
        let kept = Kept {
            hidden_states: options.output_hidden_states.then(RefCell::default),
            last_hidden_state: (options.output_last_hidden_state || options.output_hidden_states)
                .then(RefCell::default),
            attentions: options.output_attentions.then(RefCell::default),
        };
        Ok(Self {
            step,
            placement: &base.placement,
            device: Cell::new(base.placement.embedding()),
            rehearsed: prepare::rehearsed(),
            hooks: Some(&base.hooks).filter(|hooks| !hooks.is_empty()),
            modules: base.modules.replaced(),
            weights: base.parameters.overridden(),
            adapters: base.adapters.active(step, options.adapters.as_deref())?,
            eager: is_eager(base, options)?,
            kept,
            at_head: Cell::new(false),
        })
    }

    /// The logits of a pass: those that `pass` computes, or that what it launched for an earlier step like this one
    /// computes again (see [`gruff_kernels::Recordings`]). What the step asks for is drawn from them.
    pub(crate) fn logits(
        &self,
        base: &ModelBase,
        caches: &Caches,
        pass: impl Fn(&Self) -> Result<Tensor>,
    ) -> Result<Tensor> {
        // Those that share matrices out wait for each other within a pass.
        let plain = self.is_plain() && self.placement.rank().is_none();
        if !plain || !caches.admit(self.step, base.config.vocab_size, self.placement) {
            return self.drawn(pass(self)?);
        }
        let devices = self.placement.devices(base.config.num_hidden_layers);
        caches.recordings().run(&devices, self.step, base.id(), || self.drawn(pass(self)?))
    }

    fn drawn(&self, logits: Tensor) -> Result<Tensor> {
        sampling::draw(&logits, self.step)?;
        Ok(logits)
    }

    /// Whether nobody intervenes or asks for more than logits.
    fn is_plain(&self) -> bool {
        let Kept { hidden_states, last_hidden_state, attentions } = &self.kept;
        let kept = hidden_states.is_some() || last_hidden_state.is_some() || attentions.is_some();
        let own = self.hooks.is_none() && self.modules.is_none() && self.weights.is_none();
        own && self.adapters.is_none() && !self.eager && !kept
    }

    /// What the pass has given, once it has logits.
    pub(crate) fn finish(self, logits: Tensor) -> ModelOutput {
        let Kept { hidden_states, last_hidden_state, attentions } = self.kept;
        let last = last_hidden_state.and_then(RefCell::into_inner);
        let hidden_states = hidden_states.map(|states| {
            let mut states = states.into_inner();
            states.extend(last.clone());
            states
        });
        ModelOutput {
            logits,
            hidden_states,
            last_hidden_state: last,
            attentions: attentions.map(RefCell::into_inner),
        }
    }

    /// Tokens of the step.
    pub(crate) fn tokens(&self) -> usize {
        self.step.len()
    }

    /// The device that the pass is on.
    pub(crate) fn device(&self) -> &'a Device {
        self.device.get()
    }

    /// Goes on on `device`.
    pub(crate) fn go_to(&self, device: &'a Device) {
        self.device.set(device);
    }

    /// Whether nothing is to be computed on the device that the pass is on, since another one's kernels are rehearsed.
    pub(crate) fn is_idle(&self) -> bool {
        self.rehearsed.as_ref().is_some_and(|device| !device.same(self.device()))
    }

    /// A tensor on the device that the pass is on: itself, or a copy in memory of the pass.
    pub(crate) fn carry(&self, tensor: &Tensor) -> Result<Tensor> {
        if self.rehearsed.is_some() && !tensor.device().same(self.device()) {
            return Ok(self.device().scratch(tensor.dtype(), tensor.shape())?);
        }
        Ok(tensor.to_device(self.device())?)
    }

    /// Whether matrices are shared out, so that a block's last projection gives a summand of its output.
    pub(crate) fn is_shared_out(&self) -> bool {
        self.placement.rank().is_some()
    }

    /// The sum of what each of the devices has computed that share matrices out; the value itself where none do.
    pub(crate) fn sum_of_ranks(&self, value: Tensor) -> Result<Tensor> {
        match self.placement.rank() {
            None => Ok(value),
            Some(rank) => Ok(rank.all_reduce(&value)?),
        }
    }

    /// An f32 tensor for intermediate results, its content undefined.
    pub(crate) fn scratch(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(self.device().scratch(DType::F32, shape)?)
    }

    /// The step's cosines and sines.
    pub(crate) fn rope(&self, spec: &RopeSpec) -> Result<RopeTable> {
        RopeTable::new(self, spec)
    }

    /// Whether somebody sees, replaces or adds to the output of `module`, so that it must exist as a tensor.
    pub(crate) fn intervenes(&self, module: &str) -> bool {
        self.observes(module) || self.replacement(module).is_some() || self.adapts(module)
    }

    /// Whether a hook sees the output of `module`.
    pub(crate) fn observes(&self, module: &str) -> bool {
        self.hooks.is_some_and(|hooks| hooks.observe(module))
    }

    /// Shows a module's output to its hooks, which may write another in its place.
    pub(crate) fn output(&self, module: &str, output: &Tensor) -> Result<()> {
        self.value(module, None, output).map(|_| ())
    }

    /// Shows a value, of one sequence where it is told, to its hooks; says whether they wrote another in its place.
    pub(crate) fn value(&self, name: &str, sequence: Option<usize>, value: &Tensor) -> Result<bool> {
        let Some(hooks) = self.hooks else { return Ok(false) };
        hooks.apply(&HookContext { sequence, ..self.context(name) }, value)
    }

    /// Shows what enters the matrix of `module` to its hooks.
    pub(crate) fn input(&self, module: &str, x: &Activation, experts: Option<RoutedRows>) -> Result<()> {
        let Some(hooks) = self.hooks else { return Ok(()) };
        let context = InputContext { module, layer: layer_of(module), step: self.step, experts };
        hooks.show_input(&context, x.tensor())
    }

    /// Whether any module is replaced.
    pub(crate) fn replaces(&self) -> bool {
        self.modules.is_some()
    }

    /// The module that stands in for `module`.
    pub(crate) fn replacement(&self, module: &str) -> Option<&dyn Module> {
        self.modules.as_ref()?.get(module).map(|module| &**module)
    }

    /// Lets `replacement` do the work of `module`: `x` in, its output into `out`.
    pub(crate) fn call(
        &self,
        replacement: &dyn Module,
        module: &str,
        x: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        let fail = |source| Error::Hook { module: module.to_owned(), source };
        let result = replacement.forward(&self.context(module), x).map_err(fail)?;
        if result.same_view(out) { Ok(()) } else { put(out, &result).map_err(fail) }
    }

    /// As [`call`](Self::call) where the module is replaced: its output, in memory of the pass and seen by hooks.
    pub(crate) fn replaced(&self, module: &str, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(replacement) = self.replacement(module) else { return Ok(None) };
        let out = self.scratch(x.shape())?;
        self.call(replacement, module, x, &out)?;
        self.output(module, &out)?;
        Ok(Some(out))
    }

    /// The matrix to use for `own`, the parameter `weight` of `module` or of the module that shares its own.
    pub(crate) fn packed<'b>(
        &'b self,
        module: &str,
        shared: &str,
        own: &'b PackedTensor,
    ) -> &'b PackedTensor {
        let Some(weights) = &self.weights else { return own };
        let find = |name: &str| weights.get(&format!("{name}.weight"));
        match find(module).or_else(|| find(shared)) {
            Some(Weight::Packed(weight)) => weight.tensor(),
            _ => own,
        }
    }

    /// The dense tensor to use for `own`, the parameter `name` of `module`.
    pub(crate) fn dense<'b>(&'b self, module: &str, name: &str, own: &'b Tensor) -> &'b Tensor {
        let Some(weights) = &self.weights else { return own };
        weights.get(&format!("{module}.{name}")).and_then(dense_of).unwrap_or(own)
    }

    /// The adapters, where any stands beside `module`.
    fn adapters(&self, module: &str) -> Option<&ActiveAdapters> {
        self.adapters.as_ref().filter(|adapters| adapters.adapt(module))
    }

    /// Whether an adapter stands beside `module`.
    pub(crate) fn adapts(&self, module: &str) -> bool {
        self.adapters(module).is_some()
    }

    /// Adds what adapters make of a module's input to its output.
    pub(crate) fn adapt(&self, module: &str, x: &Activation, out: &Tensor) -> Result<()> {
        let Some(adapters) = self.adapters(module) else { return Ok(()) };
        adapters.apply(module, &self.owners(1), |pair, rows| pair.add_to_product(rows, x.tensor(), out))
    }

    /// Adds what adapters have for the tokens `ids` to their embeddings, which are multiplied by `scale`.
    pub(crate) fn adapt_embeddings(&self, module: &str, ids: &[u32], scale: f32, out: &Tensor) -> Result<()> {
        let Some(adapters) = self.adapters(module) else { return Ok(()) };
        adapters.apply(module, &self.owners(1), |pair, rows| pair.add_to_embeddings(rows, ids, scale, out))
    }

    /// Adds what adapters make of the inputs of experts to their outputs, of which every token has `each`; `chosen` are
    /// their ids and weights.
    pub(crate) fn adapt_experts(
        &self,
        module: &str,
        x: &Activation,
        chosen: [&Tensor; 2],
        out: &Tensor,
        each: usize,
    ) -> Result<()> {
        let Some(adapters) = self.adapters(module) else { return Ok(()) };
        adapters.apply(module, &self.owners(each), |pair, rows| {
            pair.add_to_experts(rows, x.tensor(), chosen, out)
        })
    }

    /// For each row its sequence, where every token has `each` rows.
    fn owners(&self, each: usize) -> Vec<usize> {
        let sequences = self.step.starts().windows(2).enumerate();
        let owners: Vec<usize> = sequences
            .flat_map(|(index, ends)| std::iter::repeat_n(index, (ends[1] - ends[0]) * each))
            .collect();
        if self.at_head.get() {
            return self.step.output_rows().iter().map(|row| owners[*row as usize]).collect();
        }
        owners
    }

    /// From here on rows are output rows.
    pub(crate) fn enter_head(&self) {
        self.at_head.set(true);
    }

    /// Whether attention is computed in plain code.
    pub(crate) fn is_eager(&self) -> bool {
        self.eager
    }

    /// Whether attention weights are kept.
    pub(crate) fn keeps_attentions(&self) -> bool {
        self.kept.attentions.is_some()
    }

    /// Keeps the attention weights of the layer that `module` is in.
    pub(crate) fn keep_attentions(&self, module: &str, weights: Vec<Tensor>) {
        if let Some(kept) = &self.kept.attentions {
            kept.borrow_mut().push(LayerAttentions { layer: layer_of(module).unwrap_or(0), weights });
        }
    }

    /// Whether the residual stream is kept behind every layer.
    pub(crate) fn keeps_hidden_states(&self) -> bool {
        self.kept.hidden_states.is_some()
    }

    /// Keeps a copy of the residual stream.
    pub(crate) fn keep_hidden_state(&self, x: &Tensor) -> Result<()> {
        let Some(states) = &self.kept.hidden_states else { return Ok(()) };
        let copy = self.device().zeros(DType::F32, x.shape())?;
        elementwise::copy(x, &copy)?;
        states.borrow_mut().push(copy);
        Ok(())
    }

    /// Whether the normalised stream is kept for every token.
    pub(crate) fn keeps_last_hidden_state(&self) -> bool {
        self.kept.last_hidden_state.is_some()
    }

    /// Keeps a copy of the normalised stream.
    pub(crate) fn keep_last_hidden_state(&self, x: &Tensor) -> Result<()> {
        let Some(last) = &self.kept.last_hidden_state else { return Ok(()) };
        let copy = self.device().zeros(DType::F32, x.shape())?;
        elementwise::copy(x, &copy)?;
        *last.borrow_mut() = Some(copy);
        Ok(())
    }

    fn context<'b>(&'b self, module: &'b str) -> HookContext<'b> {
        HookContext { module, layer: layer_of(module), step: self.step, sequence: None }
    }
}

/// Whether attention runs in plain code: where that is chosen, and where weights are asked of a model that leaves it
/// open.
fn is_eager(base: &ModelBase, options: &ForwardOptions) -> Result<bool> {
    match options.attn_implementation.unwrap_or_else(|| base.attention.get()) {
        AttnImplementation::Eager => Ok(true),
        AttnImplementation::Flash if options.output_attentions => Err(Error::Attention(
            "flash has no weights to show; ask for eager or auto, or leave output_attentions out".to_owned(),
        )),
        AttnImplementation::Auto if options.output_attentions => {
            tracing::warn!("attention weights are asked for: this pass uses eager attention, which is slow");
            Ok(true)
        }
        AttnImplementation::Auto | AttnImplementation::Flash => Ok(false),
    }
}

/// The number in `model.layers.3.mlp`.
fn layer_of(module: &str) -> Option<usize> {
    module.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use gruff_blocks::BlockType;
    use gruff_kernels::{Activations, KvDtype};

    use super::*;
    use crate::common::{ARCHITECTURES, File, cpu, ids, logits};
    use crate::hooks::LOOKUPS;
    use crate::{Lora, Model};

    fn lookups(model: &dyn Model) -> usize {
        let before = LOOKUPS.get();
        logits(model, KvDtype::F16, &ids(1, 9));
        LOOKUPS.get() - before
    }

    #[test]
    fn a_pass_without_interventions_looks_for_none() {
        for architecture in ARCHITECTURES {
            let model = File::new(architecture, BlockType::Q4_0).load(&cpu(Activations::Int8));
            assert_eq!(lookups(&*model), 0, "{architecture}");

            // One hook, however far from the rest, has every module ask for its own.
            let guard = model.hooks().on("model.norm", |_, _| Ok(None)).expect("every model has one");
            let modules = model.named_modules().len();
            assert!(lookups(&*model) > modules / 2, "{architecture}: {modules} modules");
            drop(guard);
            assert_eq!(lookups(&*model), 0, "{architecture}: once it is gone");
        }
    }

    #[test]
    fn what_is_not_in_use_is_not_there() {
        let model = File::new("qwen35moe", BlockType::Q4_0).load(&cpu(Activations::Int8));
        let sequence = gruff_kernels::StepSequence { len: 1, past: 0, slot: 0, pages: vec![0] };
        let step = Step::text(vec![1], vec![sequence]);
        let (step, options) = (step.expect("a step"), ForwardOptions::default());
        let plain = |model: &dyn Model| {
            let cx = Forward::new(model.base(), &step, &options).expect("a pass");
            let kept = cx.keeps_attentions() || cx.keeps_hidden_states() || cx.keeps_last_hidden_state();
            cx.hooks.is_none()
                && cx.modules.is_none()
                && cx.weights.is_none()
                && cx.adapters.is_none()
                && !kept
                && !cx.is_eager()
        };
        assert!(plain(&*model));
        model.adapters().add("off", Lora::new(), 0.0).expect("a name");
        assert!(plain(&*model), "an adapter that is off is not there");
        let own = std::sync::Arc::new(|_: &HookContext, x: &Tensor| Ok(x.clone()));
        let guard = model.replace("model.norm", own).expect("it can be replaced");
        assert!(!plain(&*model));
        drop(guard);
        let weight = model.weight("model.norm.weight").expect("its weight");
        model.set_weight("model.norm.weight", weight).expect("its own");
        assert!(!plain(&*model));
        assert!(model.named_parameters().reset("model.norm.weight"));
        assert!(plain(&*model));
    }
}
