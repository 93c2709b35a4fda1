//! Files put together byte by byte, so that they can be wrong.

#![allow(dead_code, reason = "each test program uses its own share of this")]

/// A file in the making. Lengths and counts are 64 bits wide, or 32 in version 1.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) bytes: Vec<u8>,
    wide: bool,
    big: bool,
}

/// Ids of value types.
pub(crate) const U8: u32 = 0;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

/// Ids of tensor types.
pub(crate) const T_F32: u32 = 0;
pub(crate) const T_Q8_0: u32 = 8;
pub(crate) const T_I8: u32 = 24;
pub(crate) const T_I64: u32 = 27;

impl Raw {
    /// Magic and version 3, little-endian.
    pub(crate) fn new() -> Self {
        Self::version(3)
    }

    pub(crate) fn version(version: u32) -> Self {
        Raw { bytes: b"GGUF".to_vec(), wide: version > 1, big: false }.u32(version)
    }

    pub(crate) fn big_endian(version: u32) -> Self {
        Raw { bytes: b"GGUF".to_vec(), wide: version > 1, big: true }.u32(version)
    }

    /// The numbers of tensors and of key-value pairs.
    pub(crate) fn counts(self, tensors: u64, keys: u64) -> Self {
        self.size(tensors).size(keys)
    }

    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    fn number<const N: usize>(self, little: [u8; N]) -> Self {
        let mut bytes = little;
        if self.big {
            bytes.reverse();
        }
        self.raw(bytes)
    }

    pub(crate) fn u8(self, v: u8) -> Self {
        self.raw([v])
    }

    pub(crate) fn u32(self, v: u32) -> Self {
        self.number(v.to_le_bytes())
    }

    pub(crate) fn u64(self, v: u64) -> Self {
        self.number(v.to_le_bytes())
    }

    pub(crate) fn f32(self, v: f32) -> Self {
        self.number(v.to_le_bytes())
    }

    /// A length or count.
    pub(crate) fn size(self, v: u64) -> Self {
        if self.wide { self.u64(v) } else { self.u32(v as u32) }
    }

    pub(crate) fn string(self, text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        self.size(text.len() as u64).raw(text)
    }

    /// A key and the type of its value, which has to follow.
    pub(crate) fn key(self, key: impl AsRef<[u8]>, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }

    /// A key, and the element type and count of its array, whose elements have to follow.
    pub(crate) fn array_key(self, key: &str, element_type: u32, count: u64) -> Self {
        self.key(key, ARRAY).u32(element_type).size(count)
    }

    pub(crate) fn u32_key(self, key: &str, v: u32) -> Self {
        self.key(key, U32).u32(v)
    }

    pub(crate) fn string_key(self, key: &str, v: &str) -> Self {
        self.key(key, STRING).string(v)
    }

    /// An entry of the tensor table.
    pub(crate) fn tensor(self, name: impl AsRef<[u8]>, shape: &[u64], type_id: u32, offset: u64) -> Self {
        let mut raw = self.string(name).u32(shape.len() as u32);
        for &size in shape {
            raw = raw.size(size);
        }
        raw.u32(type_id).u64(offset)
    }

    /// Fills up to the alignment and adds `bytes` bytes of data.
    pub(crate) fn data(mut self, bytes: usize) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        let data = (0..bytes).map(|at| at as u8);
        self.bytes.extend(data);
        self
    }
}

/// A sound file with values of many types, strings, nested arrays and three tensors.
pub(crate) fn sound(raw: Raw) -> Vec<u8> {
    raw.counts(3, 9)
        .string_key("general.architecture", "test")
        .u32_key("general.alignment", 32)
        .key("a.bool", BOOL)
        .u8(1)
        .key("a.u64", U64)
        .u64(1 << 40)
        .key("a.f32", F32)
        .f32(0.5)
        .array_key("a.strings", STRING, 3)
        .string("x")
        .string("")
        .string("yz")
        .array_key("a.ints", I32, 2)
        .u32(1)
        .u32(u32::MAX)
        .array_key("a.flags", BOOL, 2)
        .raw([0, 1])
        .array_key("a.nested", ARRAY, 2)
        .u32(U8)
        .size(2)
        .raw([1, 2])
        .u32(STRING)
        .size(0)
        .tensor("a.weight", &[2, 2], T_F32, 0)
        .tensor("b.weight", &[32], T_Q8_0, 32)
        .tensor("c.weight", &[5], T_I8, 96)
        .data(96 + 5)
        .bytes
}
