//! Weights by module name, packed as they lie in the file.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use gruff_gguf::{Gguf, TensorInfo};
use gruff_kernels::{Device, ForeignBytes, Tensor};

use crate::keys::file_name;
use crate::parameters::PackedWeight;
use crate::shard::{Part, Shard, cut};
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
        // A part is nobody's to see, and what was copied to a device is not to be kept here.
        if !self.shard().is_whole() {
            return;
        }
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

    /// The part of matrices that is asked for.
    pub(crate) fn shard(&self) -> Shard {
        self.weights.placement.shard()
    }

    /// The part of so many columns of the module's matrix that is here.
    pub(crate) fn shared_columns(&self, cols: usize) -> Result<Range<usize>> {
        self.shard().columns(&self.name, cols, self.require("weight")?.block_type()?)
    }

    /// The device that the module lives on.
    fn device(&self) -> &'w Device {
        self.weights.placement.of_module(&self.name)
    }

    /// The module's weight as a stack of matrices `[matrices, rows, cols]`.
    pub(crate) fn packed(&self, shape: [usize; 3]) -> Result<PackedWeight> {
        self.packed_on(self.device(), shape)
    }

    /// Some rows and columns of the module's weight, which is a stack `[matrices, rows, cols]`.
    pub(crate) fn packed_part(&self, shape: [usize; 3], part: [&Part; 2]) -> Result<PackedWeight> {
        self.load_packed(self.device(), shape, part)
    }

    /// As [`packed`](Self::packed), on a device of the caller's choice.
    pub(crate) fn packed_on(&self, device: &Device, shape: [usize; 3]) -> Result<PackedWeight> {
        self.load_packed(device, shape, [&Part::All; 2])
    }

    fn load_packed(&self, device: &Device, shape: [usize; 3], part: [&Part; 2]) -> Result<PackedWeight> {
        let gguf = self.weights.gguf;
        let [matrices, rows, cols] = shape;
        let tensor = self.require("weight")?;
        self.weights.check_shape(tensor, &[cols, rows, matrices])?;
        let (data, block_type) = (gguf.data(tensor)?, tensor.block_type()?);
        self.weights.mark(tensor);
        let (mut bytes, mut kept): (ForeignBytes, _) = (Arc::new(data), shape);
        if part != [&Part::All; 2] {
            bytes = cut(bytes, block_type, shape, part).map_err(|_| {
                let values = block_type.values();
                let fault = format!(
                    "{}: a part of its columns is not whole blocks of {values} ({block_type})",
                    self.name
                );
                self.shard().refuse(fault)
            })?;
            kept = [matrices, part[0].count(rows), part[1].count(cols)];
        }
        let packed = PackedWeight::new(device, bytes, block_type, kept)?;
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
        self.weight_part(shape, &Part::All)
    }

    /// Some of its outermost entries.
    pub(crate) fn weight_part(&self, shape: &[usize], part: &Part) -> Result<Tensor> {
        let weight = self.dense(self.require("weight")?, shape, part)?;
        self.name_weight("weight", &Weight::Dense(weight.clone()));
        Ok(weight)
    }

    /// A part of the module's bias `[len]`, if the file has one.
    pub(crate) fn bias(&self, len: usize, part: &Part) -> Result<Option<Tensor>> {
        self.tensor("bias").map(|tensor| self.dense(tensor, &[len], part)).transpose()
    }

    /// A part of a parameter of the module that is no submodule's weight: `A_log`, `[len]`.
    pub(crate) fn parameter(&self, name: &str, len: usize, part: &Part) -> Result<Tensor> {
        let full = format!("{}.{name}", self.name);
        let tensor = self.weights.names.gguf(&full).unwrap_or(full);
        let parameter = self.dense(self.weights.gguf.require(&tensor)?, &[len], part)?;
        self.name_weight(name, &Weight::Dense(parameter.clone()));
        Ok(parameter)
    }

    fn dense(&self, tensor: &TensorInfo, shape: &[usize], part: &Part) -> Result<Tensor> {
        let expected: Vec<usize> = shape.iter().rev().copied().collect();
        self.weights.check_shape(tensor, &expected)?;
        let width = shape[1..].iter().product();
        let values = part.of_values(self.weights.unpack(tensor)?, width);
        let mut kept = shape.to_vec();
        kept[0] = part.count(shape[0]);
        Ok(self.device().tensor_f32(&values, &kept)?)
    }

    fn tensor(&self, suffix: &str) -> Option<&'w TensorInfo> {
        self.weights.gguf.tensor(&format!("{}.{suffix}", self.weights.names.gguf(&self.name)?))
    }

    fn require(&self, suffix: &str) -> Result<&'w TensorInfo> {
        let stem = self.weights.names.gguf(&self.name).unwrap_or_else(|| self.name.clone());
        Ok(self.weights.gguf.require(&format!("{stem}.{suffix}"))?)
    }
}
