//! Devices: where tensors live and operations run.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gruff_blocks::BlockType;

use crate::attention::AttentionOps;
use crate::buffer::{Buffer, ForeignBytes, Memory, Reuse};
use crate::cpu::{CpuDevice, CpuOptions};
use crate::cuda::strips::Strips;
use crate::cuda::{CudaDevice, CudaOptions};
use crate::delta_net::DeltaNetOps;
use crate::elementwise::ElementwiseOps;
use crate::embedding::EmbeddingOps;
use crate::later::Coming;
use crate::matmul::{MatmulKernel, MatmulOps};
use crate::moe::MoeOps;
use crate::norm::NormOps;
use crate::plain::PlainDevice;
use crate::profile::{Clock, Family, OpProfile, Profile, Work};
use crate::reference::ReferenceDevice;
use crate::replay::{MOST_SEQUENCES, Recording};
use crate::rope::RopeOps;
use crate::sampling::SamplingOps;
use crate::{DType, Error, Result, Step, Tensor, Without};

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

    /// Copies a tensor of another device without waiting for either, behind what was called on both; `None` where they
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

    /// Records what `pass` launches for a step instead of running it.
    fn record(&self, _step: &Step, _pass: &mut dyn FnMut()) -> Result<Box<dyn Recording>> {
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

/// Memory that only recordings use, one of them at a time, so that it is as large as the largest of them needs: each lays
/// its intermediate results out from the beginning. Their kernels know its addresses: it is given back, or made larger, only
/// together with all of them.
#[derive(Default)]
struct Recorded {
    whole: Option<Memory>,
    bytes: usize,
    /// Of the recording that is being made: how far it reaches, and what is free again below that, by size.
    end: usize,
    free: HashMap<usize, Vec<usize>>,
    /// Pieces that are in use.
    in_use: usize,
    leased: bool,
    /// Counts how often it was given back: recordings from before are void.
    generation: u64,
}

impl Recorded {
    /// Where its memory begins; where nothing ever is, as long as there is none.
    fn base(&self) -> u64 {
        const NOWHERE: u64 = 1 << 20;
        self.whole.as_ref().and_then(Memory::address).unwrap_or(NOWHERE)
    }

    /// Where a piece lies in the recording that is being made.
    fn lay_out(&mut self, bytes: usize) -> usize {
        self.in_use += 1;
        self.free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
            let offset = self.end;
            self.end += bytes.next_multiple_of(BORDER);
            offset
        })
    }
}

/// The right to record or replay. Handed on to the result, it ends when that is dropped.
pub(crate) struct Lease<'a>(&'a Device);

impl Lease<'_> {
    /// The piece of memory with this address.
    pub(crate) fn take(self, bytes: usize, address: u64) -> Option<Buffer> {
        let mut recorded = lock(&self.0.inner.recorded);
        let begin = recorded.whole.as_ref()?.address()?;
        let offset = usize::try_from(address.checked_sub(begin)?).ok()?;
        if offset.checked_add(bytes)? > recorded.bytes {
            return None;
        }
        let memory = self.0.inner.backend.part(address, bytes)?;
        recorded.in_use += 1;
        drop(recorded);
        let buffer = Buffer::new(self.0, memory, bytes, Reuse::Leased);
        std::mem::forget(self);
        Some(buffer)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        lock(&self.0.inner.recorded).leased = false;
    }
}

