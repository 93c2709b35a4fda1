//! An activation on its way into matrix products, with the quantized forms its consumers ask for.

use std::sync::Mutex;

use crate::buffer::Buffer;
use crate::{DType, Device, Error, Result, Tensor};

/// A dense `[T, cols]` f32 matrix that one or several products read.
///
/// A device whose kernels want it quantized makes that form when the first product asks for it and keeps it
/// for the others. **The tensor must not be written while the activation lives**; make a new activation when
/// the content has changed (it is two pointers).
#[derive(Debug)]
pub struct Activation {
    tensor: Tensor,
    forms: Mutex<Vec<(Form, Buffer)>>,
}

/// A quantized form of an activation, private to the device that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// int8 in blocks of 32, as [`crate::matmul`] defines it, in the layout of the CPU kernels.
    Int8Blocks,
    /// The same, and behind the rows once more in cohorts of rows that stand side by side.
    Int8Cohorts,
    /// The same rounding, as f32 in rows completed with zeros to whole vectors.
    Rounded,
    /// Not rounded, in such rows.
    Padded,
    /// On CUDA: bfloat16 in pieces of 16 bytes (see `matmul/cuda/pieces.cuh`).
    Pieces,
    /// On CUDA: two bfloat16 a value (see `matmul/cuda/terms.cuh`).
    Bf16Terms,
    /// On CUDA: two halves a value, and what sums of groups are multiplied with.
    HalfTerms,
}

impl Activation {
    /// Wraps an f32 `[T, cols]` tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] for anything else.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        if tensor.shape().len() != 2 {
            return Err(Error::Shape {
                op: "activation",
                what: format!("{:?} is not [tokens, width]", tensor.shape()),
            });
        }
        if tensor.dtype() != DType::F32 {
            return Err(Error::DType {
                op: "activation",
                operand: "the input",
                found: tensor.dtype(),
                expected: DType::F32,
            });
        }
        Ok(Self { tensor: tensor.clone(), forms: Mutex::new(Vec::new()) })
    }

    /// Wraps a tensor whose form is there already.
    pub(crate) fn with_form(tensor: &Tensor, form: Form, buffer: Buffer) -> Result<Self> {
        let made = Self::new(tensor)?;
        Ok(Self { forms: Mutex::new(vec![(form, buffer)]), ..made })
    }

    /// The unrounded values, `[T, cols]`.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Rows T.
    pub fn rows(&self) -> usize {
        self.tensor.shape()[0]
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.tensor.shape()[1]
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        self.tensor.device()
    }

    /// The quantized form, made by `make` on the first call.
    pub(crate) fn form(&self, form: Form, make: impl FnOnce(&Tensor) -> Result<Buffer>) -> Result<Buffer> {
        let mut forms = self.forms.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, buffer)) = forms.iter().find(|(have, _)| *have == form) {
            return Ok(buffer.clone());
        }
        let buffer = make(&self.tensor)?;
        forms.push((form, buffer.clone()));
        Ok(buffer)
    }
}
