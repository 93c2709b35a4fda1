//! What is the same for every module during one forward pass.

use gruff_kernels::rope::RopeSpec;
use gruff_kernels::{Activation, DType, Device, Step, Tensor};

use super::RopeTable;
use crate::{HookContext, Hooks, InputContext, ModelBase, Result, RoutedRows};

/// One forward pass: its step, and the hooks that watch it.
pub(crate) struct Forward<'a> {
    pub(crate) step: &'a Step,
    pub(crate) device: &'a Device,
    /// `None` without hooks, so that a module pays one branch for them.
    hooks: Option<&'a Hooks>,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(base: &'a ModelBase, step: &'a Step) -> Self {
        let hooks = Some(&base.hooks).filter(|hooks| !hooks.is_empty());
        Self { step, device: &base.device, hooks }
    }

    /// Tokens of the step.
    pub(crate) fn tokens(&self) -> usize {
        self.step.len()
    }

    /// An f32 tensor for intermediate results, its content undefined.
    pub(crate) fn scratch(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(self.device.scratch(DType::F32, shape)?)
    }

    /// The step's cosines and sines.
    pub(crate) fn rope(&self, spec: &RopeSpec) -> Result<RopeTable> {
        RopeTable::new(self, spec)
    }

    /// Whether a hook sees the output of `module`, so that it must exist as a tensor.
    pub(crate) fn observes(&self, module: &str) -> bool {
        self.hooks.is_some_and(|hooks| hooks.observe(module))
    }

    /// Shows a module's output to its hooks, which may write another in its place.
    pub(crate) fn output(&self, module: &str, output: &Tensor) -> Result<()> {
        let Some(hooks) = self.hooks else { return Ok(()) };
        hooks.apply(&HookContext { module, layer: layer_of(module), step: self.step }, output)
    }

    /// Shows what enters the matrix of `module` to its hooks.
    pub(crate) fn input(&self, module: &str, x: &Activation, experts: Option<RoutedRows>) -> Result<()> {
        let Some(hooks) = self.hooks else { return Ok(()) };
        let context = InputContext { module, layer: layer_of(module), step: self.step, experts };
        hooks.show_input(&context, x.tensor())
    }
}

/// The number in `model.layers.3.mlp`.
fn layer_of(module: &str) -> Option<usize> {
    module.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