/// Bytes at whose multiples tensors that lie together begin, which suits all kernels.
pub(crate) const BORDER: usize = 256;

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
        Self { inner: Arc::new(inner) }
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
    /// [`Error::Option`] when an option cannot be honoured here.
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
    /// [`Error::Cuda`] without a driver, a card or the library that compiles kernels.
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

    /// A zeroed tensor in memory of its own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Shape`].
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let bytes = tensor_bytes(dtype, shape)?;
        let buffer = self.take(bytes, self.owned())?;
        Tensor::contiguous_in(buffer, 0, dtype, shape)
    }

    /// Zeroed tensors that lie together, one behind the other, each at a multiple of [`BORDER`], in memory of their own.
    pub(crate) fn zeros_together<const N: usize>(
        &self,
        dtype: DType,
        shapes: [&[usize]; N],
    ) -> Result<[Tensor; N]> {
        let mut offsets = [0; N];
        let mut bytes = 0_usize;
        for (offset, shape) in offsets.iter_mut().zip(shapes) {
            *offset = bytes;
            let end = tensor_bytes(dtype, shape)?.checked_add(bytes);
            bytes = end.and_then(|end| end.checked_next_multiple_of(BORDER)).ok_or_else(|| Error::Shape {
                op: "tensor",
                what: format!("{shapes:?} of {dtype} are more bytes than can be counted"),
            })?;
        }
        let buffer = self.take(bytes, self.owned())?;
        let mut tensors = Vec::with_capacity(N);
        for (offset, shape) in offsets.into_iter().zip(shapes) {
            tensors.push(Tensor::contiguous_in(buffer.clone(), offset, dtype, shape)?);
        }
        let count = tensors.len();
        tensors.try_into().map_err(|_| Error::Shape { op: "tensor", what: format!("{count} of {N} tensors") })
    }

    /// A tensor for intermediate results: its memory is recycled when the last handle drops, so that a loop
    /// of equal steps allocates once and then meets the same addresses. **Its content is undefined.**
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Shape`].
    pub fn scratch(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let bytes = tensor_bytes(dtype, shape)?;
        let buffer = self.scratch_buffer(bytes)?;
        Tensor::contiguous_in(buffer, 0, dtype, shape)
    }

    /// A tensor of f32 values copied to the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Shape`] when the values do not fill the shape.
    pub fn tensor_f32(&self, values: &[f32], shape: &[usize]) -> Result<Tensor> {
        let tensor = self.zeros(DType::F32, shape)?;
        tensor.write_f32(values)?;
        Ok(tensor)
    }

    /// A tensor of i32 values copied to the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Shape`] when the values do not fill the shape.
    pub fn tensor_i32(&self, values: &[i32], shape: &[usize]) -> Result<Tensor> {
        let tensor = self.zeros(DType::I32, shape)?;
        tensor.write_i32(values)?;
        Ok(tensor)
    }

    /// A read-only tensor over memory that somebody else owns (a torch tensor, a memory map): `owner` is
    /// dropped when the last handle drops. Borrowed where the device can address it and values are aligned,
    /// else copied.
    ///
    /// # Errors
    /// [`Error::Shape`] when `offset` (bytes) and `shape` do not fit, [`Error::OutOfMemory`].
    pub fn from_foreign(
        &self,
        owner: ForeignBytes,
        offset: usize,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let first = (*owner).as_ref().as_ptr().wrapping_add(offset);
        if first.align_offset(dtype.bytes()) == 0 {
            return Tensor::contiguous_in(self.import(owner)?, offset, dtype, shape);
        }
        // Kernels read whole values: what does not lie on their borders is copied to where it does.
        let bytes = tensor_bytes(dtype, shape)?;
        let values = offset.checked_add(bytes).and_then(|end| (*owner).as_ref().get(offset..end));
        let Some(values) = values else {
            return Err(Error::Shape {
                op: "tensor",
                what: format!(
                    "{shape:?} of {dtype} at {offset} is outside {} bytes",
                    (*owner).as_ref().len()
                ),
            });
        };
        let buffer = self.take(bytes, self.owned())?;
        buffer.write(0, values)?;
        Tensor::contiguous_in(buffer, 0, dtype, shape)
    }

    /// Bytes the device has allocated now, scratch included, foreign memory not.
    pub fn allocated_bytes(&self) -> usize {
        self.inner.allocated.load(Ordering::Relaxed)
    }

    /// The most bytes it ever had allocated.
    pub fn peak_bytes(&self) -> usize {
        self.inner.peak.load(Ordering::Relaxed)
    }

    /// What becomes of memory that is no intermediate result.
    fn owned(&self) -> Reuse {
        match self.inner.backend.scratch_reuse() {
            Reuse::Rehearsed => Reuse::Rehearsed,
            _ => Reuse::Owned,
        }
    }

    pub(crate) fn scratch_buffer(&self, bytes: usize) -> Result<Buffer> {
        let bytes = scratch_class(bytes);
        let reuse = self.inner.backend.scratch_reuse();
        let recycled = match reuse {
            Reuse::Rehearsed => None,
            Reuse::Recorded => {
                let mut recorded = lock(&self.inner.recorded);
                let offset = recorded.lay_out(bytes);
                let part = self.inner.backend.part(recorded.base() + offset as u64, bytes);
                let memory = part.ok_or_else(|| {
                    recorded.in_use -= 1;
                    self.out_of_memory(bytes)
                })?;
                return Ok(Buffer::new(self, memory, bytes, reuse));
            }
            _ => lock(&self.inner.free).get_mut(&bytes).and_then(Vec::pop),
        };
        match recycled {
            Some(memory) => Ok(Buffer::new(self, memory, bytes, reuse)),
            None => self.take(bytes, reuse),
        }
    }

    pub(crate) fn import(&self, bytes: ForeignBytes) -> Result<Buffer> {
        let len = (*bytes).as_ref().len();
        let memory = self.inner.backend.import(bytes).ok_or_else(|| self.out_of_memory(len))?;
        if !borrowed(&memory) {
            self.count(len);
        }
        Ok(Buffer::new(self, memory, len, Reuse::Owned))
    }

    /// Bytes of memory that a stack of packed matrices `[matrices, rows, cols]` takes on the device: those of a file, or of the
    /// layout that the device has for them.
    ///
    /// # Errors
    /// [`Error::Blocks`] when a row is not whole blocks, [`Error::OutOfMemory`] when no memory has so many bytes.
    pub fn packed_bytes(&self, block_type: BlockType, [matrices, rows, cols]: [usize; 3]) -> Result<usize> {
        let matrix = match Strips::of(block_type, cols)?.filter(|_| self.lays_out()) {
            Some(strips) => strips.matrix_bytes(rows),
            None => rows.checked_mul(block_type.row_bytes(cols)?),
        };
        let bytes = matrix.and_then(|matrix| matrix.checked_mul(matrices));
        let all = bytes.and_then(|bytes| bytes.checked_add(self.inner.backend.bytes_behind()));
        all.ok_or_else(|| self.out_of_memory(usize::MAX))
    }

    /// Bytes of memory that a tensor of so many bytes takes on the device.
    pub fn dense_bytes(&self, bytes: usize) -> usize {
        bytes.saturating_add(self.inner.backend.bytes_behind())
    }

    /// Bytes of memory that a product of up to `columns` columns with a packed matrix `[rows, cols]` takes beside its operands,
    /// and that are kept for the next one.
    pub fn product_bytes(&self, block_type: BlockType, shape: [usize; 2], columns: usize) -> usize {
        self.inner.backend.product_bytes(block_type, shape, columns)
    }

    /// Whether packed matrices are laid out in strips.
    pub(crate) fn lays_out(&self) -> bool {
        self.inner.backend.lays_out()
    }

    /// A stack of packed matrices in strips.
    pub(crate) fn import_strips(
        &self,
        packed: &[u8],
        strips: &Strips,
        matrices: usize,
        rows: usize,
    ) -> Result<Buffer> {
        let bytes = strips.matrix_bytes(rows).and_then(|matrix| matrix.checked_mul(matrices));
        let bytes = bytes.ok_or_else(|| self.out_of_memory(usize::MAX))?;
        let memory = self.inner.backend.import_strips(packed, strips, rows, bytes);
        let memory = memory.ok_or_else(|| self.out_of_memory(bytes))?;
        self.count(bytes);
        Ok(Buffer::new(self, memory, bytes, Reuse::Owned))
    }

    pub(crate) fn release(&self, memory: Memory, bytes: usize, reuse: Reuse) {
        match reuse {
            Reuse::Scratch => lock(&self.inner.free).entry(bytes).or_default().push(memory),
            Reuse::Recorded | Reuse::Leased => {
                let mut recorded = lock(&self.inner.recorded);
                recorded.in_use -= 1;
                if reuse == Reuse::Leased {
                    recorded.leased = false;
                } else if let Some(offset) = memory.address().and_then(|at| at.checked_sub(recorded.base())) {
                    recorded.free.entry(bytes).or_default().push(offset as usize);
                }
            }
            Reuse::Rehearsed => {}
            Reuse::Owned => {
                if !borrowed(&memory) {
                    self.inner.allocated.fetch_sub(bytes, Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether steps can be recorded now: while operations are counted, each is launched by itself.
    pub(crate) fn records(&self) -> bool {
        self.inner.backend.records() && !self.inner.profile.is_on()
    }

    /// Of steps of one token a sequence, with up to `most` of them, the largest that is recorded; 0 where none is.
    pub fn recorded_sequences(&self, most: usize) -> usize {
        if self.inner.backend.records() { most.min(MOST_SEQUENCES) } else { 0 }
    }

    /// The right to record or replay; `None` while somebody else has it or holds a recording's result.
    pub(crate) fn lease(&self) -> Option<Lease<'_>> {
        let mut recorded = lock(&self.inner.recorded);
        if recorded.leased || recorded.in_use > 0 {
            return None;
        }
        recorded.leased = true;
        Some(Lease(self))
    }

    /// Which recordings are good, as long as a lease lasts: those that were made in this generation.
    pub(crate) fn recordings_generation(&self) -> u64 {
        lock(&self.inner.recorded).generation
    }

    /// Begins to lay a recording out; for whoever has the lease.
    pub(crate) fn begin_recording(&self) {
        let mut recorded = lock(&self.inner.recorded);
        recorded.end = 0;
        recorded.free.clear();
    }

    /// Whether there was room for the recording that was just laid out; else there is now, and what was recorded before is
    /// void.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn had_room(&self) -> Result<bool> {
        let mut recorded = lock(&self.inner.recorded);
        if recorded.end <= recorded.bytes {
            return Ok(true);
        }
        let bytes = recorded.end;
        self.drop_recordings(&mut recorded);
        let take = || self.inner.backend.allocate_undefined(bytes);
        let whole = take().or_else(|| {
            self.forget_scratch();
            take()
        });
        recorded.whole = Some(whole.ok_or_else(|| self.out_of_memory(bytes))?);
        recorded.bytes = bytes;
        self.count(bytes);
        Ok(false)
    }

    /// Pieces of recordings' memory that are in use.
    pub(crate) fn recorded_in_use(&self) -> usize {
        lock(&self.inner.recorded).in_use
    }

    /// See [`Backend::record`].
    pub(crate) fn record(&self, step: &Step, pass: &mut dyn FnMut()) -> Result<Box<dyn Recording>> {
        self.inner.backend.record(step, pass)
    }

    /// See [`Backend::copy_later`].
    pub(crate) fn copy_later(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<i32>>>> {
        self.inner.backend.copy_later(tensor)
    }

    /// See [`Backend::copy_aside`].
    pub(crate) fn copy_aside(&self, tensor: &Tensor) -> Result<Option<Box<dyn Coming<f32>>>> {
        self.inner.backend.copy_aside(tensor)
    }

    /// Whether it runs behind its callers, so that it pays to read the ids of one step while the next one runs.
    pub fn runs_behind(&self) -> bool {
        self.inner.backend.runs_behind()
    }

    /// Kernels that were loaded so far, on devices that load them when they are needed; else 0.
    pub fn loaded_kernels(&self) -> usize {
        self.inner.backend.loaded_kernels()
    }

    /// Gets the kernels ready that `pass` needs, those that are to be compiled several at a time: its operations are
    /// checked, but none runs and no memory is taken for them; values that it copies out are zeros. Says how many were
    /// compiled. One that cannot be compiled or loaded costs a warning here and is the error of the operation that needs
    /// it. Devices whose kernels are part of the program do nothing.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the device is [`lost`](Self::lost).
    pub fn prepare(&self, mut pass: impl FnMut()) -> Result<usize> {
        self.inner.backend.prepare(&mut pass).unwrap_or(Ok(0))
    }

    /// See [`Backend::copy_from_peer`]; for tensors of this device.
    pub(crate) fn copy_from_peer(&self, from: &Tensor, to: &Tensor) -> Option<Result<()>> {
        self.exclusive(from.span_bytes(), || self.inner.backend.copy_from_peer(from, to))
    }

    /// Counts operations and their time from now on, or no longer; see [`take_profile`](Self::take_profile). Devices that run
    /// behind their callers count by a clock of their own.
    pub fn profile(&self, on: bool) {
        let _stream = lock(&self.inner.stream);
        let clock = self.inner.backend.clock();
        // A card that is lost, or without the kernels for it, has the host's clock: slow, but an account.
        let by_clock = clock.is_some_and(|clock| clock.switch(on).is_ok()) && on;
        self.inner.profile.switch(on, by_clock);
    }

    /// What operations took since [`profile`](Self::profile) was switched on or this was last called, the longest
    /// first.
    pub fn take_profile(&self) -> Vec<OpProfile> {
        let _stream = lock(&self.inner.stream);
        let clock = self.inner.backend.clock().filter(|_| self.inner.profile.is_by_clock());
        // Of a card that is lost there are no times.
        let timed = clock.and_then(|clock| clock.read().ok()).unwrap_or_default();
        self.inner.profile.take(timed)
    }

    /// While operations are counted by a clock of the device's own: what a kernel that does nothing takes by it. Times are
    /// less by that for each kernel.
    pub fn profile_overhead(&self) -> Option<Duration> {
        let clock = self.inner.backend.clock().filter(|_| self.inner.profile.is_by_clock())?;
        Some(clock.empty())
    }

    /// Measures what a card could do at most, in less than a second; `None` for devices that compute in the host's memory
    /// ([`bandwidth`](crate::bandwidth) and [`compute`](crate::compute) measure those).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with less than 64 MiB free, [`Error::Cuda`].
    pub fn ceilings(&self) -> Result<Option<Ceilings>> {
        let _stream = lock(&self.inner.stream);
        self.inner.backend.ceilings().transpose()
    }

    /// Runs one operation: waits for the device's stream, then hands the backend over. `work` is asked for only
    /// while operations are counted.
    pub(crate) fn run<T>(
        &self,
        family: Family,
        op: &'static str,
        work: impl FnOnce() -> Work,
        operation: impl FnOnce(&dyn Backend) -> T,
    ) -> T {
        let _stream = lock(&self.inner.stream);
        self.inner.profile.time(self.inner.backend.clock(), family, op, work, || {
            let result = operation(&*self.inner.backend);
            if self.inner.profile.is_on() && !self.inner.profile.is_by_clock() {
                self.inner.backend.finish();
            }
            result
        })
    }

    /// Keeps operations away while host code copies so many bytes.
    pub(crate) fn exclusive<T>(&self, bytes: usize, copy: impl FnOnce() -> T) -> T {
        let _stream = lock(&self.inner.stream);
        let work = || Work::default().bytes(bytes);
        self.inner.profile.time(self.inner.backend.clock(), Family::Transfer, "copy", work, copy)
    }

    /// Whether operations of this thread are rehearsed: nothing is computed.
    pub(crate) fn is_rehearsing(&self) -> bool {
        self.inner.backend.scratch_reuse() == Reuse::Rehearsed
    }

    /// Runs one operation of several devices, which moves so many bytes on each, while no other runs on any of them.
    #[cfg(feature = "nccl")]
    pub(crate) fn together(
        devices: &[Device],
        op: &'static str,
        bytes: usize,
        mut operation: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        // In an order of their own, so that nobody has what another one waits for.
        let mut ordered: Vec<&Device> = devices.iter().collect();
        ordered.sort_by_key(|device| Arc::as_ptr(&device.inner) as usize);
        Self::within(&ordered, op, bytes, &mut operation)
    }

    #[cfg(feature = "nccl")]
    fn within(
        devices: &[&Device],
        op: &'static str,
        bytes: usize,
        operation: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some((first, others)) = devices.split_first() else { return operation() };
        let _stream = lock(&first.inner.stream);
        let work = || Work::default().bytes(bytes);
        let rest = || Self::within(others, op, bytes, operation);
        first.inner.profile.time(first.inner.backend.clock(), Family::Transfer, op, work, rest)
    }

    fn take(&self, bytes: usize, reuse: Reuse) -> Result<Buffer> {
        let take = || self.inner.backend.allocate(bytes);
        // While a recording is made nothing can be given back: it may be part of it.
        let memory = take().or_else(|| match self.inner.backend.scratch_reuse() {
            Reuse::Recorded => None,
            _ => {
                // What was given back for steps of other sizes may be in the way.
                self.forget_scratch();
                take().or_else(|| self.forget_recordings().then(take)?)
            }
        });
        let memory = memory.ok_or_else(|| self.out_of_memory(bytes))?;
        if reuse != Reuse::Rehearsed {
            self.count(bytes);
        }
        Ok(Buffer::new(self, memory, bytes, reuse))
    }

    /// Gives back scratch memory that nobody holds.
    fn forget_scratch(&self) {
        let free = std::mem::take(&mut *lock(&self.inner.free));
        for (bytes, memories) in free {
            self.inner.allocated.fetch_sub(bytes * memories.len(), Ordering::Relaxed);
        }
        self.inner.backend.forget_temporaries();
    }

    /// Gives back the memory of all recordings, which are made anew when their steps come again; `false` where there is
    /// none, or one of them or its result is in use.
    fn forget_recordings(&self) -> bool {
        let mut recorded = lock(&self.inner.recorded);
        if recorded.leased || recorded.in_use > 0 || recorded.whole.is_none() {
            return false;
        }
        self.drop_recordings(&mut recorded);
        // Under the lock: nobody begins a recording meanwhile.
        self.inner.backend.forget_recordings();
        true
    }

    fn drop_recordings(&self, recorded: &mut Recorded) {
        recorded.generation += 1;
        recorded.whole = None;
        self.inner.allocated.fetch_sub(std::mem::take(&mut recorded.bytes), Ordering::Relaxed);
    }

    fn count(&self, bytes: usize) {
        let now = self.inner.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.inner.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn out_of_memory(&self, bytes: usize) -> Error {
        Error::OutOfMemory { device: self.name().to_owned(), bytes }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the bytes are somebody else's; a device that cannot address them has copied them.
fn borrowed(memory: &Memory) -> bool {
    matches!(memory, Memory::Cpu(cpu) if !cpu.writable())
}

/// A panic in one operation must not take the device away from everybody else.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn tensor_bytes(dtype: DType, shape: &[usize]) -> Result<usize> {
    shape.iter().try_fold(dtype.bytes(), |bytes, n| bytes.checked_mul(*n)).ok_or_else(|| Error::Shape {
        op: "allocate",
        what: format!("{shape:?} of {dtype} is more than this machine can address"),
    })
}

/// Rounds scratch sizes up to four steps an octave, so that steps of similar size share memory.
fn scratch_class(bytes: usize) -> usize {
    const SMALLEST: usize = 1024;
    if bytes <= SMALLEST {
        return SMALLEST;
    }
    let step = (bytes.next_power_of_two() / 8).max(1);
    bytes.div_ceil(step).checked_mul(step).unwrap_or(bytes)
}
