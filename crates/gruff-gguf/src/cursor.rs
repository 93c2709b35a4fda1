//! Reading a header's primitives, each checked against the bytes left.

use crate::value::{Array, Endian, Number, Strings, Value, ValueType};
use crate::{Fault, Limits};

/// A place in a file's header.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether `bytes` stops at the header limit and the file goes on.
    capped: bool,
    endian: Endian,
    /// Whether lengths, counts and dimensions have 64 bits (since version 2) or 32.
    wide: bool,
    limits: &'a Limits,
}

impl<'a> Cursor<'a> {
    /// Begins at offset `at` of `file`.
    pub(crate) fn new(file: &'a [u8], at: usize, endian: Endian, wide: bool, limits: &'a Limits) -> Self {
        let cap = usize::try_from(limits.header_bytes).unwrap_or(usize::MAX);
        let capped = file.len() > cap;
        let bytes = if capped { &file[..cap] } else { file };
        Cursor { bytes, at, capped, endian, wide, limits }
    }

    /// The offset in the file.
    pub(crate) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the header that are left at most.
    pub(crate) fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let left = self.left();
        let taken = usize::try_from(count)
            .ok()
            .and_then(|count| self.at.checked_add(count))
            .and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        match taken {
            Some((end, taken)) => {
                self.at = end;
                Ok(taken)
            }
            None if self.capped => Err(Fault::HeaderTooLong { limit: self.limits.header_bytes }),
            None => Err(Fault::Truncated { at: self.position(), need: count, left }),
        }
    }

    pub(crate) fn number<T: Number>(&mut self) -> Result<T, Fault> {
        let bytes = self.take(T::WIDTH as u64)?;
        Ok(T::read(bytes, self.endian))
    }

    /// A count, length or dimension: 64 bits, or 32 in version 1.
    pub(crate) fn size(&mut self) -> Result<u64, Fault> {
        if self.wide { self.number() } else { self.number::<u32>().map(u64::from) }
    }

    /// A count of things of at least `least` bytes each, at most `limit` of them.
    pub(crate) fn count(
        &mut self,
        what: &'static str,
        least: u64,
        limit: u64,
        name: &'static str,
    ) -> Result<u64, Fault> {
        let count = self.size()?;
        self.check_count(what, count, least, limit, name)?;
        Ok(count)
    }

    /// Checks a count read earlier against the limit and the bytes left.
    pub(crate) fn check_count(
        &self,
        what: &'static str,
        count: u64,
        least: u64,
        limit: u64,
        name: &'static str,
    ) -> Result<(), Fault> {
        if count > limit {
            return Err(Fault::Limit { what, count, limit, name });
        }
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.left() => Ok(()),
            _ if self.capped => Err(Fault::HeaderTooLong { limit: self.limits.header_bytes }),
            _ => Err(Fault::Count { what, count, left: self.left() }),
        }
    }

    fn bytes(&mut self, what: &'static str, limit: u64, name: &'static str) -> Result<&'a [u8], Fault> {
        let length = self.count(what, 1, limit, name)?;
        self.take(length)
    }

    /// The name of a key or tensor: not empty, UTF-8, of limited length.
    pub(crate) fn name(&mut self, limit: u64, limit_name: &'static str) -> Result<&'a str, Fault> {
        let bytes = self.bytes("bytes of name", limit, limit_name)?;
        match std::str::from_utf8(bytes) {
            Ok("") => Err(Fault::EmptyName),
            Ok(name) => Ok(name),
            Err(_) => Err(Fault::NameNotUtf8),
        }
    }

    fn string(&mut self) -> Result<&'a [u8], Fault> {
        self.bytes("bytes of string", self.limits.string_bytes, "string_bytes")
    }

    fn bool(&mut self) -> Result<bool, Fault> {
        to_bool(self.number()?)
    }

    fn value_type(&mut self) -> Result<ValueType, Fault> {
        let id = self.number()?;
        ValueType::from_id(id).ok_or(Fault::ValueType { id })
    }

    /// A value type and the value.
    pub(crate) fn value(&mut self) -> Result<Value, Fault> {
        Ok(match self.value_type()? {
            ValueType::U8 => Value::U8(self.number()?),
            ValueType::I8 => Value::I8(self.number()?),
            ValueType::U16 => Value::U16(self.number()?),
            ValueType::I16 => Value::I16(self.number()?),
            ValueType::U32 => Value::U32(self.number()?),
            ValueType::I32 => Value::I32(self.number()?),
            ValueType::U64 => Value::U64(self.number()?),
            ValueType::I64 => Value::I64(self.number()?),
            ValueType::F32 => Value::F32(self.number()?),
            ValueType::F64 => Value::F64(self.number()?),
            ValueType::Bool => Value::Bool(self.bool()?),
            ValueType::String => Value::String(self.string()?.to_vec()),
            ValueType::Array => Value::Array(self.array(1)?),
        })
    }

    /// An element type, a count and the elements. `depth` counts the arrays around and including this one.
    fn array(&mut self, depth: u32) -> Result<Array, Fault> {
        if depth > self.limits.array_depth {
            return Err(Fault::Nested { limit: self.limits.array_depth });
        }
        Ok(match self.value_type()? {
            ValueType::U8 => Array::U8(self.numbers()?),
            ValueType::I8 => Array::I8(self.numbers()?),
            ValueType::U16 => Array::U16(self.numbers()?),
            ValueType::I16 => Array::I16(self.numbers()?),
            ValueType::U32 => Array::U32(self.numbers()?),
            ValueType::I32 => Array::I32(self.numbers()?),
            ValueType::U64 => Array::U64(self.numbers()?),
            ValueType::I64 => Array::I64(self.numbers()?),
            ValueType::F32 => Array::F32(self.numbers()?),
            ValueType::F64 => Array::F64(self.numbers()?),
            ValueType::Bool => {
                let count = self.elements(1)?;
                Array::Bool(self.take(count)?.iter().map(|&byte| to_bool(byte)).collect::<Result<_, _>>()?)
            }
            ValueType::String => Array::String(self.strings()?),
            ValueType::Array => {
                let least = 4 + self.size_width();
                let count = self.elements(least)?;
                let mut arrays = self.room(count);
                for _ in 0..count {
                    arrays.push(self.array(depth + 1)?);
                }
                Array::Array(arrays)
            }
        })
    }

    /// The number of elements of an array, each of at least `least` bytes.
    fn elements(&mut self, least: u64) -> Result<u64, Fault> {
        self.count("array elements", least, self.limits.array_len, "array_len")
    }

    fn numbers<T: Number>(&mut self) -> Result<Vec<T>, Fault> {
        let count = self.elements(T::WIDTH as u64)?;
        // The product was checked against the bytes left.
        let bytes = self.take(count * T::WIDTH as u64)?;
        Ok(bytes.chunks_exact(T::WIDTH).map(|number| T::read(number, self.endian)).collect())
    }

    fn strings(&mut self) -> Result<Strings, Fault> {
        let count = self.elements(self.size_width())?;
        // Walk the lengths once, so that both buffers are allocated at their exact size.
        let begin = self.at;
        let mut total = 0;
        for _ in 0..count {
            total += self.string()?.len();
        }
        self.at = begin;
        let mut strings = Strings::with_capacity(usize::try_from(count).unwrap_or(0), total);
        for _ in 0..count {
            strings.push(self.string()?);
        }
        Ok(strings)
    }

    /// Room for `count` records, a count that was checked against the bytes left.
    pub(crate) fn room<T>(&self, count: u64) -> Vec<T> {
        Vec::with_capacity(usize::try_from(count.min(self.left())).unwrap_or(0))
    }

    /// Bytes of a length.
    pub(crate) fn size_width(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }
}

fn to_bool(byte: u8) -> Result<bool, Fault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Fault::Bool { found }),
    }
}
