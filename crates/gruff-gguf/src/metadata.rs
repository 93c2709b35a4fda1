//! The typed key-value pairs of a file.

use std::borrow::Cow;
use std::sync::Arc;

use crate::index::{Index, Named};
use crate::value::{Array, Strings, Value};
use crate::{Error, ValueType};

/// A file's key-value pairs, in the file's order.
///
/// The typed getters come in three forms: `u32(key)` gives `None` when the key is absent, `require_u32(key)`
/// makes that an error and `u32_or(key, default)` fills it in. All three refuse a value of another type, with
/// an error that names the key, the type expected and the type found. Integers of any width and sign are
/// accepted where their value fits; a whole or double-precision number is accepted as a float.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: Arc<str>,
    entries: Vec<Entry>,
    index: Index,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Box<str>,
    pub(crate) value: Value,
}

impl Named for Entry {
    fn name(&self) -> &str {
        &self.key
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Metadata { file: "metadata".into(), entries: Vec::new(), index: Index::default() }
    }
}

macro_rules! getters {
    ($($what:literal, $expected:literal, $rust:ty, $get:ident, $require:ident, $or:ident, $convert:expr;)*) => { $(
        #[doc = concat!("The ", $what, " under `key`, if the key exists.")]
        ///
        /// # Errors
        /// [`Error::KeyType`] when the value is of another type or does not fit.
        pub fn $get(&self, key: &str) -> Result<Option<$rust>, Error> {
            self.typed(key, $expected, $convert)
        }

        #[doc = concat!("The ", $what, " under `key`.")]
        ///
        /// # Errors
        /// [`Error::MissingKey`] when there is no such key, [`Error::KeyType`] when the value is of another
        /// type or does not fit.
        pub fn $require(&self, key: &str) -> Result<$rust, Error> {
            self.$get(key)?.ok_or_else(|| self.missing(key))
        }

        #[doc = concat!("The ", $what, " under `key`, or `default` when there is no such key.")]
        ///
        /// # Errors
        /// [`Error::KeyType`] when the value is of another type or does not fit.
        pub fn $or(&self, key: &str, default: $rust) -> Result<$rust, Error> {
            Ok(self.$get(key)?.unwrap_or(default))
        }
    )* };
}

macro_rules! reference_getters {
    ($($what:literal, $expected:literal, $rust:ty, $get:ident, $require:ident, $convert:expr;)*) => { $(
        #[doc = concat!("The ", $what, " under `key`, if the key exists.")]
        ///
        /// # Errors
        /// [`Error::KeyType`] when the value is of another type or cannot be converted.
        pub fn $get(&self, key: &str) -> Result<Option<$rust>, Error> {
            self.typed(key, $expected, $convert)
        }

        #[doc = concat!("The ", $what, " under `key`.")]
        ///
        /// # Errors
        /// [`Error::MissingKey`] when there is no such key, [`Error::KeyType`] when the value is of another
        /// type or cannot be converted.
        pub fn $require(&self, key: &str) -> Result<$rust, Error> {
            self.$get(key)?.ok_or_else(|| self.missing(key))
        }
    )* };
}

impl Metadata {
    /// No pairs yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pairs read from `file`; a key that occurs twice is the error.
    pub(crate) fn from_entries(file: Arc<str>, mut entries: Vec<Entry>) -> Result<Self, Box<str>> {
        match Index::new(&entries) {
            Ok(index) => Ok(Metadata { file, entries, index }),
            Err(twice) => Err(entries.swap_remove(twice).key),
        }
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.find(&self.entries, key).map(|at| &self.entries[at].value)
    }

