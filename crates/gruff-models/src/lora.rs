//! Low-rank adapters beside packed weights (LoRA, arXiv:2106.09685): the matrices and what they add.

use std::collections::BTreeMap;

use gruff_blocks::BlockType;
use gruff_kernels::{Activation, DType, Device, PackedTensor, Tensor, elementwise, embedding, matmul, moe};

use crate::adapters::Rows;
use crate::{Error, Model, ModuleInfo, ModuleKind, Result, Weight};

/// The two small matrices of one adapted module: `W x` becomes `W x + scale * factor * B (A x)`.
#[derive(Clone, Debug)]
pub(crate) struct LoraPair {
    /// `[rank, inputs]`, or a stack of them; beside a table of embeddings turned, `[vocab, rank]`.
    a: PackedTensor,
    /// `[outputs, rank]`, or a stack of them.
    b: PackedTensor,
    rank: usize,
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

    /// Adds the matrices beside `module` of `model`, in the order of GGUF's rows; their product is multiplied by
    /// `factor`.
    ///
    /// Beside a matrix `a` is `[rank, inputs]` and `b` `[outputs, rank]`; beside a stack of experts there is one of each
    /// for every expert, `[experts, rank, inputs]` and `[experts, outputs, rank]`; the table of embeddings counts as a
    /// matrix whose inputs are the vocabulary: `[rank, vocab]` and `[hidden, rank]`. They are copied to the module's device.
    ///
    /// # Errors
    /// [`Error::Lora`] for a module that the model does not have or that has no matrix, shapes that do not fit it, and
    /// values that are not numbers.
    pub fn add(
        &mut self,
        model: &dyn Model,
        module: &str,
        a: &Weight,
        b: &Weight,
        factor: f32,
    ) -> Result<()> {
        let (kind, shape) = check_pair(model, module, a, b)?;
        let refuse = |fault: String| Err(Error::Lora { module: module.to_owned(), fault });
        if !factor.is_finite() {
            return refuse(format!("{factor} cannot be a scale"));
        }
        let [matrices, rank, inputs] = shape;
        let outputs = b.shape()[b.shape().len() - 2];
        let read = |name: &str, weight: &Weight| -> Result<Vec<f32>> {
            let values = weight.to_vec_f32()?;
            if values.iter().all(|value| value.is_finite()) {
                return Ok(values);
            }
            let fault = format!("{name} holds values that are not numbers");
            Err(Error::Lora { module: module.to_owned(), fault })
        };
        let (a_values, b_values) = (read("A", a)?, read("B", b)?);
        let (a_values, a_shape) = match kind {
            ModuleKind::Embedding => (turned(&a_values, inputs), [1, inputs, rank]),
            _ => (a_values, [matrices, rank, inputs]),
        };
        let device = model.placement().of_module(module);
        let pair = LoraPair {
            a: packed(device, &a_values, a_shape)?,
            b: packed(device, &b_values, [matrices, outputs, rank])?,
            rank,
            factor,
        };
        self.pairs.insert(module.to_owned(), pair);
        Ok(())
    }

    /// The modules that it stands beside.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.pairs.keys().map(String::as_str)
    }

    /// The rank beside a module.
    pub fn rank(&self, module: &str) -> Option<usize> {
        self.pairs.get(module).map(|pair| pair.rank)
    }

    pub(crate) fn pair(&self, module: &str) -> Option<&LoraPair> {
        self.pairs.get(module)
    }
}

/// The module has matrices of the model, and the two are of their shape: what it is, and A's `[matrices, rank, inputs]`.
fn check_pair(model: &dyn Model, module: &str, a: &Weight, b: &Weight) -> Result<(ModuleKind, [usize; 3])> {
    let refuse = |fault: String| Err(Error::Lora { module: module.to_owned(), fault });
    let kind = match model.named_modules().iter().find(|info| info.name == module) {
        Some(ModuleInfo { kind, .. }) => *kind,
        None => return refuse("is not in this model; the adapter was made for another".to_owned()),
    };
    if !matches!(kind, ModuleKind::Linear | ModuleKind::Embedding | ModuleKind::Experts) {
        return refuse(format!(
            "is {kind:?}; only matrices, stacks of experts and the table of embeddings can be adapted"
        ));
    }
    // A head that is the embedding table has no weight of its own.
    let own = model.weight(&format!("{module}.weight")).or_else(|missing| match module {
        "lm_head" => model.weight("model.embed_tokens.weight"),
        _ if kind == ModuleKind::Experts => Err(Error::Lora {
            module: module.to_owned(),
            fault: "is all experts together; adapt their gate_proj, up_proj and down_proj".to_owned(),
        }),
        _ => Err(missing),
    })?;
    let (shape, a_shape, b_shape) = (own.shape(), a.shape(), b.shape());
    let stack = |shape: &[usize]| match *shape {
        [rows, columns] => Some([1, rows, columns]),
        [matrices, rows, columns] => Some([matrices, rows, columns]),
        _ => None,
    };
    let (Some(own), Some(a), Some(b)) = (stack(&shape), stack(&a_shape), stack(&b_shape)) else {
        return refuse(format!("{a_shape:?} and {b_shape:?} are not two matrices"));
    };
    if a[1] != b[2] || a[1] == 0 {
        return refuse(format!("A is {a_shape:?} and B is {b_shape:?}: their ranks differ"));
    }
    let [matrices, outputs, inputs] = match kind {
        ModuleKind::Embedding => [1, own[2], own[1]],
        _ => own,
    };
    if a[0] != matrices || b[0] != matrices || a[2] != inputs || b[1] != outputs {
        return refuse(format!(
            "is {shape:?}, which A {a_shape:?} and B {b_shape:?} do not fit; the adapter was made for another base \
             model"
        ));
    }
    Ok((kind, a))
}

