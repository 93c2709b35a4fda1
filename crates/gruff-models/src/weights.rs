//! Weights by module name, packed as they lie in the file.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use gruff_gguf::{Gguf, TensorInfo};
use gruff_kernels::{Device, Tensor};

use crate::keys::file_name;
use crate::parameters::PackedWeight;
use crate::{Error, ModuleInfo, ModuleKind, Names, Placement, Result, Weight};

/// The weights of a file for the devices of a placement, asked for by transformers' module names.
///
/// Matrices are borrowed from the file's map; vectors are unpacked to f32.
pub(crate) struct Weights<'a> {
    gguf: &'a Gguf,
    placement: &'a Placement,
    names: Names,
    used: RefCell<HashSet<String>>,
    parameters: Cell<u64>,
    bytes: Cell<u64>,
    modules: RefCell<Vec<ModuleInfo>>,
    named: RefCell<BTreeMap<String, Weight>>,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(gguf: &'a Gguf, placement: &'a Placement, names: Names) -> Self {
        let (parameters, bytes) = (Cell::new(0), Cell::new(0));
        let (used, modules, named) = (RefCell::default(), RefCell::default(), RefCell::default());
        Self { gguf, placement, names, used, parameters, bytes, modules, named }
    }

    pub(crate) fn placement(&self) -> &'a Placement {
        self.placement
    }

    /// The module called `name`: `model.layers.3`.
    pub(crate) fn module(&self, name: impl Into<String>) -> Module<'_> {
        Module { weights: self, name: name.into() }
    }

    /// A tensor outside the modules, by its GGUF name, as f32 values, if the file has it.
    pub(crate) fn values(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.gguf.tensor(tensor) else { return Ok(None) };
        self.unpack(tensor).map(Some)
    }

    /// The modules that were declared, and the parameters that were asked for, so far.
    pub(crate) fn take_named(&self) -> (Vec<ModuleInfo>, BTreeMap<String, Weight>) {
        (self.modules.take(), self.named.take())
    }

    /// Leaves out everything in block `block`.
    pub(crate) fn skip_block(&self, block: usize) {
        let prefix = format!("blk.{block}.");
        let names = self.gguf.tensors().map(TensorInfo::name).filter(|name| name.starts_with(&prefix));
        self.used.borrow_mut().extend(names.map(str::to_owned));
    }

    /// Parameters in the tensors that were asked for.
    pub(crate) fn parameters(&self) -> u64 {
        self.parameters.get()
    }

    /// Packed bytes of the tensors that were asked for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Tensors that nobody asked for.
    pub(crate) fn unused(&self) -> Vec<&'a str> {
        let used = self.used.borrow();
        self.gguf.tensors().map(TensorInfo::name).filter(|name| !used.contains(*name)).collect()
    }

    fn mark(&self, tensor: &TensorInfo) {
        if self.used.borrow_mut().insert(tensor.name().to_owned()) {
            self.parameters.set(self.parameters.get().saturating_add(tensor.values()));
            self.bytes.set(self.bytes.get().saturating_add(tensor.bytes().unwrap_or(0)));
        }
    }

    fn unpack(&self, tensor: &TensorInfo) -> Result<Vec<f32>> {
        self.mark(tensor);
        let packed = self.gguf.data(tensor)?;
        Ok(tensor.block_type()?.unpack_to_vec(&packed).map_err(gruff_kernels::Error::from)?)
    }

    /// Checks a tensor's shape, given row length first; dimensions of 1 at the end do not matter.
    fn check_shape(&self, tensor: &TensorInfo, expected: &[usize]) -> Result<()> {
        let expected: Vec<u64> = expected.iter().map(|size| *size as u64).collect();
        if trimmed(tensor.shape()) == trimmed(&expected) {
            return Ok(());
        }
        Err(Error::TensorShape {
            file: file_name(self.gguf, tensor.part()),
            tensor: tensor.name().to_owned(),
            found: tensor.shape().to_vec(),
            expected: trimmed(&expected).to_vec(),
        })
    }
}

fn trimmed(shape: &[u64]) -> &[u64] {
    let end = shape.iter().rposition(|size| *size != 1).map_or(1, |last| last + 1);
    &shape[..end.min(shape.len())]
}

/// One module of the model, whose weights and submodules are asked for by their short names.
#[derive(Clone)]
pub(crate) struct Module<'w> {
    weights: &'w Weights<'w>,
    name: String,
}

