//! Memory of a device: tensors, intermediate results that are recycled, what somebody else owns.

use std::sync::atomic::Ordering;

use gruff_blocks::BlockType;

use super::{Device, Inner, lock, take_or_make_room};
use crate::buffer::{Buffer, ForeignBytes, Memory, Reuse};
use crate::cuda::strips::Strips;
use crate::{DType, Error, Result, Tensor};

/// Bytes at whose multiples tensors that lie together begin, which suits all kernels.
pub(crate) const BORDER: usize = 256;

impl Device {
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
        let memory = take_or_make_room(&*self.inner, || self.inner.backend.import(bytes.clone()));
        let memory = memory.ok_or_else(|| self.out_of_memory(len))?;
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
        let import = || self.inner.backend.import_strips(packed, strips, rows, bytes);
        let memory = take_or_make_room(&*self.inner, import);
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

    fn take(&self, bytes: usize, reuse: Reuse) -> Result<Buffer> {
        let memory = take_or_make_room(&*self.inner, || self.inner.backend.allocate(bytes));
        let memory = memory.ok_or_else(|| self.out_of_memory(bytes))?;
        if reuse != Reuse::Rehearsed {
            self.count(bytes);
        }
        Ok(Buffer::new(self, memory, bytes, reuse))
    }

    pub(super) fn count(&self, bytes: usize) {
        let now = self.inner.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.inner.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn out_of_memory(&self, bytes: usize) -> Error {
        Error::OutOfMemory { device: self.name().to_owned(), bytes }
    }
}

impl Inner {
    /// Gives back scratch memory that nobody holds, and what operations took beside tensors.
    pub(super) fn forget_free(&self) {
        let free = std::mem::take(&mut *lock(&self.free));
        for (bytes, memories) in free {
            self.allocated.fetch_sub(bytes * memories.len(), Ordering::Relaxed);
        }
        self.backend.forget_temporaries();
    }
}

/// Whether the bytes are somebody else's; a device that cannot address them has copied them.
fn borrowed(memory: &Memory) -> bool {
    matches!(memory, Memory::Cpu(cpu) if !cpu.writable())
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
