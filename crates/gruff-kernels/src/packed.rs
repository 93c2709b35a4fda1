//! Packed tensors: matrices in ggml blocks, read as they lie.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use gruff_blocks::BlockType;

use crate::buffer::{Buffer, ForeignBytes};
use crate::cuda::strips::{STRIP, Strips};
use crate::{Device, Error, Result, Tensor};

/// Rows that lie together on some devices: a view of rows that begins at a multiple of so many is one everywhere, any other a copy
/// there.
pub const ROWS_TOGETHER: usize = STRIP;

/// One matrix, or a stack of equally shaped matrices (experts), in ggml blocks.
///
/// Shape is `[matrices, rows, cols]`: a product with it turns `cols` inputs into `rows` outputs, and a row is
/// `cols / block` consecutive blocks (GGUF's order, never permuted). A CUDA card lays the bits out anew (`cuda/strips`); its values are
/// the same. Handles are cheap to clone.
#[derive(Clone)]
pub struct PackedTensor {
    buffer: Buffer,
    /// Bytes from the start of the buffer to the first row.
    offset: usize,
    block_type: BlockType,
    matrices: usize,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    /// How it lies, if not row by row.
    strips: Option<Strips>,
    /// Bytes from one matrix of the stack to the next.
    matrix_bytes: usize,
    scale: Option<Arc<[f32]>>,
}

impl PackedTensor {
    /// Packed bytes inside memory that `owner` keeps (a memory map): borrowed where the device can address
    /// it, else copied.
    ///
    /// # Errors
    /// [`Error::Shape`] when `[matrices, rows, cols]` at `offset` (bytes) is outside the memory,
    /// [`Error::Blocks`] when a row is not whole blocks, [`Error::OutOfMemory`].
    pub fn from_foreign(
        device: &Device,
        owner: ForeignBytes,
        offset: usize,
        block_type: BlockType,
        shape: [usize; 3],
    ) -> Result<Self> {
        let all = (*owner).as_ref().len();
        let bytes = bytes_of(all, offset, block_type, shape)?;
        let [matrices, rows, cols] = shape;
        let (buffer, offset, strips) = match Strips::of(block_type, cols)?.filter(|_| device.lays_out()) {
            Some(strips) => {
                let packed = &(*owner).as_ref()[offset..offset + bytes];
                (device.import_strips(packed, &strips, matrices, rows)?, 0, Some(strips))
            }
            None => (device.import(owner)?, offset, None),
        };
        Self::in_buffer(buffer, offset, block_type, shape, strips)
    }

    /// Copies packed bytes to the device.
    ///
    /// # Errors
    /// As for [`from_foreign`](Self::from_foreign).
    pub fn from_bytes(
        device: &Device,
        bytes: &[u8],
        block_type: BlockType,
        shape: [usize; 3],
    ) -> Result<Self> {
        let owner: Vec<u8> = bytes.to_vec();
        Self::from_foreign(device, Arc::new(owner), 0, block_type, shape)
    }

    /// The values of a contiguous f32 tensor `[rows, cols]`, where they are.
    pub(crate) fn of_floats(tensor: &Tensor) -> Result<Self> {
        let shape = [1, tensor.shape()[0], tensor.shape()[1]];
        Self::in_buffer(tensor.buffer().clone(), tensor.offset(), BlockType::F32, shape, None)
    }

    fn in_buffer(
        buffer: Buffer,
        offset: usize,
        block_type: BlockType,
        [matrices, rows, cols]: [usize; 3],
        strips: Option<Strips>,
    ) -> Result<Self> {
        let row_bytes = block_type.row_bytes(cols)?;
        let matrix_bytes = match &strips {
            Some(strips) => strips.matrix_bytes(rows).unwrap_or(0),
            None => {
                bytes_of(buffer.bytes(), offset, block_type, [matrices, rows, cols])?;
                rows * row_bytes
            }
        };
        Ok(Self {
            buffer,
            offset,
            block_type,
            matrices,
            rows,
            cols,
            row_bytes,
            strips,
            matrix_bytes,
            scale: None,
        })
    }

    /// Adds the per-tensor scale that some files carry beside a matrix (NVFP4): products are multiplied by
    /// it. One value, or one a matrix of the stack.
    ///
    /// # Errors
    /// [`Error::Shape`] for any other number of values.
    pub fn with_scale(mut self, scale: &[f32]) -> Result<Self> {
        if scale.len() != 1 && scale.len() != self.matrices {
            return Err(Error::Shape {
                op: "scale",
                what: format!("{} scales for {} matrices", scale.len(), self.matrices),
            });
        }
        self.scale = Some(scale.into());
        Ok(self)
    }

