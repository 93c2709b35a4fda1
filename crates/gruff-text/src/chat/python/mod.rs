//! Python's semantics for template values: what transformers' Jinja environment computes and
//! prints, on minijinja's values.

pub(crate) mod arguments;
pub(crate) mod compare;
pub(crate) mod filters;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod methods;
pub(crate) mod operators;
pub(crate) mod strftime;
pub(crate) mod strings;
pub(crate) mod tests;
pub(crate) mod text;
pub(crate) mod value;

use minijinja::{Error, ErrorKind, Value};

/// The arguments of a template function, keyword arguments last (see [`arguments::bind`]).
pub(crate) type Arguments<'a> = &'a [Value];

/// The error for using an undefined value; minijinja completes it with the expression's name.
pub(crate) fn undefined(value: &Value) -> Error {
    match value.get_attr("value") {
        Err(error) => error,
        Ok(_) => Error::from(ErrorKind::UndefinedError),
    }
}
