//! Metadata values and their types.

use std::fmt;

/// The byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first: nearly every file.
    Little,
    /// Most significant byte first: files made for machines such as s390x.
    Big,
}

/// A number of fixed width in a file.
pub(crate) trait Number: Copy {
    /// Bytes in the file.
    const WIDTH: usize;
    /// The number whose bytes these are; missing bytes count as zero.
    fn read(bytes: &[u8], endian: Endian) -> Self;
    /// Appends the number's bytes.
    fn write(self, endian: Endian, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($rust:ty),*) => { $(
        impl Number for $rust {
            const WIDTH: usize = size_of::<$rust>();

            fn read(bytes: &[u8], endian: Endian) -> Self {
                let mut own = [0; size_of::<$rust>()];
                let n = bytes.len().min(own.len());
                own[..n].copy_from_slice(&bytes[..n]);
                match endian {
                    Endian::Little => Self::from_le_bytes(own),
                    Endian::Big => Self::from_be_bytes(own),
                }
            }

            fn write(self, endian: Endian, out: &mut Vec<u8>) {
                match endian {
                    Endian::Little => out.extend_from_slice(&self.to_le_bytes()),
                    Endian::Big => out.extend_from_slice(&self.to_be_bytes()),
                }
            }
        }
    )* };
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $single:ty, $many:ty;)*) => {
        /// The type of a metadata value, or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType {
            $($(#[$doc])* $variant = $id,)*
        }

        impl ValueType {
            /// Every type, in the format's order.
            pub const ALL: &[ValueType] = &[$(ValueType::$variant,)*];

            /// The type with this id in a file.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(ValueType::$variant),)* _ => None }
            }

            /// The name that the format gives the type (`"uint32"`).
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$variant => $name,)* }
            }
        }

        /// One metadata value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $variant($single),)*
        }

        impl Value {
            /// The value's type.
            pub const fn value_type(&self) -> ValueType {
                match self { $(Value::$variant(_) => ValueType::$variant,)* }
            }
        }

        /// An array of metadata values, all of one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array {
            $($(#[$doc])* $variant($many),)*
        }

        impl Array {
            /// The type of the elements.
            pub const fn element_type(&self) -> ValueType {
                match self { $(Array::$variant(_) => ValueType::$variant,)* }
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                match self { $(Array::$variant(elements) => elements.len(),)* }
            }
        }
    };
}

value_types! {
    /// Unsigned, 8 bits.
    U8 = 0, "uint8", u8, Vec<u8>;
    /// Signed, 8 bits.
    I8 = 1, "int8", i8, Vec<i8>;
    /// Unsigned, 16 bits.
    U16 = 2, "uint16", u16, Vec<u16>;
    /// Signed, 16 bits.
    I16 = 3, "int16", i16, Vec<i16>;
    /// Unsigned, 32 bits.
    U32 = 4, "uint32", u32, Vec<u32>;
    /// Signed, 32 bits.
    I32 = 5, "int32", i32, Vec<i32>;
    /// IEEE single precision.
    F32 = 6, "float32", f32, Vec<f32>;
    /// A byte that is 0 or 1.
    Bool = 7, "bool", bool, Vec<bool>;
    /// Bytes that should be UTF-8. They are kept as they are, because some vocabularies hold pieces of
    /// characters; [`Value::as_str`] and [`Metadata::str`](crate::Metadata::str) check.
    String = 8, "string", Vec<u8>, Strings;
    /// Values of one type.
    Array = 9, "array", Array, Vec<Array>;
    /// Unsigned, 64 bits.
    U64 = 10, "uint64", u64, Vec<u64>;
    /// Signed, 64 bits.
    I64 = 11, "int64", i64, Vec<i64>;
    /// IEEE double precision.
    F64 = 12, "float64", f64, Vec<f64>;
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Value {
    /// The value as an integer, if it is one of any width.
    pub fn as_int(&self) -> Option<i128> {
        Some(match self {
            Value::U8(v) => (*v).into(),
            Value::I8(v) => (*v).into(),
            Value::U16(v) => (*v).into(),
            Value::I16(v) => (*v).into(),
            Value::U32(v) => (*v).into(),
            Value::I32(v) => (*v).into(),
            Value::U64(v) => (*v).into(),
            Value::I64(v) => (*v).into(),
            _ => return None,
        })
    }

    /// The value as a floating-point number: either width, or an integer.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::F32(v) => Some((*v).into()),
            Value::F64(v) => Some(*v),
            other => other.as_int().map(|v| v as f64),
        }
    }

    /// The value as a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// The value as text, if it is a string and valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(v) => std::str::from_utf8(v).ok(),
            _ => None,
        }
    }

    /// The bytes of a string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value as an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    /// The type in words, with the elements' type for an array: `array of 3 string`.
    pub(crate) fn describe_type(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            other => other.value_type().to_string(),
        }
    }
}

