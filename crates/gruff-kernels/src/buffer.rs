//! Memory of a device: allocated, recycled or borrowed from a foreign owner.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::cpu::memory::CpuMemory;
use crate::cuda::CudaMemory;
use crate::{Device, Error, Result};

/// Bytes that somebody else owns and that stay valid and unchanged while this handle lives: a memory map,
/// a foreign library's tensor.
pub type ForeignBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A piece of one device's memory. Cloning shares it; the last clone gives it back.
#[derive(Clone)]
pub(crate) struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    /// `None` only while dropping.
    memory: Option<Memory>,
    bytes: usize,
    reuse: Reuse,
}

/// What becomes of memory when its last handle drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// It goes back to the device.
    Owned,
    /// It is kept for later intermediate results.
    Scratch,
    /// It lies in memory that recordings use in turn ([`crate::Recordings`]).
    Recorded,
    /// As before; it was the result of one, and others may run now.
    Leased,
    /// There is none: operations are rehearsed ([`Device::prepare`]).
    Rehearsed,
}

/// Where the bytes are. A device adds a variant here.
pub(crate) enum Memory {
    /// Host memory that kernels address directly.
    Cpu(CpuMemory),
    /// Memory of the reference device: reached by copying only, as on a GPU.
    Reference(Mutex<Vec<u8>>),
    /// Memory of a CUDA card.
    Cuda(CudaMemory),
}

impl Memory {
    /// Its address on a device of its own.
    pub(crate) fn address(&self) -> Option<u64> {
        match self {
            Memory::Cuda(memory) => Some(memory.pointer()),
            Memory::Cpu(_) | Memory::Reference(_) => None,
        }
    }
}

impl Buffer {
    pub(crate) fn new(device: &Device, memory: Memory, bytes: usize, reuse: Reuse) -> Self {
        Self { inner: Arc::new(Inner { device: device.clone(), memory: Some(memory), bytes, reuse }) }
    }

    /// Whether it is memory of a recording.
    pub(crate) fn is_recorded(&self) -> bool {
        self.inner.reuse == Reuse::Recorded
    }

    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn bytes(&self) -> usize {
        self.inner.bytes
    }

    pub(crate) fn same_memory(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn memory(&self) -> &Memory {
        match &self.inner.memory {
            Some(memory) => memory,
            None => unreachable!("memory is taken out only while the last handle drops"),
        }
    }

    /// The host memory behind the buffer, on devices that compute in host memory.
    pub(crate) fn cpu(&self) -> &CpuMemory {
        match self.memory() {
            Memory::Cpu(memory) => memory,
            Memory::Reference(_) | Memory::Cuda(_) => {
                unreachable!("operands were checked to live on the CPU device")
            }
        }
    }

    /// The card's memory behind the buffer, on CUDA devices.
    pub(crate) fn cuda(&self) -> &CudaMemory {
        match self.memory() {
            Memory::Cuda(memory) => memory,
            Memory::Cpu(_) | Memory::Reference(_) => {
                unreachable!("operands were checked to live on the CUDA device")
            }
        }
    }

    /// Whether kernels may write here (foreign bytes are read-only).
    pub(crate) fn writable(&self) -> bool {
        match self.memory() {
            Memory::Cpu(memory) => memory.writable(),
            Memory::Reference(_) | Memory::Cuda(_) => true,
        }
    }

    /// Copies bytes in, at `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check("upload", offset, bytes.len())?;
        match self.memory() {
            Memory::Cpu(memory) => {
                if !memory.writable() {
                    return Err(Error::Alias {
                        op: "upload",
                        operand: "the destination",
                        fault: "is read-only memory",
                    });
                }
                memory.write(offset, bytes);
            }
            Memory::Reference(memory) => {
                let mut memory = memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                memory[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Memory::Cuda(memory) => memory.write(offset, bytes)?,
        }
        Ok(())
    }

    /// Copies bytes out, from `offset`.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check("download", offset, bytes.len())?;
        match self.memory() {
            Memory::Cpu(memory) => memory.read(offset, bytes),
            Memory::Reference(memory) => {
                let memory = memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                bytes.copy_from_slice(&memory[offset..offset + bytes.len()]);
            }
            Memory::Cuda(memory) => memory.read(offset, bytes)?,
        }
        Ok(())
    }

    fn check(&self, op: &'static str, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::Shape {
                op,
                what: format!("bytes {offset}..+{len} are outside a buffer of {} bytes", self.bytes()),
            }),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.device.release(memory, self.bytes, self.reuse);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {}", self.bytes(), self.device().name())
    }
}
