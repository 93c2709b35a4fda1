//! The bytes of a header.

use gruff_blocks::BlockType;

use crate::header::MAGIC;
use crate::metadata::Metadata;
use crate::value::{Array, Endian, Number, Value};

/// One entry of the tensor table.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [u64],
    pub(crate) type_id: u32,
    /// Where the data begin in the data section.
    pub(crate) offset: u64,
}

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) block_type: BlockType,
    /// Bytes of data.
    pub(crate) bytes: u64,
}

/// Entries for tensors whose data follow each other in this order, each on a multiple of `alignment`.
pub(crate) fn in_order(tensors: &[NewTensor], alignment: u64) -> Vec<Entry<'_>> {
    let mut next = 0_u64;
    let entries = tensors.iter().map(|tensor| {
        let offset = next;
        // An offset that cannot be expressed is refused when the header is checked.
        next = offset.saturating_add(tensor.bytes).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        Entry { name: &tensor.name, shape: &tensor.shape, type_id: tensor.block_type.id(), offset }
    });
    entries.collect()
}

/// The header of a file with these pairs and tensors. Lengths are 64 bits wide, as in versions 2 and 3.
pub(crate) fn header(version: u32, endian: Endian, metadata: &Metadata, tensors: &[Entry]) -> Vec<u8> {
    let mut out = Encoder { bytes: MAGIC.to_vec(), endian };
    out.number(version);
    out.size(tensors.len());
    out.size(metadata.len());
    for (key, value) in metadata.iter() {
        out.string(key.as_bytes());
        out.number(value.value_type() as u32);
        out.value(value);
    }
    for tensor in tensors {
        out.string(tensor.name.as_bytes());
        out.number(tensor.shape.len() as u32);
        tensor.shape.iter().for_each(|&size| out.number(size));
        out.number(tensor.type_id);
        out.number(tensor.offset);
    }
    out.bytes
}

struct Encoder {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Encoder {
    fn number(&mut self, number: impl Number) {
        number.write(self.endian, &mut self.bytes);
    }

    fn numbers<T: Number>(&mut self, numbers: &[T]) {
        self.size(numbers.len());
        numbers.iter().for_each(|&number| self.number(number));
    }

    fn size(&mut self, size: usize) {
        self.number(size as u64);
    }

    fn string(&mut self, text: &[u8]) {
        self.size(text.len());
        self.bytes.extend_from_slice(text);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::U8(v) => self.number(*v),
            Value::I8(v) => self.number(*v),
            Value::U16(v) => self.number(*v),
            Value::I16(v) => self.number(*v),
            Value::U32(v) => self.number(*v),
            Value::I32(v) => self.number(*v),
            Value::U64(v) => self.number(*v),
            Value::I64(v) => self.number(*v),
            Value::F32(v) => self.number(*v),
            Value::F64(v) => self.number(*v),
            Value::Bool(v) => self.number(u8::from(*v)),
            Value::String(v) => self.string(v),
            Value::Array(v) => self.array(v),
        }
    }

    fn array(&mut self, array: &Array) {
        self.number(array.element_type() as u32);
        match array {
            Array::U8(v) => self.numbers(v),
            Array::I8(v) => self.numbers(v),
            Array::U16(v) => self.numbers(v),
            Array::I16(v) => self.numbers(v),
            Array::U32(v) => self.numbers(v),
            Array::I32(v) => self.numbers(v),
            Array::U64(v) => self.numbers(v),
            Array::I64(v) => self.numbers(v),
            Array::F32(v) => self.numbers(v),
            Array::F64(v) => self.numbers(v),
            Array::Bool(v) => {
                self.size(v.len());
                v.iter().for_each(|&v| self.number(u8::from(v)));
            }
            Array::String(v) => {
                self.size(v.len());
                v.iter().for_each(|text| self.string(text));
            }
            Array::Array(v) => {
                self.size(v.len());
                v.iter().for_each(|array| self.array(array));
            }
        }
    }
}
