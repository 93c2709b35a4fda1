//! Methods that templates call on strings, dicts, lists and tuples.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::bind;
use super::value::{Dict, View, items, type_error, type_name};
use super::{compare, strings};

/// Methods that change a value, which transformers' sandbox refuses.
const MUTATORS: [&str; 12] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
    "__setitem__",
];

/// Called by minijinja for methods that the value itself does not have.
pub(crate) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        let text = value.as_str().unwrap_or_default();
        return strings::call(state, value, text, method, args);
    }
    if let Some(dict) = value.downcast_object_ref::<Dict>() {
        return dict_method(state, value, dict, method, args);
    }
    if value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some() {
        return list_method(state, value, method, args);
    }
    Err(Error::from(ErrorKind::UnknownMethod))
}

fn dict_method(
    state: &State,
    value: &Value,
    dict: &Dict,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let entries = dict.entries().iter();
    let view = |name, items: Vec<Value>| {
        state.consume_fuel(items.len() as u64 / 2)?;
        Ok(View::value(name, items))
    };
    match method {
        "get" => {
            let [key, default] = bind(method, args, ["key", "default"], 1)?;
            Ok(match dict.get(&key.unwrap_or_default()) {
                Some(value) => value.clone(),
                None => default.unwrap_or(Value::from(())),
            })
        }
        "keys" => view("dict_keys", entries.map(|(key, _)| key.clone()).collect()),
        "values" => view("dict_values", entries.map(|(_, value)| value.clone()).collect()),
        "items" => view("dict_items", entries.map(pair).collect()),
        "copy" => Ok(value.clone()),
        method if MUTATORS.contains(&method) => Err(unsafe_method(value, method)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// A dict's entry as a tuple.
pub(crate) fn pair((key, value): &(Value, Value)) -> Value {
    Value::from(Tuple::from([key.clone(), value.clone()]))
}

fn list_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" | "index" => {
            let [wanted] = bind(method, args, ["value"], 1)?;
            let wanted = wanted.unwrap_or_default();
            let mut count = 0;
            for (at, item) in items(state, value)?.iter().enumerate() {
                if compare::equal(state, item, &wanted)? {
                    if method == "index" {
                        return Ok(Value::from(at));
                    }
                    count += 1;
                }
            }
            match method {
                "count" => Ok(Value::from(count)),
                _ => Err(type_error("the value is not in the list")),
            }
        }
        "copy" if !value.is_tuple() => Ok(value.clone()),
        method if MUTATORS.contains(&method) && !value.is_tuple() => Err(unsafe_method(value, method)),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn unsafe_method(value: &Value, method: &str) -> Error {
    type_error(format!(
        "'{method}' would change a {}: templates cannot change values, only build new ones",
        type_name(value)
    ))
}