    /// Whether `key` exists.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every pair, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + Clone {
        self.entries.iter().map(|entry| (&*entry.key, &entry.value))
    }

    /// Every key, in the file's order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// Sets `key`, in place when it exists and at the end otherwise. Gives back the value it had.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Option<Value> {
        let value = value.into();
        match self.index.find(&self.entries, key) {
            Some(at) => Some(std::mem::replace(&mut self.entries[at].value, value)),
            None => {
                self.entries.push(Entry { key: key.into(), value });
                self.index.append(&self.entries);
                None
            }
        }
    }

    /// Takes `key` out. Gives back the value it had.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.find(&self.entries, key)?;
        self.index.remove(at);
        Some(self.entries.remove(at).value)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.mismatch(key, expected, value)),
        }
    }

    fn missing(&self, key: &str) -> Error {
        Error::MissingKey { file: self.file.clone(), key: key.to_owned() }
    }

    fn mismatch(&self, key: &str, expected: &str, value: &Value) -> Error {
        let found = match (value, value.as_int()) {
            (_, Some(number)) => format!("the {} {number}", value.value_type()),
            (Value::F32(_) | Value::F64(_), _) => {
                format!("the {} {}", value.value_type(), value.as_f64().unwrap_or_default())
            }
            (Value::String(_), _) if value.as_str().is_none() => "a string that is not UTF-8".to_owned(),
            _ => format!("a value of type {}", value.describe_type()),
        };
        Error::KeyType { file: self.file.clone(), key: key.to_owned(), expected: expected.to_owned(), found }
    }

    getters! {
        "integer", "an integer that fits in uint8", u8, u8, require_u8, u8_or, int;
        "integer", "an integer that fits in uint16", u16, u16, require_u16, u16_or, int;
        "integer", "an integer that fits in uint32", u32, u32, require_u32, u32_or, int;
        "integer", "an integer that fits in uint64", u64, u64, require_u64, u64_or, int;
        "integer", "an integer that fits in int32", i32, i32, require_i32, i32_or, int;
        "integer", "an integer that fits in int64", i64, i64, require_i64, i64_or, int;
        "integer", "a size", usize, usize, require_usize, usize_or, int;
        "number, rounded to single precision", "a number", f32, f32, require_f32, f32_or,
            |value| value.as_f64().map(|v| v as f32);
        "number", "a number", f64, f64, require_f64, f64_or, Value::as_f64;
        "truth value", "a bool", bool, bool, require_bool, bool_or, Value::as_bool;
    }

    reference_getters! {
        "text", "UTF-8 text", &str, str, require_str, Value::as_str;
        "bytes of the string", "a string", &[u8], bytes, require_bytes, Value::as_bytes;
        "array", "an array", &Array, array, require_array, Value::as_array;
        "array of strings", "an array of strings", &Strings, str_array, require_str_array,
            |value| value.as_array()?.as_strings();
        "array of integers", "an array of integers that fit in uint32", Cow<'_, [u32]>,
            u32_array, require_u32_array, |value| ints(value.as_array()?, |array| match array {
                Array::U32(v) => Some(v), _ => None,
            });
        "array of integers", "an array of integers that fit in uint64", Cow<'_, [u64]>,
            u64_array, require_u64_array, |value| ints(value.as_array()?, |array| match array {
                Array::U64(v) => Some(v), _ => None,
            });
        "array of integers", "an array of integers that fit in int32", Cow<'_, [i32]>,
            i32_array, require_i32_array, |value| ints(value.as_array()?, |array| match array {
                Array::I32(v) => Some(v), _ => None,
            });
        "array of numbers", "an array of numbers", Cow<'_, [f32]>,
            f32_array, require_f32_array, |value| floats(value.as_array()?);
        "array of bytes", "an array of uint8", &[u8], u8_array, require_u8_array,
            |value| match value.as_array()? { Array::U8(v) => Some(v.as_slice()), _ => None };
        "array of truth values", "an array of bool", &[bool], bool_array, require_bool_array,
            |value| match value.as_array()? { Array::Bool(v) => Some(v.as_slice()), _ => None };
    }

    /// The text under `key`, or `default` when there is no such key.
    ///
    /// # Errors
    /// [`Error::KeyType`] when the value is not a string or not UTF-8.
    pub fn str_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        Ok(self.str(key)?.unwrap_or(default))
    }

    /// A setting that is one integer for all of `layers` layers, or an array with one for each.
    ///
    /// # Errors
    /// [`Error::KeyType`] when the value is neither, or the array is not of length `layers`.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        self.typed(
            key,
            &format!("an integer that fits in uint32, or {layers} of them"),
            |value| match value {
                Value::Array(array) if array.len() == layers => ints_to_vec(array),
                Value::Array(_) => None,
                single => int(single).map(|v| vec![v; layers]),
            },
        )
    }

    /// Whether the value under `key` is of type `value_type`.
    pub fn is(&self, key: &str, value_type: ValueType) -> bool {
        self.get(key).is_some_and(|value| value.value_type() == value_type)
    }
}

fn int<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    T::try_from(value.as_int()?).ok()
}

fn ints_to_vec<T: TryFrom<i128>>(array: &Array) -> Option<Vec<T>> {
    array.ints()?.map(|v| T::try_from(v).ok()).collect()
}

