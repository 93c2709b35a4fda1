//! Low-rank adapters beside packed weights (LoRA, arXiv:2106.09685).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gruff_blocks::BlockType;
use gruff_kernels::{Activation, DType, PackedTensor, Step, Tensor, elementwise, matmul};

use crate::versioned::Versioned;
use crate::{Error, Model, ModuleInfo, ModuleKind, Result, Weight};

/// The two small matrices of one adapted module: `W x` becomes `W x + scale * factor * B (A x)`.
#[derive(Clone, Debug)]
struct LoraPair {
    /// `[rank, inputs]`.
    a: PackedTensor,
    /// `[outputs, rank]`.
    b: PackedTensor,
    /// `alpha / rank`, or `alpha / sqrt(rank)` for rsLoRA.
    factor: f32,
}

/// An adapter: pairs of small matrices by the names of the modules that they stand beside.
#[derive(Clone, Debug, Default)]
pub struct Lora {
    pairs: BTreeMap<String, LoraPair>,
}

impl Lora {
    /// An adapter without any matrices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the matrices beside `module` of `model`: `a` `[rank, inputs]`, `b` `[outputs, rank]`, in the order of
    /// GGUF's rows; their product is multiplied by `factor`.
    ///
    /// # Errors
    /// [`Error::Lora`] for a module that the model does not have or that is no matrix, shapes that do not fit it, and
    /// values that are not numbers.
    pub fn add(
        &mut self,
        model: &dyn Model,
        module: &str,
        a: &Weight,
        b: &Weight,
        factor: f32,
    ) -> Result<()> {
        check_pair(model, module, a, b)?;
        let refuse = |fault: String| Err(Error::Lora { module: module.to_owned(), fault });
        if !factor.is_finite() {
            return refuse(format!("{factor} cannot be a scale"));
        }
        for (name, weight) in [("A", a), ("B", b)] {
            if weight.to_vec_f32()?.iter().any(|value| !value.is_finite()) {
                return refuse(format!("{name} holds values that are not numbers"));
            }
        }
        let pair = LoraPair { a: packed(a)?, b: packed(b)?, factor };
        if !pair.a.device().same(model.device()) || !pair.b.device().same(model.device()) {
            return refuse(format!("A and B must live on {}", model.device().name()));
        }
        self.pairs.insert(module.to_owned(), pair);
        Ok(())
    }

    /// The modules that it stands beside.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// The rank beside a module.
    pub fn rank(&self, module: &str) -> Option<usize> {
        self.pairs.get(module).map(|pair| pair.a.rows())
    }
}

/// The module is a matrix of the model, and the two are of its shape.
fn check_pair(model: &dyn Model, module: &str, a: &Weight, b: &Weight) -> Result<()> {
    let refuse = |fault: String| Err(Error::Lora { module: module.to_owned(), fault });
    match model.named_modules().iter().find(|info| info.name == module) {
        Some(ModuleInfo { kind: ModuleKind::Linear, .. }) => {}
        Some(ModuleInfo { kind, .. }) => {
            return refuse(format!("is {kind:?}; only matrices that every token passes can be adapted"));
        }
        None => return refuse("is not in this model; the adapter was made for another".to_owned()),
    }
    // A head that is the embedding table has no weight of its own.
    let own = model.weight(&format!("{module}.weight")).or_else(|missing| match module {
        "lm_head" => model.weight("model.embed_tokens.weight"),
        _ => Err(missing),
    })?;
    let (shape, a_shape, b_shape) = (own.shape(), a.shape(), b.shape());
    let ([outputs, inputs], [rank, a_inputs], [b_outputs, b_rank]) = (&*shape, &*a_shape, &*b_shape) else {
        return refuse(format!("{a_shape:?} and {b_shape:?} are not two matrices"));
    };
    if rank != b_rank || *rank == 0 {
        return refuse(format!("A is {a_shape:?} and B is {b_shape:?}: their ranks differ"));
    }
    if inputs != a_inputs || outputs != b_outputs {
        return refuse(format!(
            "is {shape:?}, but A {a_shape:?} and B {b_shape:?} are for [{b_outputs}, {a_inputs}]; the adapter was made \
             for another base model"
        ));
    }
    Ok(())
}

/// A matrix as products read it.
fn packed(weight: &Weight) -> Result<PackedTensor> {
    match weight {
        Weight::Packed(weight) => Ok(weight.tensor().clone()),
        Weight::Dense(tensor) => {
            let bytes: Vec<u8> = tensor.to_vec_f32()?.iter().flat_map(|value| value.to_le_bytes()).collect();
            let shape = [1, tensor.shape()[0], tensor.shape()[1]];
            Ok(PackedTensor::from_bytes(tensor.device(), &bytes, BlockType::F32, shape)?)
        }
    }
}

/// Scales of adapters by name, for one sequence of a step. An adapter that is not named is off.
pub type LoraScales = BTreeMap<String, f32>;

#[derive(Clone)]
struct Loaded {
    name: String,
    lora: Arc<Lora>,
    scale: f32,
}

/// The adapters of one model, in the order in which they came.
#[derive(Clone, Default)]
pub struct Adapters {
    loaded: Arc<Versioned<Vec<Loaded>>>,
}

