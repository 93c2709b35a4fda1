//! The modules of a model by their names, and modules put in their place.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use gruff_kernels::Tensor;

use crate::hooks::{HookContext, HookError};
use crate::pattern::near;
use crate::versioned::Versioned;
use crate::{Error, Result};

/// What a named part of a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// A table of token embeddings.
    Embedding,
    /// A whole layer: the residual stream in and out.
    Layer,
    /// A normalisation.
    Norm,
    /// A normalisation times a gate, which is a second input.
    GatedNorm,
    /// Softmax attention, its projections included.
    Attention,
    /// A gated delta net, its projections included.
    LinearAttention,
    /// A feed-forward, dense or sparse.
    FeedForward,
    /// The routed experts of a sparse feed-forward, or one of their stacks of matrices.
    Experts,
    /// A matrix.
    Linear,
    /// A tensor of the file that stacks the rows of several matrices: only its input can be seen.
    Stack,
    /// A value inside a module: queries, attention weights, chosen experts, a recurrent state.
    Value,
}

impl ModuleKind {
    /// Whether it takes one tensor and gives one, so that [`Module`] can stand in for it.
    pub fn is_replaceable(self) -> bool {
        use ModuleKind::{Attention, FeedForward, Layer, Linear, LinearAttention, Norm};
        matches!(self, Layer | Norm | Attention | LinearAttention | FeedForward | Linear)
    }
}

/// A named part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Its full name: `model.layers.3.mlp`.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
}

/// A module of one's own: takes what the module it stands in for takes, and gives what that gives.
///
/// Rows are the tokens of the step, one sequence after the other (`context.step`); behind the last layer they are the
/// step's output rows. A layer takes and gives the residual stream `[T, hidden]`; attention, feed-forward and norms
/// take and give `[T, hidden]` too; a matrix takes `[T, inputs]` and gives `[T, outputs]`. Norms inside attention take
/// and give `[T, heads, head_dim]`.
pub trait Module: Send + Sync {
    /// The output for `x`. Its memory may be the caller's again as soon as this returns; copy what is to be kept.
    ///
    /// # Errors
    /// Whatever went wrong; the forward pass fails with it, and with the module's name.
    fn forward(&self, context: &HookContext, x: &Tensor) -> Result<Tensor, HookError>;
}

impl<F> Module for F
where
    F: Fn(&HookContext, &Tensor) -> Result<Tensor, HookError> + Send + Sync,
{
    fn forward(&self, context: &HookContext, x: &Tensor) -> Result<Tensor, HookError> {
        self(context, x)
    }
}

pub(crate) type Replacements = HashMap<String, Arc<dyn Module>>;

/// The modules of one model.
#[derive(Clone, Default)]
pub struct Modules {
    all: Arc<[ModuleInfo]>,
    replaced: Arc<Versioned<Replacements>>,
    /// Whether none can be replaced.
    closed: bool,
}

impl Modules {
    pub(crate) fn new(all: Vec<ModuleInfo>) -> Self {
        Self { all: all.into(), replaced: Arc::default(), closed: false }
    }

    /// Those of a model in which none can be replaced.
    pub(crate) fn closed(all: Vec<ModuleInfo>) -> Self {
        Self { closed: true, ..Self::new(all) }
    }

    /// All of them, layer after layer.
    pub fn all(&self) -> &[ModuleInfo] {
        &self.all
    }

    /// Puts `module` in the place of the one called `name`, until the guard is dropped. Operations that reach
    /// across its border take their unfused form, with the same bits.
    ///
    /// # Errors
    /// [`Error::NoModule`] when there is none of that name, [`Error::Replace`] for what takes or gives more than
    /// one tensor, and for what is replaced already, [`Error::Shared`] for a model whose matrices are shared out among
    /// devices.
    pub fn replace(&self, name: &str, module: Arc<dyn Module>) -> Result<ModuleGuard> {
        if self.closed {
            return Err(Error::Shared { what: "modules of one's own" });
        }
        let Some(info) = self.all.iter().find(|info| info.name == name) else {
            return Err(no_module(name, self.all.iter().map(|info| info.name.as_str())));
        };
        let refuse = |fault| Err(Error::Replace { module: name.to_owned(), fault });
        if !info.kind.is_replaceable() {
            return refuse(
                "takes or gives more than one tensor; see or replace its output with a hook instead",
            );
        }
        self.replaced.change(|replaced| {
            if replaced.contains_key(name) {
                return refuse("is replaced already; drop the other guard first");
            }
            replaced.insert(name.to_owned(), module);
            Ok(ModuleGuard { replaced: self.replaced.clone(), name: name.to_owned() })
        })
    }

    /// What is replaced now; `None` when nothing is.
    pub(crate) fn replaced(&self) -> Option<Arc<Replacements>> {
        Some(self.replaced.get()).filter(|replaced| !replaced.is_empty())
    }

    pub(crate) fn revision(&self) -> u64 {
        self.replaced.revision()
    }
}

impl fmt::Debug for Modules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replaced = self.replaced();
        let names: Vec<&String> = replaced.iter().flat_map(|map| map.keys()).collect();
        f.debug_struct("Modules").field("all", &self.all.len()).field("replaced", &names).finish()
    }
}

/// Keeps a module in another's place; dropping it puts the model's own back.
#[must_use = "the model's own module comes back when the guard is dropped"]
pub struct ModuleGuard {
    replaced: Arc<Versioned<Replacements>>,
    name: String,
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        let Ok(_) = self.replaced.change(|replaced| Ok::<_, Infallible>(replaced.remove(&self.name)));
    }
}

impl fmt::Debug for ModuleGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleGuard({})", self.name)
    }
}

/// Says that nothing matches, and what comes close.
pub(crate) fn no_module<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Error {
    Error::NoModule { pattern: pattern.to_owned(), near: near(pattern, names) }
}
