//! Functions that see or replace a module's output, and functions that see a matrix's input.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use gruff_kernels::{DType, Step, Tensor, elementwise};

use crate::modules::{ModuleKind, no_module};
use crate::pattern::matches;
use crate::{Error, ModuleInfo, Result};

/// What a hook is told about the output it sees.
#[derive(Clone, Copy, Debug)]
pub struct HookContext<'a> {
    /// The module's full name: `model.layers.3.mlp`.
    pub module: &'a str,
    /// The layer's number, inside a layer.
    pub layer: Option<usize>,
    /// The step that is running: which rows belong to which sequence.
    pub step: &'a Step,
    /// Which sequence of the step this is about, for values that each sequence has of its own.
    pub sequence: Option<usize>,
}

/// What a hook is told about the input it sees.
#[derive(Clone, Copy, Debug)]
pub struct InputContext<'a> {
    /// The full name of the module that owns the matrix: `model.layers.3.mlp.up_proj`. Where one tensor stacks
    /// the rows of several, the stack: `model.layers.3.self_attn.qkv_proj`; for a head that is the embedding
    /// table, `model.embed_tokens`. So [`Names::gguf`](crate::Names::gguf) leads to the tensor.
    pub module: &'a str,
    /// The layer's number, inside a layer.
    pub layer: Option<usize>,
    /// The step that is running: which rows belong to which sequence.
    pub step: &'a Step,
    /// Who reads which row, where the matrix is a stack of experts.
    pub experts: Option<RoutedRows<'a>>,
}

/// Which experts read the rows of an input.
#[derive(Clone, Copy, Debug)]
pub struct RoutedRows<'a> {
    /// `[T, used]` i32: the experts of each token. Where the input has one row a token, each of them reads it;
    /// where it has `T * used` rows, row `t * used + i` is read by `ids[t, i]`.
    pub ids: &'a Tensor,
    /// Experts in the stack.
    pub count: usize,
}

/// What a hook or a module of one's own says went wrong.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

type OutputFn = dyn Fn(&HookContext, &Tensor) -> Result<Option<Tensor>, HookError> + Send + Sync;
type InputFn = dyn Fn(&InputContext, &Tensor) -> Result<(), HookError> + Send + Sync;

struct Hook<F: ?Sized> {
    id: usize,
    pattern: String,
    call: Arc<F>,
}

/// Hooks of one kind, in the order in which they came.
struct List<F: ?Sized>(RwLock<Vec<Hook<F>>>);

impl<F: ?Sized> Default for List<F> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<F: ?Sized> List<F> {
    fn push(&self, id: usize, pattern: &str, call: Arc<F>) {
        let mut hooks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        hooks.push(Hook { id, pattern: pattern.to_owned(), call });
    }

    /// How many hooks have this number: none or one.
    fn remove(&self, id: usize) -> usize {
        let mut hooks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = hooks.len();
        hooks.retain(|hook| hook.id != id);
        before - hooks.len()
    }

    fn matching(&self, module: &str) -> Vec<Arc<F>> {
        #[cfg(test)]
        LOOKUPS.with(|count| count.set(count.get() + 1));
        let hooks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        hooks.iter().filter(|hook| matches(&hook.pattern, module)).map(|hook| hook.call.clone()).collect()
    }

