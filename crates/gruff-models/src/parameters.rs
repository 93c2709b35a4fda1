//! The weights of a model by name, and weights put in their place.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gruff_blocks::BlockType;
use gruff_kernels::{DType, Device, ForeignBytes, PackedTensor, Tensor};

use crate::pattern::near;
use crate::versioned::Versioned;
use crate::{Error, Result};

/// One parameter of a model: a matrix (or a stack of them) in ggml blocks, or a dense tensor.
#[derive(Clone, Debug)]
pub enum Weight {
    /// What products read: packed, in GGUF's order.
    Packed(PackedWeight),
    /// Norms, biases, convolutions: f32.
    Dense(Tensor),
}

/// A packed matrix `[rows, cols]`, or a stack `[matrices, rows, cols]`, together with its bytes.
#[derive(Clone)]
pub struct PackedWeight {
    tensor: PackedTensor,
    bytes: ForeignBytes,
    /// Rows of each matrix in `bytes`, and those of them that this weight has.
    stored_rows: usize,
    rows: Range<usize>,
}

impl PackedWeight {
    /// Of bytes that lie as `shape` `[matrices, rows, cols]` says.
    pub(crate) fn new(
        device: &Device,
        bytes: ForeignBytes,
        block_type: BlockType,
        shape: [usize; 3],
    ) -> Result<Self> {
        let tensor = PackedTensor::from_foreign(device, bytes.clone(), 0, block_type, shape)?;
        Ok(Self { tensor, bytes, stored_rows: shape[1], rows: 0..shape[1] })
    }

    /// The same weight with the scale that a file has beside it.
    pub(crate) fn with_scale(self, scale: &[f32]) -> Result<Self> {
        Ok(Self { tensor: self.tensor.with_scale(scale)?, ..self })
    }

    /// Some rows of every matrix.
    pub(crate) fn narrow_rows(&self, start: usize, len: usize) -> Result<Self> {
        let begin = self.rows.start + start;
        Ok(Self { tensor: self.tensor.narrow_rows(start, len)?, rows: begin..begin + len, ..self.clone() })
    }

    /// What products read.
    pub fn tensor(&self) -> &PackedTensor {
        &self.tensor
    }

    /// How the values are stored.
    pub fn block_type(&self) -> BlockType {
        self.tensor.block_type()
    }

