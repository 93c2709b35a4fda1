use std::str::FromStr;

use gruff_gguf::{Array, Strings, Value, ValueType};

use crate::Error;

/// A key and what to set it to, as people write it: `KEY=VALUE`, or `KEY:TYPE=VALUE`.
///
/// Without a type, a key that is there keeps its own, and a new one gets bool for true and false, uint32, int32,
/// uint64 or int64 for whole numbers, float32 for others, and string for the rest. Arrays are written as in JSON:
/// `KEY=[1, 2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    key: String,
    value_type: Option<ValueType>,
    text: String,
}

impl FromStr for Assignment {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |fault: &str| Error::Argument(format!("{text:?} {fault}; write KEY=VALUE"));
        let (key, value) = text.split_once('=').ok_or_else(|| refuse("has no `=`"))?;
        let (key, value_type) = match key.rsplit_once(':') {
            None => (key, None),
            Some((key, name)) => {
                let found = ValueType::ALL.iter().find(|value_type| value_type.name() == name);
                let names: Vec<_> = ValueType::ALL.iter().map(|value_type| value_type.name()).collect();
                let fault =
                    || refuse(&format!("names the type {name:?}, which is none of {}", names.join(", ")));
                (key, Some(*found.ok_or_else(fault)?))
            }
        };
        if key.is_empty() {
            return Err(refuse("has no key"));
        }
        Ok(Assignment { key: key.to_owned(), value_type, text: value.to_owned() })
    }
}

impl Assignment {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value to set, given the one that is there; what is wrong with it, if it does not suit.
    pub(super) fn value(&self, old: Option<&Value>) -> Result<Value, String> {
        let of_old = old.map(Value::value_type);
        let is_array = match self.value_type {
            Some(ValueType::Array) => true,
            Some(_) => false,
            None if old.is_some() => of_old == Some(ValueType::Array),
            None => self.text.trim_start().starts_with('['),
        };
        if is_array {
            let elements = old.and_then(Value::as_array).map(Array::element_type);
            return self.array(elements).map(Value::Array);
        }
        let value_type = self.value_type.or(of_old).unwrap_or_else(|| infer(&self.text));
        scalar(&self.text, value_type)
    }

    fn array(&self, elements: Option<ValueType>) -> Result<Array, String> {
        let parsed: Vec<serde_json::Value> =
            serde_json::from_str(&self.text).map_err(|error| format!("should be a JSON array: {error}"))?;
        if parsed.iter().any(|element| element.is_array() || element.is_object() || element.is_null()) {
            return Err("takes an array of numbers, of text or of true and false".to_owned());
        }
        let texts: Vec<String> = parsed
            .iter()
            .map(|element| element.as_str().map_or_else(|| element.to_string(), str::to_owned))
            .collect();
        let is_text = parsed.iter().any(serde_json::Value::is_string);
        let inferred = || match texts.iter().map(|text| infer(text)).reduce(wider) {
            _ if is_text => ValueType::String,
            Some(value_type) => value_type,
            None => ValueType::String,
        };
        let value_type = elements.unwrap_or_else(inferred);
        let values: Vec<Value> =
            texts.iter().map(|text| scalar(text, value_type)).collect::<Result<_, _>>()?;
        collect(value_type, values)
    }
}

/// The type of a new value that is written so.
fn infer(text: &str) -> ValueType {
    let whole = text.parse::<i128>().ok();
    match whole {
        Some(n) if u32::try_from(n).is_ok() => ValueType::U32,
        Some(n) if i32::try_from(n).is_ok() => ValueType::I32,
        Some(n) if u64::try_from(n).is_ok() => ValueType::U64,
        Some(n) if i64::try_from(n).is_ok() => ValueType::I64,
        _ if matches!(text, "true" | "false") => ValueType::Bool,
        _ if text.parse::<f32>().is_ok_and(f32::is_finite) => ValueType::F32,
        _ => ValueType::String,
    }
}

