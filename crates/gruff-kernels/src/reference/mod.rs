//! The reference device: scalar code and f64 accumulation, the specification that the rest is tested against.
//!
//! Its memory is reached by copying only, like a GPU's, so no operation's signature can assume host slices.
//! The operations themselves stand in each family's `reference.rs`.

use std::sync::Mutex;

use crate::buffer::{ForeignBytes, Memory};
use crate::device::Backend;
use crate::{Activations, DType, Result, Tensor};

/// See [`crate::Device::reference`].
pub(crate) struct ReferenceDevice {
    activations: Activations,
}

impl ReferenceDevice {
    pub(crate) fn new(activations: Activations) -> Self {
        Self { activations }
    }
}

impl Backend for ReferenceDevice {
    fn name(&self) -> &str {
        match self.activations {
            Activations::Int8 => "reference (f64, int8 activations)",
            Activations::Bf16 => "reference (f64, bf16 activations)",
            Activations::F32 => "reference (f64)",
        }
    }

    fn activations(&self) -> Activations {
        self.activations
    }

    fn allocate(&self, bytes: usize) -> Option<Memory> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        memory.resize(bytes, 0);
        Some(Memory::Reference(Mutex::new(memory)))
    }

    fn import(&self, bytes: ForeignBytes) -> Option<Memory> {
        let bytes = (*bytes).as_ref();
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes.len()).ok()?;
        memory.extend_from_slice(bytes);
        Some(Memory::Reference(Mutex::new(memory)))
    }
}

/// A tensor's values in order, widened.
pub(crate) fn load(tensor: &Tensor) -> Result<Vec<f64>> {
    let bytes = tensor.load_bytes()?;
    Ok(match tensor.dtype() {
        DType::F32 => {
            bytemuck::allocation::pod_collect_to_vec::<u8, f32>(&bytes).into_iter().map(f64::from).collect()
        }
        DType::I32 => {
            bytemuck::allocation::pod_collect_to_vec::<u8, i32>(&bytes).into_iter().map(f64::from).collect()
        }
        DType::U8 => bytes.into_iter().map(f64::from).collect(),
        DType::F16 => bytemuck::allocation::pod_collect_to_vec::<u8, half::f16>(&bytes)
            .into_iter()
            .map(f64::from)
            .collect(),
    })
}

/// Writes a tensor's values in order, rounded once.
pub(crate) fn store(tensor: &Tensor, values: &[f64]) -> Result<()> {
    debug_assert_eq!(tensor.len(), values.len());
    match tensor.dtype() {
        DType::F32 => {
            let rounded: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            tensor.store_bytes(bytemuck::cast_slice(&rounded))
        }
        DType::I32 => {
            let rounded: Vec<i32> = values.iter().map(|v| *v as i32).collect();
            tensor.store_bytes(bytemuck::cast_slice(&rounded))
        }
        DType::U8 => {
            let rounded: Vec<u8> = values.iter().map(|v| *v as u8).collect();
            tensor.store_bytes(&rounded)
        }
        DType::F16 => {
            let rounded: Vec<half::f16> = values.iter().map(|v| half::f16::from_f32(*v as f32)).collect();
            tensor.store_bytes(bytemuck::cast_slice(&rounded))
        }
    }
}
