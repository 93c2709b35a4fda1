//! Devices: where tensors live and operations run.

mod backend;
mod memory;
mod recordings;
mod spare;
mod stream;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use gruff_blocks::BlockType;

use crate::buffer::Memory;
use crate::cpu::{CpuDevice, CpuOptions};
use crate::cuda::{CudaDevice, CudaOptions};
use crate::matmul::MatmulKernel;
use crate::plain::PlainDevice;
use crate::profile::Profile;
use crate::reference::ReferenceDevice;
use crate::{Result, Without};

pub(crate) use backend::Backend;
pub(crate) use memory::BORDER;
pub(crate) use recordings::Lease;
use recordings::Recorded;
pub(crate) use spare::{Spare, take_or_make_room};

/// How activations enter a product with packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// Rounded to int8 in blocks of 32 (see [`crate::matmul`]); integer kernels. What the CPU has by default.
    #[default]
    Int8,
    /// Rounded to bfloat16, and so are unpacked weights; tensor cores. What CUDA devices have by default, and they alone.
    Bf16,
    /// Kept in f32: exact, slower.
    F32,
}

/// What a card can do at most, a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes read and written by a copy of its own memory, both counted.
    pub copy: f64,
    /// Products of bfloat16 by tensor cores (`mma.sync` or `wgmma`), each with its addition; `None` without such.
    pub bf16: Option<f64>,
    /// Products of bytes (`mma.sync`).
    pub int8: Option<f64>,
    /// Products of f32 by the ordinary units.
    pub f32: f64,
}

/// A device: where tensors live and operations run. Clones are the same device.
///
/// Operations on one device run one at a time, in the order in which they are called, whichever thread calls.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Box<dyn Backend>,
    /// Held while an operation runs: the device's stream.
    stream: Mutex<()>,
    profile: Profile,
    /// Scratch memory given back, by size, to be taken again.
    free: Mutex<HashMap<usize, Vec<Memory>>>,
    recorded: Mutex<Recorded>,
    allocated: AtomicUsize,
    peak: AtomicUsize,
}

impl Device {
    pub(crate) fn from_backend(backend: Box<dyn Backend>) -> Self {
        let inner = Inner {
            backend,
            stream: Mutex::new(()),
            profile: Profile::default(),
            free: Mutex::new(HashMap::new()),
            recorded: Mutex::default(),
            allocated: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        };
        let inner = Arc::new(inner);
        let own: Weak<Inner> = Arc::downgrade(&inner);
        inner.backend.attach(own);
        Self { inner }
    }

    /// The reference device: scalar code, f64 accumulation, its memory reachable by copying only.
    ///
    /// With [`Activations::F32`] it is the specification of every operation; with [`Activations::Int8`] its
    /// twin, which rounds activations exactly as the fast kernels do.
    pub fn reference(activations: Activations) -> Self {
        Self::from_backend(Box::new(ReferenceDevice::new(activations)))
    }

    /// The CPU: SIMD kernels chosen for this machine at run time.
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) when an option cannot be honoured here.
    pub fn cpu(options: CpuOptions) -> Result<Self> {
        Ok(Self::from_backend(Box::new(CpuDevice::new(options)?)))
    }

    /// The CPU with some kernel families in their plainest threaded form, to see what each contributes.
    ///
    /// # Errors
    /// As for [`cpu`](Self::cpu).
    pub fn cpu_without(options: CpuOptions, without: &[Without]) -> Result<Self> {
        if without.is_empty() {
            return Self::cpu(options);
        }
        Ok(Self::from_backend(Box::new(PlainDevice::new(options, without)?)))
    }

    /// The NVIDIA card with this number, as `CUDA_VISIBLE_DEVICES` and the driver count them.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) without a driver, a card or the library that compiles kernels.
    pub fn cuda(ordinal: usize, options: CudaOptions) -> Result<Self> {
        Ok(Self::from_backend(Box::new(CudaDevice::new(ordinal, options)?)))
    }

    /// Bytes of the device's own memory that are free; `None` for devices that compute in the host's memory.
    pub fn free_bytes(&self) -> Option<usize> {
        self.inner.backend.free_bytes()
    }

    /// What happened to the device, if nothing can be computed on it any more by this process: a card that is gone, or
    /// on which a kernel crashed. Every later operation fails.
    pub fn lost(&self) -> Option<&str> {
        self.inner.backend.lost()
    }

    /// A name for people.
    pub fn name(&self) -> &str {
        self.inner.backend.name()
    }

    /// How activations enter products with packed weights.
    pub fn activations(&self) -> Activations {
        self.inner.backend.activations()
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.inner.backend.threads()
    }

    /// Which kernel multiplies with weights of this type.
    pub fn matmul_kernel(&self, block_type: BlockType) -> MatmulKernel {
        self.inner.backend.matmul_kernel(block_type)
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.inner.backend
    }

    /// Whether both handles are the same device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A panic in one operation must not take the device away from everybody else.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