impl Adapters {
    /// Adds an adapter, on at `scale` for sequences that say nothing else.
    ///
    /// # Errors
    /// [`Error::Adapter`] when the name is taken or the scale is not a number.
    pub fn add(&self, name: &str, lora: Lora, scale: f32) -> Result<()> {
        check_scale(name, scale)?;
        self.loaded.change(|loaded| {
            if loaded.iter().any(|known| known.name == name) {
                let fault = "is the name of an adapter that is loaded already".to_owned();
                return Err(Error::Adapter { name: name.to_owned(), fault });
            }
            loaded.push(Loaded { name: name.to_owned(), lora: Arc::new(lora), scale });
            Ok(())
        })
    }

    /// Changes the scale that an adapter has for sequences that say nothing else; 0 is off.
    ///
    /// # Errors
    /// [`Error::Adapter`] when there is none of that name or the scale is not a number.
    pub fn set_scale(&self, name: &str, scale: f32) -> Result<()> {
        check_scale(name, scale)?;
        self.loaded.change(|loaded| {
            let known = loaded.iter_mut().find(|known| known.name == name);
            known.ok_or_else(|| unknown(name))?.scale = scale;
            Ok(())
        })
    }

    /// Takes an adapter away.
    ///
    /// # Errors
    /// [`Error::Adapter`] when there is none of that name.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.loaded.change(|loaded| {
            let at = loaded.iter().position(|known| known.name == name).ok_or_else(|| unknown(name))?;
            loaded.remove(at);
            Ok(())
        })
    }

    /// Names and scales.
    pub fn scales(&self) -> LoraScales {
        self.loaded.get().iter().map(|known| (known.name.clone(), known.scale)).collect()
    }

    /// Checks the scales that a sequence asks for.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a name that is not loaded or a scale that is not a number.
    pub fn check(&self, scales: &LoraScales) -> Result<()> {
        let loaded = self.loaded.get();
        for (name, scale) in scales {
            check_scale(name, *scale)?;
            if !loaded.iter().any(|known| known.name == *name) {
                return Err(unknown(name));
            }
        }
        Ok(())
    }

    pub(crate) fn revision(&self) -> u64 {
        self.loaded.revision()
    }

    /// What is on in a step; `None` when nothing is. `scales` are those of its sequences, where they say.
    pub(crate) fn active(
        &self,
        step: &Step,
        scales: Option<&[LoraScales]>,
    ) -> Result<Option<ActiveAdapters>> {
        let loaded = self.loaded.get();
        if let Some(scales) = scales {
            if scales.len() != step.sequences().len() {
                let what = format!("scales for {} of {} sequences", scales.len(), step.sequences().len());
                return Err(gruff_kernels::Error::Shape { op: "adapters", what }.into());
            }
            scales.iter().try_for_each(|scales| self.check(scales))?;
        }
        let mut active = Vec::new();
        for known in loaded.iter() {
            let scale = |index: usize| match scales {
                Some(scales) => scales[index].get(&known.name).copied().unwrap_or(0.0),
                None => known.scale,
            };
            let scales: Vec<f32> = (0..step.sequences().len()).map(scale).collect();
            if scales.iter().any(|scale| *scale != 0.0) {
                active.push((known.lora.clone(), scales));
            }
        }
        Ok((!active.is_empty()).then_some(ActiveAdapters(active)))
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapters").field(&self.scales()).finish()
    }
}

fn unknown(name: &str) -> Error {
    Error::Adapter { name: name.to_owned(), fault: "is not the name of an adapter that is loaded".to_owned() }
}

fn check_scale(name: &str, scale: f32) -> Result<()> {
    if scale.is_finite() {
        return Ok(());
    }
    Err(Error::Adapter { name: name.to_owned(), fault: format!("cannot have the scale {scale}") })
}

/// The adapters that are on in a step, each with a scale a sequence.
pub(crate) struct ActiveAdapters(Vec<(Arc<Lora>, Vec<f32>)>);

impl ActiveAdapters {
    /// Whether any stands beside `module`.
    pub(crate) fn adapt(&self, module: &str) -> bool {
        self.0.iter().any(|(lora, _)| lora.pairs.contains_key(module))
    }

    /// Adds to the output of `module`, `[R, outputs]`, what its adapters make of its input `[R, inputs]`. Row r is of
    /// sequence `owners[r]`. A row's sum depends on the row and the scales of its own sequence only.
    pub(crate) fn apply(&self, module: &str, x: &Tensor, out: &Tensor, owners: &[usize]) -> Result<()> {
        for (lora, scales) in &self.0 {
            let Some(pair) = lora.pairs.get(module) else { continue };
            let mut start = 0;
            while start < owners.len() {
                let on = scales[owners[start]] != 0.0;
                let len = owners[start..].iter().take_while(|owner| (scales[**owner] != 0.0) == on).count();
                if on {
                    let owners = &owners[start..start + len];
                    pair.add(&x.narrow(0, start, len)?, &out.narrow(0, start, len)?, owners, scales)?;
                }
                start += len;
            }
        }
        Ok(())
    }
}

impl LoraPair {
    fn add(&self, x: &Tensor, out: &Tensor, owners: &[usize], scales: &[f32]) -> Result<()> {
        let low = x.device().scratch(DType::F32, &[owners.len(), self.a.rows()])?;
        matmul::linear(&Activation::new(x)?, &self.a, None, &low)?;
        let mut start = 0;
        while start < owners.len() {
            let scale = scales[owners[start]];
            let len = owners[start..].iter().take_while(|owner| scales[**owner] == scale).count();
            elementwise::scale(&low.narrow(0, start, len)?, scale * self.factor)?;
            start += len;
        }
        Ok(matmul::linear_add(&Activation::new(&low)?, &self.b, out)?)
    }
}