    /// The packed bytes, row after row, as they lie in the file.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let all = (*self.bytes).as_ref();
        let row = self.tensor.row_bytes();
        let matrix = |index: usize| {
            let first = (index * self.stored_rows + self.rows.start) * row;
            &all[first..first + self.rows.len() * row]
        };
        if self.rows.len() == self.stored_rows || self.tensor.matrices() == 1 {
            let first = self.rows.start * row;
            return Cow::Borrowed(&all[first..first + self.tensor.packed_bytes()]);
        }
        Cow::Owned((0..self.tensor.matrices()).flat_map(|index| matrix(index).iter().copied()).collect())
    }

    fn to_vec_f32(&self) -> Result<Vec<f32>> {
        let (matrices, rows, cols) = (self.tensor.matrices(), self.tensor.rows(), self.tensor.cols());
        let mut values = vec![0.0; matrices * rows * cols];
        // From the file's bytes, which are here, rather than from a card.
        let packed = self.bytes();
        let packed_rows = packed.chunks_exact(self.tensor.row_bytes().max(1));
        for (index, (out, row)) in values.chunks_exact_mut(cols.max(1)).zip(packed_rows).enumerate() {
            self.block_type().unpack(row, out).map_err(gruff_kernels::Error::from)?;
            let scale = self.tensor.scale(index / rows);
            if scale != 1.0 {
                out.iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(values)
    }
}

impl fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

impl Weight {
    /// A weight of bytes that are packed already: `shape` is `[rows, cols]` or `[matrices, rows, cols]`.
    ///
    /// # Errors
    /// [`Error::Kernel`] when the bytes do not fill the shape or a row is not whole blocks.
    pub fn from_bytes(
        device: &Device,
        bytes: Vec<u8>,
        block_type: BlockType,
        shape: &[usize],
    ) -> Result<Self> {
        let shape = matrix_shape(shape)?;
        Ok(Self::Packed(PackedWeight::new(device, Arc::new(bytes), block_type, shape)?))
    }

    /// A weight of f32 values, rounded to `block_type`.
    ///
    /// # Errors
    /// [`Error::Kernel`] when the values do not fill the shape, or the type cannot hold its rows.
    pub fn pack(device: &Device, values: &[f32], block_type: BlockType, shape: &[usize]) -> Result<Self> {
        let [matrices, rows, cols] = matrix_shape(shape)?;
        let row_bytes = block_type.row_bytes(cols).map_err(gruff_kernels::Error::from)?;
        let bytes = rows.checked_mul(matrices).and_then(|rows| rows.checked_mul(row_bytes));
        let mut packed = vec![0; bytes.unwrap_or(0)];
        if rows.checked_mul(matrices).and_then(|rows| rows.checked_mul(cols)) != Some(values.len()) {
            return Err(shape_fault(format!("{} values do not fill {shape:?}", values.len())));
        }
        block_type.pack(values, &mut packed).map_err(gruff_kernels::Error::from)?;
        Self::from_bytes(device, packed, block_type, shape)
    }

    /// A dense weight of f32 values.
    ///
    /// # Errors
    /// [`Error::Kernel`] when the values do not fill the shape.
    pub fn dense(device: &Device, values: &[f32], shape: &[usize]) -> Result<Self> {
        Ok(Self::Dense(device.tensor_f32(values, shape)?))
    }

    /// Its shape, outermost first: a matrix is `[outputs, inputs]`.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Dense(tensor) => tensor.shape().to_vec(),
            Self::Packed(PackedWeight { tensor, .. }) if tensor.matrices() == 1 => {
                vec![tensor.rows(), tensor.cols()]
            }
            Self::Packed(PackedWeight { tensor, .. }) => {
                vec![tensor.matrices(), tensor.rows(), tensor.cols()]
            }
        }
    }

    /// How its values are stored: F32 for dense ones.
    pub fn block_type(&self) -> BlockType {
        match self {
            Self::Packed(weight) => weight.block_type(),
            Self::Dense(_) => BlockType::F32,
        }
    }

    /// Its values, unpacked, scales beside the matrix applied.
    ///
    /// # Errors
    /// [`Error::Kernel`] when they cannot be copied from the device.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        match self {
            Self::Packed(weight) => weight.to_vec_f32(),
            Self::Dense(tensor) => Ok(tensor.to_vec_f32()?),
        }
    }

    /// Its bytes as they are stored.
    ///
    /// # Errors
    /// [`Error::Kernel`] when they cannot be copied from the device.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Packed(weight) => Ok(weight.bytes()),
            Self::Dense(tensor) => {
                Ok(Cow::Owned(tensor.to_vec_f32()?.iter().flat_map(|value| value.to_le_bytes()).collect()))
            }
        }
    }

    /// The device that it lives on.
    pub fn device(&self) -> &Device {
        match self {
            Self::Packed(weight) => weight.tensor.device(),
            Self::Dense(tensor) => tensor.device(),
        }
    }

    /// The same weight on another device.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no room for it.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        match self {
            own if own.device().same(device) => Ok(own.clone()),
            Self::Packed(weight) => {
                let tensor = &weight.tensor;
                let shape = [tensor.matrices(), tensor.rows(), tensor.cols()];
                let bytes = Arc::new(weight.bytes().into_owned());
                let scales: Vec<f32> = (0..tensor.matrices()).map(|matrix| tensor.scale(matrix)).collect();
                let copy = PackedWeight::new(device, bytes, tensor.block_type(), shape)?;
                let scaled = scales.iter().any(|scale| *scale != 1.0);
                Ok(Self::Packed(if scaled { copy.with_scale(&scales)? } else { copy }))
            }
            Self::Dense(tensor) => Self::dense(device, &tensor.to_vec_f32()?, tensor.shape()),
        }
    }

    /// The same values in the kind that `own` is of.
    fn like(self, own: &Self) -> Result<Self> {
        match (self, own) {
            (Self::Dense(tensor), Self::Packed(_)) => {
                let (values, shape) = (tensor.to_vec_f32()?, tensor.shape().to_vec());
                Self::pack(tensor.device(), &values, BlockType::F32, &shape)
            }
            (packed @ Self::Packed(_), Self::Dense(tensor)) => {
                Self::dense(tensor.device(), &packed.to_vec_f32()?, tensor.shape())
            }
            (same, _) => Ok(same),
        }
    }
}

/// `[rows, cols]` as a stack of one.
fn matrix_shape(shape: &[usize]) -> Result<[usize; 3]> {
    match *shape {
        [rows, cols] => Ok([1, rows, cols]),
        [matrices, rows, cols] => Ok([matrices, rows, cols]),
        _ => Err(shape_fault(format!("{shape:?} is neither [rows, cols] nor [matrices, rows, cols]"))),
    }
}

fn shape_fault(what: String) -> Error {
    gruff_kernels::Error::Shape { op: "weight", what }.into()
}

pub(crate) type Overrides = HashMap<String, Weight>;

