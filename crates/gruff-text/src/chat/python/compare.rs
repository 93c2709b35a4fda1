//! Equality and order of values as Python defines them, each comparison paid for.

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::value::{Dict, check_key, items, type_error, type_name};
use super::{Arguments, undefined};

/// `a op b op c …`: operands and operators take turns.
pub(crate) fn chain(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let mut rest = args;
    while let [left, operator, right, ..] = rest {
        if !holds(state, left, operator.as_str().unwrap_or_default(), right)? {
            return Ok(Value::from(false));
        }
        rest = rest.get(2..).unwrap_or_default();
    }
    Ok(Value::from(true))
}

fn holds(state: &State, left: &Value, operator: &str, right: &Value) -> Result<bool, Error> {
    Ok(match operator {
        "==" => equal(state, left, right)?,
        "!=" => !equal(state, left, right)?,
        "<" => order(state, "<", left, right)?.is_some_and(Ordering::is_lt),
        "<=" => order(state, "<=", left, right)?.is_some_and(Ordering::is_le),
        ">" => order(state, ">", left, right)?.is_some_and(Ordering::is_gt),
        ">=" => order(state, ">=", left, right)?.is_some_and(Ordering::is_ge),
        "in" => contains(state, right, left)?,
        _ => !contains(state, right, left)?,
    })
}

/// `left == right`.
pub(crate) fn equal(state: &State, left: &Value, right: &Value) -> Result<bool, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        if left.len() == right.len() {
            state.consume_fuel(left.len() as u64 / 64)?;
        }
        return Ok(left == right);
    }
    let (Some(_), Some(_)) = (left.as_object(), right.as_object()) else {
        return Ok(left == right);
    };
    state.consume_fuel(1)?;
    if let (Some(left), Some(right)) = (list(left), list(right)) {
        return equal_items(state, left, right);
    }
    if let (Some(left), Some(right)) = (tuple(left), tuple(right)) {
        return equal_items(state, left, right);
    }
    if let (Some(left), Some(right)) =
        (left.downcast_object_ref::<Dict>(), right.downcast_object_ref::<Dict>())
    {
        if left.entries().len() != right.entries().len() {
            return Ok(false);
        }
        for (key, value) in left.entries() {
            match right.get(key) {
                Some(other) if equal(state, value, other)? => {}
                _ => return Ok(false),
            }
        }
        return Ok(true);
    }
    Ok(false)
}

fn list(value: &Value) -> Option<&[Value]> {
    value.downcast_object_ref::<Vec<Value>>().map(|list| list.as_slice())
}

fn tuple(value: &Value) -> Option<&[Value]> {
    value.downcast_object_ref::<Tuple>().map(|tuple| &**tuple)
}

fn equal_items(state: &State, left: &[Value], right: &[Value]) -> Result<bool, Error> {
    if left.len() != right.len() {
        return Ok(false);
    }
    state.consume_fuel(left.len() as u64 / 4)?;
    for (left, right) in left.iter().zip(right) {
        if !equal(state, left, right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two values that Python can order; `None` where one is NaN.
pub(crate) fn order(
    state: &State,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<Option<Ordering>, Error> {
    state.consume_fuel(1)?;
    let number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if number(left) && number(right) {
        let nan = |value: &Value| !value.is_integer() && f64::try_from(value.clone()).is_ok_and(f64::is_nan);
        return Ok((!nan(left) && !nan(right)).then(|| left.cmp(right)));
    }
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        state.consume_fuel(left.len().min(right.len()) as u64 / 64)?;
        return Ok(Some(left.cmp(right)));
    }
    let pair = match (list(left), list(right)) {
        (Some(left), Some(right)) => Some((left, right)),
        _ => match (tuple(left), tuple(right)) {
            (Some(left), Some(right)) => Some((left, right)),
            _ => None,
        },
    };
    if let Some((left, right)) = pair {
        for (left, right) in left.iter().zip(right) {
            if !equal(state, left, right)? {
                return order(state, operator, left, right);
            }
        }
        return Ok(Some(left.len().cmp(&right.len())));
    }
    for value in [left, right] {
        if value.is_undefined() {
            return Err(undefined(value));
        }
    }
    Err(type_error(format!(
        "'{operator}' not supported between instances of '{}' and '{}'",
        type_name(left),
        type_name(right)
    )))
}

/// `item in container`.
pub(crate) fn contains(state: &State, container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        let Some(part) = item.as_str() else {
            return Err(type_error(format!(
                "'in <string>' requires string as left operand, not {}",
                type_name(item)
            )));
        };
        state.consume_fuel(text.len() as u64 / 64)?;
        return Ok(text.contains(part));
    }
    if let Some(dict) = container.downcast_object_ref::<Dict>() {
        check_key(item)?;
        return Ok(dict.contains(item));
    }
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(list) = list(container).or_else(|| tuple(container)) {
        return contains_item(state, list, item);
    }
    let candidates = items(state, container).map_err(|error| match container.as_object() {
        Some(_) => error,
        None => type_error(format!("argument of type '{}' is not iterable", type_name(container))),
    })?;
    contains_item(state, &candidates, item)
}

fn contains_item(state: &State, candidates: &[Value], item: &Value) -> Result<bool, Error> {
    state.consume_fuel(candidates.len() as u64 / 4)?;
    for candidate in candidates {
        if equal(state, candidate, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sorts stably by a key. (The standard library's sorts may panic when an order is inconsistent,
/// which a mixture of values can be.)
pub(crate) fn sort_by_key<T: Clone>(
    state: &State,
    values: &mut Vec<T>,
    key: impl Fn(&T) -> &Value + Copy,
) -> Result<(), Error> {
    if values.len() < 2 {
        return Ok(());
    }
    let mut right = values.split_off(values.len() / 2);
    sort_by_key(state, values, key)?;
    sort_by_key(state, &mut right, key)?;
    let mut merged = Vec::with_capacity(values.len() + right.len());
    let (mut left, mut right) = (values.drain(..).peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let later = order(state, "<", key(b), key(a))?.is_some_and(Ordering::is_lt);
        merged.extend(if later { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    *values = merged;
    Ok(())
}