impl Array {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are of any integer type.
    pub fn ints(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        fn widen<T: Copy + Into<i128>>(v: &[T]) -> Box<dyn Iterator<Item = i128> + '_> {
            Box::new(v.iter().map(|&v| v.into()))
        }
        Some(match self {
            Array::U8(v) => widen(v),
            Array::I8(v) => widen(v),
            Array::U16(v) => widen(v),
            Array::I16(v) => widen(v),
            Array::U32(v) => widen(v),
            Array::I32(v) => widen(v),
            Array::U64(v) => widen(v),
            Array::I64(v) => widen(v),
            _ => return None,
        })
    }

    /// The elements as strings.
    pub fn as_strings(&self) -> Option<&Strings> {
        match self {
            Array::String(v) => Some(v),
            _ => None,
        }
    }
}

macro_rules! value_from {
    ($($rust:ty => $variant:ident),*) => { $(
        impl From<$rust> for Value {
            fn from(value: $rust) -> Self { Value::$variant(value) }
        }

        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self { Value::Array(Array::$variant(values)) }
        }

        impl From<&[$rust]> for Value {
            fn from(values: &[$rust]) -> Self { values.to_vec().into() }
        }
    )* };
}

value_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64);
value_from!(f32 => F32, f64 => F64, bool => Bool);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text.into_bytes())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Value::Array(array)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Value::Array(Array::String(strings))
    }
}

/// Many strings in one buffer: a vocabulary of 250,000 tokens is two allocations.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    /// No strings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for `strings` strings of `bytes` bytes in all.
    pub fn with_capacity(strings: usize, bytes: usize) -> Self {
        Strings { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    /// Appends a string.
    pub fn push(&mut self, string: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(string.as_ref());
        self.ends.push(self.bytes.len());
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of the string at `at`, which need not be UTF-8.
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.bytes[start..end])
    }

    /// The string at `at`, if there is one and it is valid UTF-8.
    pub fn str(&self, at: usize) -> Option<&str> {
        std::str::from_utf8(self.get(at)?).ok()
    }

    /// The bytes of every string.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator + Clone {
        (0..self.len()).map(|at| self.get(at).unwrap_or_default())
    }

    /// Bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Strings::new();
        all.extend(strings);
        all
    }
}

impl<S: AsRef<[u8]>> Extend<S> for Strings {
    fn extend<I: IntoIterator<Item = S>>(&mut self, strings: I) {
        for string in strings {
            self.push(string);
        }
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_types_agree() {
        for (id, &value_type) in ValueType::ALL.iter().enumerate() {
            assert_eq!(value_type as u32, id as u32);
            assert_eq!(ValueType::from_id(id as u32), Some(value_type));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn numbers_keep_their_byte_order() {
        for endian in [Endian::Little, Endian::Big] {
            let mut bytes = Vec::new();
            0x0102_0304_u32.write(endian, &mut bytes);
            assert_eq!(bytes[0], if endian == Endian::Big { 1 } else { 4 });
            assert_eq!(u32::read(&bytes, endian), 0x0102_0304);
            let mut bytes = Vec::new();
            (-1.5_f64).write(endian, &mut bytes);
            assert_eq!(f64::read(&bytes, endian), -1.5);
        }
    }

    #[test]
    fn strings_keep_bytes_and_borders() {
        let strings: Strings = [b"ab".as_slice(), b"", b"\xff\xfe", "é".as_bytes()].into_iter().collect();
        assert_eq!(strings.len(), 4);
        assert_eq!(strings.get(1), Some(b"".as_slice()));
        assert_eq!(strings.str(2), None);
        assert_eq!(strings.str(3), Some("é"));
        assert_eq!(strings.get(4), None);
        assert_eq!(strings.iter().next_back(), Some("é".as_bytes()));
    }
}