    /// The rows `start..start + len` of every matrix: one half of a fused `gate|up`. Without copying, but on cards where `start` is
    /// no multiple of [`ROWS_TOGETHER`].
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such range.
    pub fn narrow_rows(&self, start: usize, len: usize) -> Result<Self> {
        if start.checked_add(len).is_none_or(|end| end > self.rows) {
            return Err(Error::Shape {
                op: "narrow_rows",
                what: format!("{} rows have no range {start}..+{len}", self.rows),
            });
        }
        if self.strips.is_some() && !start.is_multiple_of(STRIP) {
            return self.rows_anew(start, len);
        }
        let mut view = self.clone();
        view.offset = self.row_offset(0, start);
        view.rows = len;
        Ok(view)
    }

    /// The rows in memory of their own, where they do not begin with a strip.
    fn rows_anew(&self, start: usize, len: usize) -> Result<Self> {
        let mut packed = Vec::with_capacity(self.matrices * len * self.row_bytes);
        let end = start + len;
        for matrix in 0..self.matrices {
            for first in (start / STRIP * STRIP..end).step_by(STRIP) {
                let rows = first.max(start)..(first + STRIP).min(end);
                packed.extend(
                    self.device().clone().exclusive(self.row_bytes, || self.packed_rows(matrix, rows))?,
                );
            }
        }
        let anew =
            Self::from_bytes(self.device(), &packed, self.block_type, [self.matrices, len, self.cols])?;
        Ok(Self { scale: self.scale.clone(), ..anew })
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// How the values are stored.
    pub fn block_type(&self) -> BlockType {
        self.block_type
    }

    /// Matrices in the stack; 1 for an ordinary weight.
    pub fn matrices(&self) -> usize {
        self.matrices
    }

    /// Rows of a matrix: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a matrix: inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of the packed values, as in a file.
    pub fn packed_bytes(&self) -> usize {
        self.matrices * self.rows * self.row_bytes
    }

    /// Bytes of a row, as in a file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The scale of one matrix of the stack, 1 where the file has none.
    pub fn scale(&self, matrix: usize) -> f32 {
        match self.scale.as_deref() {
            None => 1.0,
            Some([one]) => *one,
            Some(scales) => scales[matrix],
        }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Bytes from the start of the buffer to a row; of strips, to the one that the row is in.
    pub(crate) fn row_offset(&self, matrix: usize, row: usize) -> usize {
        let row = match &self.strips {
            Some(strips) => row / STRIP * strips.strip_bytes(),
            None => row * self.row_bytes,
        };
        self.offset + matrix * self.matrix_bytes + row
    }

    /// How it lies, if not row by row.
    pub(crate) fn strips(&self) -> Option<&Strips> {
        self.strips.as_ref()
    }

    /// The bytes of rows, as in a file; of strips, rows of one.
    fn packed_rows(&self, matrix: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        let offset = self.row_offset(matrix, rows.start);
        match &self.strips {
            Some(strips) => {
                let mut strip = vec![0; strips.strip_bytes()];
                self.buffer.read(offset, &mut strip)?;
                Ok(rows.flat_map(|row| strips.row_of(&strip, row % STRIP)).collect())
            }
            None => {
                let mut packed = vec![0; rows.len() * self.row_bytes];
                self.buffer.read(offset, &mut packed)?;
                Ok(packed)
            }
        }
    }

    /// Unpacks one row, scale applied. Copies through the host; for tools and tests.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such row or `out` is not `cols` long.
    pub fn unpack_row(&self, matrix: usize, row: usize, out: &mut [f32]) -> Result<()> {
        self.device().clone().exclusive(self.row_bytes, || self.unpack_row_unlocked(matrix, row, out))
    }

    /// As [`unpack_row`](Self::unpack_row), for callers that hold the device's stream.
    pub(crate) fn unpack_row_unlocked(&self, matrix: usize, row: usize, out: &mut [f32]) -> Result<()> {
        if matrix >= self.matrices || row >= self.rows || out.len() != self.cols {
            return Err(Error::Shape {
                op: "unpack_row",
                what: format!(
                    "row {row} of matrix {matrix} into {} values, of [{}, {}, {}]",
                    out.len(),
                    self.matrices,
                    self.rows,
                    self.cols
                ),
            });
        }
        self.block_type.unpack(&self.packed_rows(matrix, row..row + 1)?, out)?;
        let scale = self.scale(matrix);
        if scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= scale);
        }
        Ok(())
    }
}

/// Bytes of a stack in a file, which `all` bytes have from `offset` on.
fn bytes_of(
    all: usize,
    offset: usize,
    block_type: BlockType,
    [matrices, rows, cols]: [usize; 3],
) -> Result<usize> {
    let row_bytes = block_type.row_bytes(cols)?;
    let bytes = rows.checked_mul(row_bytes).and_then(|matrix| matrix.checked_mul(matrices));
    match bytes.filter(|bytes| bytes.checked_add(offset).is_some_and(|end| end <= all)) {
        Some(bytes) => Ok(bytes),
        None => Err(Error::Shape {
            op: "packed tensor",
            what: format!("[{matrices}, {rows}, {cols}] of {block_type} does not fit into {all} bytes"),
        }),
    }
}

impl fmt::Debug for PackedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedTensor([{}, {}, {}] {})", self.matrices, self.rows, self.cols, self.block_type)
    }
}
