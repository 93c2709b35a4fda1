//! What a device implements.

use std::sync::Weak;

use super::Spare;
use crate::attention::AttentionOps;
use crate::buffer::{ForeignBytes, Memory, Reuse};
use crate::cuda::CudaDevice;
use crate::cuda::strips::Strips;
use crate::delta_net::DeltaNetOps;
use crate::elementwise::ElementwiseOps;
use crate::embedding::EmbeddingOps;
use crate::later::Coming;
use crate::matmul::MatmulOps;
use crate::moe::MoeOps;
use crate::norm::NormOps;
use crate::profile::Clock;
use crate::reference::ReferenceDevice;
use crate::replay::Recording;
use crate::rope::RopeOps;
use crate::sampling::SamplingOps;
use crate::{Activations, Ceilings, Error, Result, Step, Tensor, Without};

/// Everything a device must be able to do. Each family's contract stands in its own folder; an operation
/// arrives here with its operands checked.
pub(crate) trait Backend:
    MatmulOps
    + NormOps
    + RopeOps
    + AttentionOps
    + DeltaNetOps
    + MoeOps
    + ElementwiseOps
    + EmbeddingOps
    + SamplingOps
    + Send
    + Sync
{
    /// A name for people: `cpu (avx2+fma, 2 threads)`.
    fn name(&self) -> &str;

    /// How activations enter products with packed weights.
    fn activations(&self) -> Activations;

    /// Threads that compute.
    fn threads(&self) -> usize {
        1
    }

    /// Bytes of memory of its own that are free; `None` for devices that compute in the host's memory.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// What happened to the device, if nothing can be computed on it any more.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// Waits until everything that was launched is done, on devices that do not wait by themselves.
    fn finish(&self) {}

    /// Its own clock, on devices that do not wait by themselves.
    fn clock(&self) -> Option<&dyn Clock> {
        None
    }

    /// Measures what it could do at most, on devices with a way to tell.
    fn ceilings(&self) -> Option<Result<Ceilings>> {
        None
    }

    /// Takes zeroed memory, or `None` when there is none.
    fn allocate(&self, bytes: usize) -> Option<Memory>;

    /// Takes memory of undefined content for a recording, or `None` when there is none.
    fn allocate_undefined(&self, bytes: usize) -> Option<Memory> {
        self.allocate(bytes)
    }

    /// So many bytes at an address within the memory of recordings; anywhere for a recording of which only the size is to be
    /// known, and which never runs.
    fn part(&self, _address: u64, _bytes: usize) -> Option<Memory> {
        None
    }

    /// Tells it what may be given back where an operation finds no memory.
    fn attach(&self, _spare: Weak<dyn Spare>) {}

    /// Gives back memory of its own that operations took beside tensors and nobody holds.
    fn forget_temporaries(&self) {}

    /// Gives back what operations of recordings took beside tensors. None of those is replayed any more.
    fn forget_recordings(&self) {}

    /// What becomes of intermediate results that this thread takes now.
    fn scratch_reuse(&self) -> Reuse {
        Reuse::Scratch
    }

    /// Whether it runs behind its callers, so that the ids of one step may be read while the next one runs.
    fn runs_behind(&self) -> bool {
        false
    }

    /// Tokens of prompts that occupy it: on two cores about a second's work for a model of a billion parameters.
    fn tokens_of_a_step(&self) -> usize {
        512
    }

    /// Copies a tensor of this or another device without waiting for either, behind what was called on both; `None` where they
    /// cannot. Both are alike and without gaps.
    fn copy_from_peer(&self, _from: &Tensor, _to: &Tensor) -> Option<Result<()>> {
        None
    }

    /// Itself, if it is a card.
    fn as_cuda(&self) -> Option<&CudaDevice> {
        None
    }

    /// Copies integers out behind what was called; `None` where that is done at once.
    fn copy_later(&self, _tensor: &Tensor) -> Result<Option<Box<dyn Coming<i32>>>> {
        Ok(None)
    }

    /// Has f32 values copied out by a thread behind what was called; `None` where that is done at once.
    fn copy_aside(&self, _tensor: &Tensor) -> Result<Option<Box<dyn Coming<f32>>>> {
        Ok(None)
    }

    /// Whether it can record the launches of a step.
    fn records(&self) -> bool {
        false
    }

    /// Records what `pass` launches for a step, on it and on these other devices that record, instead of running it.
    fn record(
        &self,
        _others: &[&dyn Backend],
        _step: &Step,
        _pass: &mut dyn FnMut(),
    ) -> Result<Box<dyn Recording>> {
        Err(Error::Option { what: "the device records no steps".to_owned() })
    }

    /// Kernels that were loaded so far.
    fn loaded_kernels(&self) -> usize {
        0
    }

    /// Whether these kernels, or what they do at once, are left out on the device: operations then take the plain way
    /// ([`crate::plain::card`]). The CPU has a device of its own for that.
    fn lacks(&self, _what: Without) -> bool {
        false
    }

    /// Runs plain Rust in the place of a kernel, on operands that are copied to the host and back, on devices with
    /// [`lacks`](Self::lacks).
    fn plainly(&self, _compute: &mut dyn FnMut(&ReferenceDevice) -> Result<()>) -> Result<()> {
        Err(Error::Option { what: "the device has no plain way beside its own".to_owned() })
    }

    /// Calls `pass` without running its operations and gets their kernels ready; says how many were compiled, `None`,
    /// and nothing is done, where kernels are part of the program.
    fn prepare(&self, _pass: &mut dyn FnMut()) -> Option<Result<usize>> {
        None
    }

    /// Makes foreign bytes readable for kernels: borrowed where the device can address them, else copied.
    fn import(&self, bytes: ForeignBytes) -> Option<Memory>;

    /// Whether packed matrices are laid out in strips.
    fn lays_out(&self) -> bool {
        false
    }

    /// Bytes that every piece of its memory takes behind those that were asked for.
    fn bytes_behind(&self) -> usize {
        0
    }

    /// Copies packed matrices, each of so many rows, to strips, on devices that lay them out.
    fn import_strips(&self, _packed: &[u8], _strips: &Strips, _rows: usize, _bytes: usize) -> Option<Memory> {
        None
    }
}