/// The parameters of one model by transformers' names: `model.layers.3.mlp.up_proj.weight`.
///
/// They are in GGUF's order: `q_proj` and `k_proj` of Llama models have the rows of a rotary pair side by side, norms
/// of the zero-centred kinds are `1 + w`, and `A_log` is `-exp(A_log)`.
#[derive(Clone, Default)]
pub struct Parameters {
    all: Arc<BTreeMap<String, Weight>>,
    overrides: Arc<Versioned<Overrides>>,
    copy: Option<Arc<Copy>>,
    /// Whether none can be set.
    closed: bool,
}

/// A parameter that is on another device a second time, where it is known by another name.
struct Copy {
    of: &'static str,
    name: &'static str,
    device: Device,
}

impl Parameters {
    pub(crate) fn new(all: BTreeMap<String, Weight>) -> Self {
        Self { all: Arc::new(all), overrides: Arc::default(), copy: None, closed: false }
    }

    /// The same, to be read only.
    pub(crate) fn closed(&self) -> Self {
        Self { closed: true, ..self.clone() }
    }

    /// The same, where what stands in for the parameter `of` is on `device` too, by the name `name`.
    pub(crate) fn with_copy(self, of: &'static str, name: &'static str, device: &Device) -> Self {
        Self { copy: Some(Arc::new(Copy { of, name, device: device.clone() })), ..self }
    }

    fn copy(&self, name: &str) -> Option<&Copy> {
        self.copy.as_deref().filter(|copy| copy.of == name)
    }

    /// Their names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// The parameter called `name`, as it is in use now.
    ///
    /// # Errors
    /// [`Error::NoWeight`] with near names when there is none.
    pub fn get(&self, name: &str) -> Result<Weight> {
        let own = self.own(name)?;
        Ok(self.overridden().and_then(|map| map.get(name).cloned()).unwrap_or_else(|| own.clone()))
    }

    /// Puts `weight` in the place of the parameter called `name`. It may be packed in any type; a head that is the
    /// embedding table changes with the table.
    ///
    /// # Errors
    /// [`Error::NoWeight`] when there is none of that name, [`Error::SetWeight`] for another shape or device,
    /// [`Error::Shared`] for a model whose matrices are shared out among devices.
    pub fn set(&self, name: &str, weight: Weight) -> Result<()> {
        if self.closed {
            return Err(Error::Shared { what: "other weights" });
        }
        let own = self.own(name)?;
        let refuse = |fault: String| Err(Error::SetWeight { name: name.to_owned(), fault });
        if weight.shape() != own.shape() {
            return refuse(format!("is {:?}, but what was given is {:?}", own.shape(), weight.shape()));
        }
        if !weight.device().same(own.device()) {
            return refuse(format!("lives on {}; make the new one there", own.device().name()));
        }
        let weight = weight.like(own)?;
        let copied = self.copy(name).map(|copy| Ok::<_, Error>((copy.name, weight.to_device(&copy.device)?)));
        let copied = copied.transpose()?;
        self.change(|map| {
            map.extend(copied.map(|(name, weight)| (name.to_owned(), weight)));
            map.insert(name.to_owned(), weight)
        });
        Ok(())
    }

    /// Puts the file's own parameter back; says whether another was in its place.
    pub fn reset(&self, name: &str) -> bool {
        self.change(|map| {
            self.copy(name).and_then(|copy| map.remove(copy.name));
            map.remove(name)
        })
        .is_some()
    }

    fn own(&self, name: &str) -> Result<&Weight> {
        self.all.get(name).ok_or_else(|| Error::NoWeight {
            name: name.to_owned(),
            near: near(name, self.all.keys().map(String::as_str)),
        })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Overrides) -> R) -> R {
        let Ok(result) = self.overrides.change(|map| Ok::<_, Infallible>(change(map)));
        result
    }

    /// What is in the place of the file's own; `None` when nothing is.
    pub(crate) fn overridden(&self) -> Option<Arc<Overrides>> {
        Some(self.overrides.get()).filter(|overrides| !overrides.is_empty())
    }

    pub(crate) fn revision(&self) -> u64 {
        self.overrides.revision()
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let overridden = self.overridden();
        let names: Vec<&String> = overridden.iter().flat_map(|map| map.keys()).collect();
        f.debug_struct("Parameters").field("all", &self.all.len()).field("set", &names).finish()
    }
}

/// A dense tensor's dtype is f32 wherever a parameter is dense.
pub(crate) fn dense_of(weight: &Weight) -> Option<&Tensor> {
    match weight {
        Weight::Dense(tensor) if tensor.dtype() == DType::F32 => Some(tensor),
        _ => None,
    }
}