/// The type that holds values of both.
fn wider(a: ValueType, b: ValueType) -> ValueType {
    use ValueType::{F32, I32, I64, U32, U64};
    match (a, b) {
        _ if a == b => a,
        (U32 | I32, U32 | I32) => I64,
        (U32 | I32 | U64 | I64, U32 | I32 | U64 | I64) => {
            if a == U64 || b == U64 {
                U64
            } else {
                I64
            }
        }
        (F32, U32 | I32 | U64 | I64) | (U32 | I32 | U64 | I64, F32) => F32,
        _ => ValueType::String,
    }
}

macro_rules! by_type {
    ($($variant:ident: $rust:ty),*) => {
        /// Reads one value of a type.
        fn scalar(text: &str, value_type: ValueType) -> Result<Value, String> {
            let refuse = || format!("is of type {value_type}, which {text:?} is not");
            match value_type {
                $(ValueType::$variant => text.trim().parse::<$rust>().map(Value::$variant).map_err(|_| refuse()),)*
                ValueType::String => Ok(Value::from(text)),
                ValueType::Array => Err("holds arrays of arrays, which cannot be set".to_owned()),
            }
        }

        /// Makes an array of values that are all of one type.
        fn collect(value_type: ValueType, values: Vec<Value>) -> Result<Array, String> {
            match value_type {
                $(ValueType::$variant => {
                    let each = values.into_iter().filter_map(|value| match value {
                        Value::$variant(value) => Some(value),
                        _ => None,
                    });
                    Ok(Array::$variant(each.collect()))
                })*
                ValueType::String => {
                    let mut strings = Strings::new();
                    values.iter().filter_map(Value::as_bytes).for_each(|text| strings.push(text));
                    Ok(Array::String(strings))
                }
                ValueType::Array => Err("holds arrays of arrays, which cannot be set".to_owned()),
            }
        }
    };
}

by_type!(
    U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64, F32: f32, F64: f64, Bool: bool
);

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, old: Option<Value>) -> Result<Value, String> {
        text.parse::<Assignment>().unwrap().value(old.as_ref())
    }

    #[test]
    fn values_get_the_type_that_suits() {
        for (text, old, expected) in [
            ("a=5", None, Value::U32(5)),
            ("a=-5", None, Value::I32(-5)),
            ("a=5000000000", None, Value::U64(5_000_000_000)),
            ("a=0.5", None, Value::F32(0.5)),
            ("a=true", None, Value::Bool(true)),
            ("a=b=c", None, Value::from("b=c")),
            ("a=", None, Value::from("")),
            ("a=5", Some(Value::from("text")), Value::from("5")),
            ("a=5", Some(Value::F32(1.0)), Value::F32(5.0)),
            ("a=5", Some(Value::U64(1)), Value::U64(5)),
            ("a:int8=5", Some(Value::U64(1)), Value::I8(5)),
            ("a=[1, 2]", None, Value::from(vec![1_u32, 2])),
            ("a=[1, -2]", None, Value::from(vec![1_i64, -2])),
            ("a=[true]", None, Value::from(vec![true])),
            ("a=[1, 2]", Some(Value::from(vec![0.5_f32])), Value::from(vec![1.0_f32, 2.0])),
            ("a=[1, 2]", Some(Value::from("text")), Value::from("[1, 2]")),
        ] {
            assert_eq!(value(text, old), Ok(expected), "{text}");
        }
        let Ok(Value::Array(Array::String(strings))) = value(r#"a=["x", "y z"]"#, None) else { panic!() };
        assert_eq!((strings.str(0), strings.str(1)), (Some("x"), Some("y z")));
    }

    #[test]
    fn values_that_do_not_suit_are_refused() {
        for (text, old) in [
            ("a=-1", Value::U32(0)),
            ("a=300", Value::U8(0)),
            ("a=yes", Value::Bool(true)),
            ("a=5", Value::from(vec![1_u32])),
            ("a=[x]", Value::from(vec![1_u32])),
            ("a=[1.5]", Value::from(vec![1_u32])),
            ("a=[[1]]", Value::from(vec![1_u32])),
            ("a:array=[1, null]", Value::U8(0)),
            ("a:array=[{}]", Value::U8(0)),
        ] {
            assert!(value(text, Some(old)).is_err(), "{text}");
        }
        for text in ["a", "=5", "a:int5=5", ":int8=5"] {
            assert!(text.parse::<Assignment>().is_err(), "{text}");
        }
    }
}