impl<'w> Module<'w> {
    /// The full name: `model.layers.3.self_attn`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The module `name` inside this one.
    pub(crate) fn module(&self, name: &str) -> Module<'w> {
        Module { weights: self.weights, name: format!("{}.{name}", self.name) }
    }

    /// Says that this is a module that a pass goes through.
    pub(crate) fn declare(&self, kind: ModuleKind) {
        self.weights.modules.borrow_mut().push(ModuleInfo { name: self.name.clone(), kind });
    }

    /// Says that a pass makes the value `name` in this module, and gives its full name.
    pub(crate) fn declare_value(&self, name: &str) -> String {
        let value = self.module(name);
        value.declare(ModuleKind::Value);
        value.name
    }

    /// Lets the parameter `name` of this module be known.
    pub(crate) fn name_weight(&self, name: &str, weight: &Weight) {
        self.weights.named.borrow_mut().insert(format!("{}.{name}", self.name), weight.clone());
    }

    /// Whether the file has this module's weight.
    pub(crate) fn exists(&self) -> bool {
        self.tensor("weight").is_some()
    }

    /// The module's weight as a matrix `[rows, cols]`: `rows` outputs of `cols` inputs.
    pub(crate) fn matrix(&self, rows: usize, cols: usize) -> Result<PackedWeight> {
        self.packed([1, rows, cols])
    }

    /// The device that the module lives on.
    fn device(&self) -> &'w Device {
        self.weights.placement.of_module(&self.name)
    }

    /// The module's weight as a stack of matrices `[matrices, rows, cols]`.
    pub(crate) fn packed(&self, shape: [usize; 3]) -> Result<PackedWeight> {
        self.packed_on(self.device(), shape)
    }

    /// As [`packed`](Self::packed), on a device of the caller's choice.
    pub(crate) fn packed_on(&self, device: &Device, shape: [usize; 3]) -> Result<PackedWeight> {
        let gguf = self.weights.gguf;
        let [matrices, rows, cols] = shape;
        let tensor = self.require("weight")?;
        self.weights.check_shape(tensor, &[cols, rows, matrices])?;
        let (data, block_type) = (gguf.data(tensor)?, tensor.block_type()?);
        self.weights.mark(tensor);
        let packed = PackedWeight::new(device, Arc::new(data), block_type, shape)?;
        // The scale that quantized activations would have is of no use to kernels that measure it.
        if let Some(scale) = self.tensor("input_scale") {
            self.weights.mark(scale);
        }
        match self.tensor("scale") {
            Some(scale) => Ok(packed.with_scale(&self.scales(scale, matrices)?)?),
            None => Ok(packed),
        }
    }

    fn scales(&self, tensor: &TensorInfo, matrices: usize) -> Result<Vec<f32>> {
        if tensor.values() != 1 {
            self.weights.check_shape(tensor, &[matrices])?;
        }
        let scales = self.weights.unpack(tensor)?;
        if let Some(wild) = scales.iter().find(|scale| !scale.is_finite()) {
            let fault = format!("{wild} is not a scale");
            let file = file_name(self.weights.gguf, tensor.part());
            return Err(Error::Tensor { file, tensor: tensor.name().to_owned(), fault });
        }
        Ok(scales)
    }

    /// The module's weight, dense: `shape` outermost first.
    pub(crate) fn weight(&self, shape: &[usize]) -> Result<Tensor> {
        let weight = self.dense(self.require("weight")?, shape)?;
        self.name_weight("weight", &Weight::Dense(weight.clone()));
        Ok(weight)
    }

    /// The module's bias `[len]`, if the file has one.
    pub(crate) fn bias(&self, len: usize) -> Result<Option<Tensor>> {
        self.tensor("bias").map(|tensor| self.dense(tensor, &[len])).transpose()
    }

    /// A parameter of the module that is no submodule's weight: `A_log`, `[len]`.
    pub(crate) fn parameter(&self, name: &str, len: usize) -> Result<Tensor> {
        let full = format!("{}.{name}", self.name);
        let tensor = self.weights.names.gguf(&full).unwrap_or(full);
        let parameter = self.dense(self.weights.gguf.require(&tensor)?, &[len])?;
        self.name_weight(name, &Weight::Dense(parameter.clone()));
        Ok(parameter)
    }

    fn dense(&self, tensor: &TensorInfo, shape: &[usize]) -> Result<Tensor> {
        let expected: Vec<usize> = shape.iter().rev().copied().collect();
        self.weights.check_shape(tensor, &expected)?;
        Ok(self.device().tensor_f32(&self.weights.unpack(tensor)?, shape)?)
    }

    fn tensor(&self, suffix: &str) -> Option<&'w TensorInfo> {
        self.weights.gguf.tensor(&format!("{}.{suffix}", self.weights.names.gguf(&self.name)?))
    }

    fn require(&self, suffix: &str) -> Result<&'w TensorInfo> {
        let stem = self.weights.names.gguf(&self.name).unwrap_or_else(|| self.name.clone());
        Ok(self.weights.gguf.require(&format!("{stem}.{suffix}"))?)
    }
}