    fn patterns(&self) -> Vec<String> {
        let hooks = self.0.read().unwrap_or_else(PoisonError::into_inner);
        hooks.iter().map(|hook| hook.pattern.clone()).collect()
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has looked for the hooks of a module.
    pub(crate) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[derive(Default)]
struct Registry {
    outputs: List<OutputFn>,
    inputs: List<InputFn>,
    /// Hooks of both kinds, readable without a lock.
    len: AtomicUsize,
    next_id: AtomicUsize,
    /// Grows with every hook that comes or goes.
    revision: AtomicU64,
}

impl Registry {
    fn next_id(&self) -> usize {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// The hooks of one model.
///
/// Modules have transformers' names: `model.embed_tokens`, `model.layers.3`, `.input_layernorm`,
/// `.self_attn` or `.linear_attn`, `.post_attention_layernorm`, `.mlp` and their projections, `model.norm`,
/// `lm_head`. An output is `[T, width]` f32 with a row for each token of the step, behind the last layer for
/// each of its output rows. Without hooks a forward pass pays one load and one branch a module; where a hook
/// looks into a fused operation, the operations that it stands for run instead, with the same bits.
///
/// Values inside modules have names too:
///
/// | name | is |
/// | --- | --- |
/// | `…self_attn.q`, `.k`, `.v` | `[T, heads, head_dim]`: what attention reads, behind norms and rotary positions; keys and values before they are cached |
/// | `…self_attn.attn_weights` | `[heads, len, keys]`: softmax of the scores, one call a sequence (`context.sequence`); 0 for keys that are not seen |
/// | `…self_attn.attn_output` | `[T, heads * head_dim]`: what enters `o_proj`, gate included |
/// | `…linear_attn.q`, `.k`, `.v` | `[T, heads, head_dim]`: normalised, behind the convolution; heads in GGUF's order |
/// | `…linear_attn.recurrent_state` | `[value heads, key_dim, value_dim]`: after the step, one call a sequence; can be replaced once 64 tokens are in it |
/// | `…mlp.gate.top_k_index`, `.top_k_weights` | `[T, used]`: the chosen experts (i32) and their weights |
#[derive(Clone, Default)]
pub struct Hooks {
    registry: Arc<Registry>,
    /// What can be named; empty where nobody knows.
    modules: Arc<[ModuleInfo]>,
    /// Whether there can be none.
    closed: bool,
}

impl Hooks {
    /// No hooks yet, on a model of these modules.
    pub(crate) fn new(modules: &[ModuleInfo]) -> Self {
        Self { registry: Arc::default(), modules: modules.into(), closed: false }
    }

    /// Those of a model that takes none.
    pub(crate) fn closed(modules: &[ModuleInfo]) -> Self {
        Self { closed: true, ..Self::new(modules) }
    }

    /// Calls `hook` with the output of every module whose name matches `pattern` (`*` stands for any
    /// characters, `model.layers.*.mlp`), until the guard is dropped. `Some(tensor)` is copied into the
    /// output's place; hooks on one module are called in the order in which they came, each with what the last
    /// one left.
    ///
    /// The tensor's memory is used again as soon as the hook returns: copy what is to be kept.
    ///
    /// # Errors
    /// [`Error::NoModule`] with near names when the pattern matches nothing, [`Error::Shared`] for a model whose matrices
    /// are shared out among devices.
    pub fn on<F>(&self, pattern: &str, hook: F) -> Result<HookGuard>
    where
        F: Fn(&HookContext, &Tensor) -> Result<Option<Tensor>, HookError> + Send + Sync + 'static,
    {
        self.expect(pattern, |kind| kind != ModuleKind::Stack)?;
        let id = self.registry.next_id();
        self.registry.outputs.push(id, pattern, Arc::new(hook));
        Ok(self.guard(id))
    }

    /// Calls `hook` with what enters the matrix of every linear module whose name matches `pattern`, until the
    /// guard is dropped: `[T, inputs]` f32, before any rounding, as torch's forward pre-hooks see it. Looking at
    /// inputs changes neither results nor which operations run.
    ///
    /// The tensor's memory is used again as soon as the hook returns: copy what is to be kept.
    ///
    /// # Errors
    /// [`Error::NoModule`] with near names when the pattern matches no module with a matrix, [`Error::Shared`] as for
    /// [`on`](Self::on).
    pub fn on_input<F>(&self, pattern: &str, hook: F) -> Result<HookGuard>
    where
        F: Fn(&InputContext, &Tensor) -> Result<(), HookError> + Send + Sync + 'static,
    {
        use ModuleKind::{Embedding, Experts, Linear, Stack};
        self.expect(pattern, |kind| matches!(kind, Embedding | Experts | Linear | Stack))?;
        let id = self.registry.next_id();
        self.registry.inputs.push(id, pattern, Arc::new(hook));
        Ok(self.guard(id))
    }

    /// The pattern matches something, where it is known what there is.
    fn expect(&self, pattern: &str, kind: impl Fn(ModuleKind) -> bool) -> Result<()> {
        if self.closed {
            return Err(Error::Shared { what: "hooks" });
        }
        let names = || self.modules.iter().filter(|info| kind(info.kind)).map(|info| info.name.as_str());
        if self.modules.is_empty() || names().any(|name| matches(pattern, name)) {
            return Ok(());
        }
        Err(no_module(pattern, names()))
    }

    fn guard(&self, id: usize) -> HookGuard {
        self.registry.len.fetch_add(1, Ordering::Release);
        self.registry.revision.fetch_add(1, Ordering::Release);
        HookGuard { registry: self.registry.clone(), id }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.registry.len.load(Ordering::Acquire) == 0
    }

    pub(crate) fn revision(&self) -> u64 {
        self.registry.revision.load(Ordering::Acquire)
    }

    /// Whether any hook would see this module's output.
    pub(crate) fn observe(&self, module: &str) -> bool {
        !self.registry.outputs.matching(module).is_empty()
    }

    /// Shows `output` to the hooks on `context.module`, and copies into it what they put in its place: the
    /// pass goes on to write into the output, which must not reach a tensor that is the hook's. Says whether
    /// any did.
    pub(crate) fn apply(&self, context: &HookContext, output: &Tensor) -> Result<bool> {
        let mut replaced = false;
        for call in self.registry.outputs.matching(context.module) {
            let fail = |source| Error::Hook { module: context.module.to_owned(), source };
            if let Some(replacement) = call(context, output).map_err(fail)?
                && !replacement.same_view(output)
            {
                put(output, &replacement).map_err(fail)?;
                replaced = true;
            }
        }
        Ok(replaced)
    }

    /// Shows what enters the matrix of `context.module` to the hooks on it.
    pub(crate) fn show_input(&self, context: &InputContext, x: &Tensor) -> Result<()> {
        for call in self.registry.inputs.matching(context.module) {
            call(context, x).map_err(|source| Error::Hook { module: context.module.to_owned(), source })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registry { outputs, inputs, .. } = &*self.registry;
        f.debug_struct("Hooks")
            .field("outputs", &outputs.patterns())
            .field("inputs", &inputs.patterns())
            .finish()
    }
}

/// Keeps a hook in place; dropping it takes the hook away.
#[must_use = "the hook is taken away when its guard is dropped"]
pub struct HookGuard {
    registry: Arc<Registry>,
    id: usize,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        let Registry { outputs, inputs, len, revision, .. } = &*self.registry;
        len.fetch_sub(outputs.remove(self.id) + inputs.remove(self.id), Ordering::Release);
        // Behind the removal: who sees the new number computes without the hook.
        revision.fetch_add(1, Ordering::Release);
    }
}

impl fmt::Debug for HookGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookGuard({})", self.id)
    }
}

/// Copies a replacement into an output, which it must fit.
pub(crate) fn put(output: &Tensor, replacement: &Tensor) -> Result<(), HookError> {
    if replacement.shape() != output.shape() || replacement.dtype() != output.dtype() {
        return Err(format!(
            "gave back {:?} of {}, but the output is {:?} of {}",
            replacement.shape(),
            replacement.dtype(),
            output.shape(),
            output.dtype(),
        )
        .into());
    }
    if !replacement.device().same(output.device()) {
        return Err(format!("gave back a tensor on another device than {}", output.device().name()).into());
    }
    match output.dtype() {
        DType::F32 => elementwise::copy(replacement, output)?,
        DType::I32 => output.write_i32(&replacement.to_vec_i32()?)?,
        DType::F16 => output.write_f32(&replacement.to_vec_f32()?)?,
        DType::U8 => output.write_u8(&replacement.to_vec_u8()?)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_takes_its_hook_away() {
        let hooks = Hooks::default();
        assert!(hooks.is_empty());
        let guard = hooks.on("model.norm", |_, _| Ok(None)).expect("any name");
        let other = hooks.on("lm_head", |_, _| Ok(None)).expect("any name");
        assert!(hooks.observe("model.norm") && !hooks.is_empty());
        drop(guard);
        assert!(!hooks.observe("model.norm") && hooks.observe("lm_head"));
        drop(other);
        assert!(hooks.is_empty());
    }
}