/// The columns of rows of `columns` values as rows.
fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

/// Matrices as products read them.
fn packed(device: &Device, values: &[f32], shape: [usize; 3]) -> Result<PackedTensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(PackedTensor::from_bytes(device, &bytes, BlockType::F32, shape)?)
}

impl LoraPair {
    /// Adds to the outputs `[R, outputs]` of a matrix what is made of its inputs `[R, inputs]`.
    pub(crate) fn add_to_product(&self, rows: &Rows, x: &Tensor, out: &Tensor) -> Result<()> {
        let low = x.device().scratch(DType::F32, &[rows.len(), self.rank])?;
        matmul::linear(&Activation::new(&rows.of(x, 1)?)?, &self.a, None, &low)?;
        self.scale(&low, rows, 1)?;
        Ok(matmul::linear_add(&Activation::new(&low)?, &self.b, &rows.of(out, 1)?)?)
    }

    /// Adds to the embeddings `[T, hidden]` of tokens, which are multiplied by `scale`.
    pub(crate) fn add_to_embeddings(&self, rows: &Rows, ids: &[u32], scale: f32, out: &Tensor) -> Result<()> {
        let low = out.device().scratch(DType::F32, &[rows.len(), self.rank])?;
        embedding::embed(&ids[rows.start..rows.start + rows.len()], &self.a, scale, &low)?;
        self.scale(&low, rows, 1)?;
        Ok(matmul::linear_add(&Activation::new(&low)?, &self.b, &rows.of(out, 1)?)?)
    }

    /// Adds to the outputs `[T, outputs]` of experts, weighted and summed: token t's inputs are rows `t * used + j` of
    /// `x` `[T * used, inputs]`, its experts `ids` `[T, used]` and their weights `weights`.
    pub(crate) fn add_to_experts(
        &self,
        rows: &Rows,
        x: &Tensor,
        [ids, weights]: [&Tensor; 2],
        out: &Tensor,
    ) -> Result<()> {
        let device = x.device();
        let used = ids.shape()[1];
        let (x, ids, weights, out) =
            (rows.of(x, used)?, rows.of(ids, 1)?, rows.of(weights, 1)?, rows.of(out, 1)?);
        let count = rows.len() * used;
        let each = device.scratch(DType::I32, &[count, 1])?;
        each.write_i32(&ids.to_vec_i32()?)?;
        let ones = device.tensor_f32(&vec![1.0; count], &[count, 1])?;
        let low = device.scratch(DType::F32, &[count, self.rank])?;
        moe::experts_combine(&Activation::new(&x)?, &each, &ones, &self.a, &low)?;
        self.scale(&low, rows, used)?;
        let sum = device.scratch(DType::F32, &[rows.len(), self.b.rows()])?;
        moe::experts_combine(&Activation::new(&low)?, &ids, &weights, &self.b, &sum)?;
        Ok(elementwise::add(&out, &sum)?)
    }

    /// Multiplies `low`, which has `each` rows for each of `rows`, by the scales of their sequences.
    fn scale(&self, low: &Tensor, rows: &Rows, each: usize) -> Result<()> {
        let mut start = 0;
        while start < rows.len() {
            let scale = rows.scales[rows.owners[start]];
            let same = |owner: &&usize| rows.scales[**owner] == scale;
            let len = rows.owners[start..].iter().take_while(same).count();
            elementwise::scale(&low.narrow(0, start * each, len * each)?, scale * self.factor)?;
            start += len;
        }
        Ok(())
    }
}
