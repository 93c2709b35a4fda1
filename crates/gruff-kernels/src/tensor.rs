//! Dense tensors: handles {buffer, byte offset, shape, dtype} into a device's memory.

use std::fmt;

use half::f16;

use crate::buffer::Buffer;
use crate::check::Check;
use crate::{Device, Error, Result};

/// The number type of a dense tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// Signed 32-bit integers (token and expert ids).
    I32,
    /// Bytes of packed blocks.
    U8,
}

impl DType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 => 2,
            DType::U8 => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U8 => "u8",
        })
    }
}

/// The most dimensions a tensor has.
pub const MAX_RANK: usize = 4;

/// A dense tensor of up to four dimensions, outermost first (row-major, as in PyTorch).
///
/// A tensor is a handle: clones and views share memory, and operations write into the memory of the handles
/// they are given. The innermost dimension is contiguous; outer ones may be strided, so that a column range
/// of a fused projection, or every second head, is a view and costs nothing.
#[derive(Clone)]
pub struct Tensor {
    buffer: Buffer,
    /// Bytes from the start of the buffer.
    offset: usize,
    dtype: DType,
    rank: usize,
    shape: [usize; MAX_RANK],
    /// In values, not bytes.
    strides: [usize; MAX_RANK],
}

impl Tensor {
    pub(crate) fn contiguous_in(
        buffer: Buffer,
        offset: usize,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Self> {
        let values = count("tensor", shape)?;
        let bytes = values.checked_mul(dtype.bytes()).and_then(|b| b.checked_add(offset));
        if bytes.is_none_or(|end| end > buffer.bytes()) {
            return Err(Error::Shape {
                op: "tensor",
                what: format!("{shape:?} of {dtype} does not fit into {} bytes", buffer.bytes()),
            });
        }
        let mut tensor =
            Self { buffer, offset, dtype, rank: shape.len(), shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        tensor.shape[..shape.len()].copy_from_slice(shape);
        let mut stride = 1;
        for axis in (0..shape.len()).rev() {
            tensor.strides[axis] = stride;
            stride *= shape[axis].max(1);
        }
        Ok(tensor)
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// The number type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lengths of the dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// Values from one index of a dimension to the next.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether values lie without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for axis in (0..self.rank).rev() {
            if self.shape[axis] > 1 && self.strides[axis] != expected {
                return false;
            }
            expected *= self.shape[axis].max(1);
        }
        true
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes from the first to behind the last value, gaps included.
    pub(crate) fn span_bytes(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let last: usize = (0..self.rank).map(|axis| (self.shape[axis] - 1) * self.strides[axis]).sum();
        (last + 1) * self.dtype.bytes()
    }

    /// Whether both handles may touch a common byte (exact for tensors without gaps).
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.buffer.same_memory(&other.buffer)
            && self.offset < other.offset + other.span_bytes()
            && other.offset < self.offset + self.span_bytes()
    }

    /// Whether both handles are the very same view.
    pub fn same_view(&self, other: &Tensor) -> bool {
        self.buffer.same_memory(&other.buffer)
            && self.offset == other.offset
            && self.shape() == other.shape()
            && self.strides() == other.strides()
    }

    /// The sub-range `start..start + len` of one dimension.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such dimension or range.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        if axis >= self.rank || start.checked_add(len).is_none_or(|end| end > self.shape[axis]) {
            return Err(Error::Shape {
                op: "narrow",
                what: format!("{:?} has no range {start}..+{len} in dimension {axis}", self.shape()),
            });
        }
        let mut view = self.clone();
        view.shape[axis] = len;
        view.offset += start * self.strides[axis] * self.dtype.bytes();
        Ok(view)
    }

    /// One index of a dimension, which disappears (not the innermost, which stays contiguous).
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such index, or for the innermost dimension.
    pub fn select(&self, axis: usize, index: usize) -> Result<Tensor> {
        if axis + 1 >= self.rank {
            return Err(Error::Shape {
                op: "select",
                what: format!("dimension {axis} of {:?} cannot be dropped", self.shape()),
            });
        }
        let mut view = self.narrow(axis, index, 1)?;
        view.shape.copy_within(axis + 1.., axis);
        view.strides.copy_within(axis + 1.., axis);
        view.rank -= 1;
        Ok(view)
    }

    /// Splits the innermost dimension `n` into `[parts, n / parts]`: heads out of a row, without copying.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not divide or four dimensions are there already.
    pub fn split_last(&self, parts: usize) -> Result<Tensor> {
        let last = self.rank.wrapping_sub(1);
        if self.rank == 0 || self.rank == MAX_RANK || parts == 0 || !self.shape[last].is_multiple_of(parts) {
            return Err(Error::Shape {
                op: "split_last",
                what: format!("{:?} cannot be split into {parts} equal parts", self.shape()),
            });
        }
        let width = self.shape[last] / parts;
        let mut view = self.clone();
        view.shape[last] = parts;
        view.strides[last] = width;
        view.shape[self.rank] = width;
        view.strides[self.rank] = 1;
        view.rank += 1;
        Ok(view)
    }

    /// The same values in another shape; only for tensors without gaps.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values differs or the tensor is strided.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        if !self.is_contiguous() || count("reshape", shape)? != self.len() {
            return Err(Error::Shape {
                op: "reshape",
                what: format!("{:?} cannot be seen as {shape:?}", self.shape()),
            });
        }
        Self::contiguous_in(self.buffer.clone(), self.offset, self.dtype, shape)
    }

    /// The same values on `device`, in recycled memory ([`Device::scratch`]); this very tensor where it lives there. Copied
    /// through the host's memory unless the devices copy from each other.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and what the devices say.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device().same(device) {
            return Ok(self.clone());
        }
        let copy = device.scratch(self.dtype, self.shape())?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Copies the values of a tensor of the same type and shape, on this device or another. What lies together on a card goes
    /// to a card behind what both were called for, and nobody waits; all else goes through the host's memory.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] where the two differ, [`Error::Alias`] where they overlap; what the devices say.
    pub fn copy_from(&self, from: &Tensor) -> Result<()> {
        let check = Check::new("copy_from", self)?;
        check.alike("the source", from, self.dtype, self.shape())?;
        check.disjoint("the target", self, from)?;
        let direct = match self.is_contiguous() && from.is_contiguous() {
            true => self.device().copy_from_peer(from, self),
            false => None,
        };
        direct.unwrap_or_else(|| self.write_raw(&from.to_raw()?))
    }

    /// Copies the values out, in order. Waits for the device. Half-precision values are widened.
    ///
    /// # Errors
    /// [`Error::DType`] for integer tensors.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        let device = self.device().clone();
        match self.dtype {
            DType::F32 => {
                let mut values = vec![0.0; self.len()];
                device
                    .exclusive(self.span_bytes(), || self.load_into(bytemuck::cast_slice_mut(&mut values)))?;
                Ok(values)
            }
            DType::F16 => {
                let bytes = device.exclusive(self.span_bytes(), || self.load_bytes())?;
                Ok(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect())
            }
            DType::I32 | DType::U8 => Err(Error::DType {
                op: "download",
                operand: "the tensor",
                found: self.dtype,
                expected: DType::F32,
            }),
        }
    }

    /// Copies the values out, in order. Waits for the device.
    ///
    /// # Errors
    /// [`Error::DType`] for other than integer tensors.
    pub fn to_vec_i32(&self) -> Result<Vec<i32>> {
        if self.dtype != DType::I32 {
            return Err(Error::DType {
                op: "download",
                operand: "the tensor",
                found: self.dtype,
                expected: DType::I32,
            });
        }
        Ok(bytemuck::allocation::pod_collect_to_vec(
            &self.device().clone().exclusive(self.span_bytes(), || self.load_bytes())?,
        ))
    }

    /// Copies the bytes of packed blocks out, in order. Waits for the device.
    ///
    /// # Errors
    /// [`Error::DType`] for other than byte tensors.
    pub fn to_vec_u8(&self) -> Result<Vec<u8>> {
        self.expect_u8("download")?;
        self.device().clone().exclusive(self.span_bytes(), || self.load_bytes())
    }

    /// Copies the bytes of packed blocks in, in order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of bytes differs, [`Error::DType`] for other than byte tensors.
    pub fn write_u8(&self, bytes: &[u8]) -> Result<()> {
        self.expect_len(bytes.len())?;
        self.expect_u8("upload")?;
        self.upload(bytes)
    }

    /// Copies the values' bytes out as they lie in memory, in order. Waits for the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn to_raw(&self) -> Result<Vec<u8>> {
        self.device().clone().exclusive(self.span_bytes(), || self.load_bytes())
    }

    /// Copies bytes in that [`to_raw`](Self::to_raw) gave of a tensor of the same type.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of bytes differs.
    pub fn write_raw(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.len() * self.dtype.bytes() {
            return Err(Error::Shape {
                op: "upload",
                what: format!("{} bytes do not fill {:?} of {}", bytes.len(), self.shape(), self.dtype),
            });
        }
        self.upload(bytes)
    }

    fn expect_u8(&self, op: &'static str) -> Result<()> {
        if self.dtype == DType::U8 {
            return Ok(());
        }
        Err(Error::DType { op, operand: "the tensor", found: self.dtype, expected: DType::U8 })
    }

    /// Copies values in, in order. Rounds to half precision where the tensor is.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values differs, [`Error::DType`] for integer tensors.
    pub fn write_f32(&self, values: &[f32]) -> Result<()> {
        self.expect_len(values.len())?;
        match self.dtype {
            DType::F32 => self.upload(bytemuck::cast_slice(values)),
            DType::F16 => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
                self.upload(&bytes)
            }
            DType::I32 | DType::U8 => Err(Error::DType {
                op: "upload",
                operand: "the tensor",
                found: self.dtype,
                expected: DType::F32,
            }),
        }
    }

    /// Copies integers in, in order.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of values differs, [`Error::DType`] for other than integer tensors.
    pub fn write_i32(&self, values: &[i32]) -> Result<()> {
        self.expect_len(values.len())?;
        if self.dtype != DType::I32 {
            return Err(Error::DType {
                op: "upload",
                operand: "the tensor",
                found: self.dtype,
                expected: DType::I32,
            });
        }
        self.upload(bytemuck::cast_slice(values))
    }

    fn upload(&self, bytes: &[u8]) -> Result<()> {
        self.device().clone().exclusive(bytes.len(), || self.store_bytes(bytes))
    }

    fn expect_len(&self, len: usize) -> Result<()> {
        if len == self.len() {
            return Ok(());
        }
        Err(Error::Shape { op: "upload", what: format!("{len} values do not fill {:?}", self.shape()) })
    }

    /// The values' bytes in order, for callers that hold the device's stream.
    pub(crate) fn load_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len() * self.dtype.bytes()];
        self.load_into(&mut bytes)?;
        Ok(bytes)
    }

    fn load_into(&self, bytes: &mut [u8]) -> Result<()> {
        self.for_each_run(|offset, range| self.buffer.read(offset, &mut bytes[range]))
    }

    /// Writes the values' bytes in order, for callers that hold the device's stream.
    pub(crate) fn store_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.for_each_run(|offset, range| self.buffer.write(offset, &bytes[range]))
    }

    /// Calls `run` with (byte offset in the buffer, byte range in the packed order) for every contiguous run.
    fn for_each_run(&self, mut run: impl FnMut(usize, std::ops::Range<usize>) -> Result<()>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let size = self.dtype.bytes();
        if self.is_contiguous() {
            return run(self.offset, 0..self.len() * size);
        }
        let inner = self.shape[self.rank - 1];
        let outer = self.len() / inner;
        for row in 0..outer {
            let mut rest = row;
            let mut at = 0;
            for axis in (0..self.rank - 1).rev() {
                at += rest % self.shape[axis] * self.strides[axis];
                rest /= self.shape[axis];
            }
            run(self.offset + at * size, row * inner * size..(row + 1) * inner * size)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {}, {})", self.shape(), self.dtype, self.device().name())
    }
}

/// Product of dimensions, checked.
fn count(op: &'static str, shape: &[usize]) -> Result<usize> {
    let product = shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n));
    match product {
        Some(values) if (1..=MAX_RANK).contains(&shape.len()) => Ok(values),
        _ => Err(Error::Shape { op, what: format!("{shape:?} is not a shape of one to four dimensions") }),
    }
}