fn ints<T: TryFrom<i128> + Clone>(
    array: &Array,
    same: impl FnOnce(&Array) -> Option<&Vec<T>>,
) -> Option<Cow<'_, [T]>> {
    match same(array) {
        Some(v) => Some(Cow::Borrowed(v)),
        None => ints_to_vec(array).map(Cow::Owned),
    }
}

fn floats(array: &Array) -> Option<Cow<'_, [f32]>> {
    Some(match array {
        Array::F32(v) => Cow::Borrowed(v),
        Array::F64(v) => Cow::Owned(v.iter().map(|&v| v as f32).collect()),
        other => Cow::Owned(other.ints()?.map(|v| v as f32).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("a.u64", 7_u64);
        metadata.insert("a.negative", -1_i32);
        metadata.insert("a.large", u64::MAX);
        metadata.insert("a.f32", 0.5_f32);
        metadata.insert("a.text", "hello");
        metadata.insert("a.broken", Value::String(vec![0xff]));
        metadata.insert("a.flags", vec![true, false]);
        metadata.insert("a.heads", vec![4_i32, 0, 4]);
        metadata.insert("a.tokens", ["x", "y"].iter().collect::<Strings>());
        metadata
    }

    #[test]
    fn integers_convert_when_they_fit() {
        let metadata = sample();
        assert_eq!(metadata.u32("a.u64").unwrap(), Some(7));
        assert_eq!(metadata.u8("a.u64").unwrap(), Some(7));
        assert_eq!(metadata.i64("a.negative").unwrap(), Some(-1));
        assert_eq!(metadata.u32("none").unwrap(), None);
        assert_eq!(metadata.u32_or("none", 9).unwrap(), 9);
        assert_eq!(metadata.f32("a.u64").unwrap(), Some(7.0));
        assert_eq!(metadata.f64("a.f32").unwrap(), Some(0.5));
    }

    #[test]
    fn errors_name_key_expected_and_found() {
        let metadata = sample();
        let cases = [
            (metadata.require_u32("none").unwrap_err(), vec!["\"none\"", "missing"]),
            (metadata.u32("a.negative").unwrap_err(), vec!["\"a.negative\"", "uint32", "the int32 -1"]),
            (metadata.i64("a.large").unwrap_err(), vec!["int64", "the uint64 18446744073709551615"]),
            (metadata.u32("a.f32").unwrap_err(), vec!["uint32", "float32 0.5"]),
            (metadata.f32("a.text").unwrap_err(), vec!["a number", "string"]),
            (metadata.str("a.broken").unwrap_err(), vec!["UTF-8"]),
            (metadata.u32_array("a.flags").unwrap_err(), vec!["array of 2 bool"]),
            (metadata.str_array("a.heads").unwrap_err(), vec!["array of strings", "array of 3 int32"]),
            (metadata.u32_per_layer("a.heads", 4).unwrap_err(), vec!["or 4 of them", "array of 3 int32"]),
        ];
        for (error, fragments) in cases {
            for fragment in fragments {
                assert!(error.to_string().contains(fragment), "{error} lacks {fragment}");
            }
        }
    }

    #[test]
    fn arrays_convert_or_borrow() {
        let metadata = sample();
        assert_eq!(metadata.require_u32_array("a.heads").unwrap(), [4, 0, 4].as_slice());
        assert!(matches!(metadata.require_i32_array("a.heads").unwrap(), Cow::Borrowed(_)));
        assert_eq!(metadata.f32_array("a.heads").unwrap().unwrap(), [4.0, 0.0, 4.0].as_slice());
        assert_eq!(metadata.u32_per_layer("a.heads", 3).unwrap().unwrap(), [4, 0, 4]);
        assert_eq!(metadata.u32_per_layer("a.u64", 2).unwrap().unwrap(), [7, 7]);
        assert_eq!(metadata.bool_array("a.flags").unwrap(), Some([true, false].as_slice()));
        assert_eq!(metadata.require_str_array("a.tokens").unwrap().str(1), Some("y"));
        assert_eq!(metadata.bytes("a.broken").unwrap(), Some([0xff].as_slice()));
    }

    #[test]
    fn insert_replaces_and_remove_forgets() {
        let mut metadata = sample();
        assert_eq!(metadata.insert("a.text", "bye"), Some("hello".into()));
        assert_eq!(metadata.keys().nth(4), Some("a.text"));
        assert_eq!(metadata.remove("a.u64"), Some(Value::U64(7)));
        assert_eq!(metadata.remove("a.u64"), None);
        assert_eq!(metadata.require_str("a.text").unwrap(), "bye");
        assert_eq!(metadata.len(), 8);
    }
}
