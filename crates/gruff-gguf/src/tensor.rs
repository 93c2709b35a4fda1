//! The tensor table of a file.

use std::sync::Arc;

use gruff_blocks::BlockType;

use crate::cursor::Cursor;
use crate::index::{Index, Named};
use crate::{Error, Fault, Limits};

/// The most dimensions a tensor has: ggml's `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u32 = 4;

/// One entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: Box<str>,
    shape: Box<[u64]>,
    type_id: u32,
    offset: u64,
    bytes: Option<u64>,
    part: usize,
    file: Arc<str>,
}

impl Named for TensorInfo {
    fn name(&self) -> &str {
        &self.name
    }
}

impl TensorInfo {
    /// The tensor's name (`blk.0.attn_q.weight`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One to four dimensions in ggml's order: the length of a row (values next to each other) first. None is
    /// zero, and their product fits in `i64`. A scalar without dimensions has the shape `[1]`.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Values in a row: the first dimension.
    pub fn row_len(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Values in all.
    pub fn values(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The type's id as the file has it.
    pub fn type_id(&self) -> u32 {
        self.type_id
    }

    /// How the values are packed.
    ///
    /// # Errors
    /// [`Error::TensorType`] when the id is unknown to this build or retired from the format. Only the tensor
    /// is unusable then, not the file.
    pub fn block_type(&self) -> Result<BlockType, Error> {
        BlockType::from_id(self.type_id).map_err(|source| Error::TensorType {
            file: self.file.clone(),
            tensor: self.name.to_string(),
            source,
        })
    }

    /// Where the data begin in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of packed data; `None` for a type whose size is not known.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Which part of a split model has the data, counted from 0.
    pub fn part(&self) -> usize {
        self.part
    }

    /// The same tensor as one of part `part`.
    pub(crate) fn in_part(mut self, part: usize) -> Self {
        self.part = part;
        self
    }

    /// The file that has the data, for messages.
    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }
}

/// Reads `count` entries of the table; offsets are within the data section until [`check_layout`].
pub(crate) fn read_table(
    cursor: &mut Cursor<'_>,
    count: u64,
    file: &Arc<str>,
    limits: &Limits,
) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors: Vec<TensorInfo> = cursor.room(count);
    for number in 0..count {
        let name = cursor
            .name(limits.tensor_name_bytes, "tensor_name_bytes")
            .map_err(|fault| fault.of(file, format!("tensor {number}")))?;
        let tensor = read_entry(cursor, name, file).map_err(|fault| fault.of(file, subject(name)))?;
        tensors.push(tensor);
    }
    match Index::new(&tensors) {
        Ok(_) => Ok(tensors),
        Err(twice) => Err(duplicate(&tensors[twice])),
    }
}

/// How messages call a tensor.
pub(crate) fn subject(name: &str) -> String {
    format!("tensor {name:?}")
}

/// The error for the second of two tensors of one name.
pub(crate) fn duplicate(tensor: &TensorInfo) -> Error {
    Fault::Duplicate.of(&tensor.file, subject(&tensor.name))
}

/// What follows a tensor's name: shape, type id, offset; and the size these imply.
fn read_entry(cursor: &mut Cursor<'_>, name: &str, file: &Arc<str>) -> Result<TensorInfo, Fault> {
    let dimensions: u32 = cursor.number()?;
    if dimensions > MAX_DIMENSIONS {
        return Err(Fault::Dimensions { found: dimensions });
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.size()?);
    }
    if shape.is_empty() {
        shape.push(1);
    }
    let type_id = cursor.number()?;
    let offset = cursor.number()?;
    let bytes = match BlockType::from_id(type_id) {
        Ok(block_type) => Some(packed_bytes(block_type, &shape)?),
        Err(_) => count_values(&shape).map(|_| None)?,
    };
    Ok(TensorInfo {
        name: name.into(),
        shape: shape.into(),
        type_id,
        offset,
        bytes,
        part: 0,
        file: file.clone(),
    })
}

/// The product of the dimensions, none of which may be zero.
fn count_values(shape: &[u64]) -> Result<u64, Fault> {
    if shape.len() > MAX_DIMENSIONS as usize {
        return Err(Fault::Dimensions { found: u32::try_from(shape.len()).unwrap_or(u32::MAX) });
    }
    if let Some(at) = shape.iter().position(|&size| size == 0) {
        return Err(Fault::ZeroDimension { at });
    }
    shape
        .iter()
        .try_fold(1_u64, |product, &size| product.checked_mul(size))
        .filter(|&values| i64::try_from(values).is_ok())
        .ok_or_else(|| Fault::TooManyValues { shape: shape.to_vec() })
}

/// Bytes of a tensor of this type and shape.
pub(crate) fn packed_bytes(block_type: BlockType, shape: &[u64]) -> Result<u64, Fault> {
    let values = count_values(shape)?;
    let block = block_type.values() as u64;
    let row = shape.first().copied().unwrap_or(1);
    if !row.is_multiple_of(block) {
        return Err(Fault::Row { row, block_type });
    }
    (values / block)
        .checked_mul(block_type.bytes() as u64)
        .ok_or_else(|| Fault::TooManyValues { shape: shape.to_vec() })
}

/// Checks where the data lie and makes offsets count from the file's beginning: aligned, inside the file, no
/// two tensors in the same place. Gaps are allowed. A tensor of unknown size counts as one byte.
pub(crate) fn check_layout(
    tensors: &mut [TensorInfo],
    section: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), Error> {
    for tensor in &mut *tensors {
        let (offset, bytes) = (tensor.offset, tensor.bytes.unwrap_or(1));
        if !offset.is_multiple_of(alignment) {
            return Err(Fault::OffsetAlignment { offset, alignment }.of(&tensor.file, subject(&tensor.name)));
        }
        let begin = section.checked_add(offset);
        match begin.and_then(|begin| begin.checked_add(bytes)) {
            Some(end) if end <= file_bytes => tensor.offset = section + offset,
            _ => {
                let fault = Fault::OutsideFile { section, offset, bytes, file_bytes };
                return Err(fault.of(&tensor.file, subject(&tensor.name)));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if before.offset + before.bytes.unwrap_or(1) > after.offset {
            let fault = Fault::Overlap { other: before.name.to_string() };
            return Err(fault.of(&after.file, subject(&after.name)));
        }
    }
    Ok(())
}
