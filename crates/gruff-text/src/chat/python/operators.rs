//! Operators that Python defines differently from minijinja. [`super::super::lower`] turns a
//! template's operators into calls of these.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::format::percent;
use super::text::{self, MAX_TEXT, too_long};
use super::value::{
    Dict, Range, check_storable, is_iterable, is_opaque, items, limit_error, type_error, type_name,
};
use super::{Arguments, undefined};

/// `a + b + …`, from the left.
pub(crate) fn add(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let (first, rest) = args.split_first().ok_or_else(|| type_error("a sum of nothing"))?;
    let mut total = first.clone();
    for value in rest {
        total = add_two(state, &total, value)?;
    }
    Ok(total)
}

fn add_two(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        if a.len() + b.len() > MAX_TEXT {
            return Err(too_long());
        }
        text::charge(state, a.len() + b.len())?;
        return Ok(add_text((left, a), (right, b)));
    }
    if let (Some(a), Some(b)) =
        (left.downcast_object_ref::<Vec<Value>>(), right.downcast_object_ref::<Vec<Value>>())
    {
        state.consume_fuel((a.len() + b.len()) as u64 / 8)?;
        return Ok(Value::from([a.as_slice(), b.as_slice()].concat()));
    }
    if let (Some(a), Some(b)) = (left.downcast_object_ref::<Tuple>(), right.downcast_object_ref::<Tuple>()) {
        state.consume_fuel((a.len() + b.len()) as u64 / 8)?;
        return Ok(Value::from(Tuple::from([&**a, &**b].concat())));
    }
    arithmetic("+", left, right, i128::checked_add, |a, b| a + b)
}

/// Markup (`|safe`) escapes what is added to it.
fn add_text((left, a): (&Value, &str), (right, b): (&Value, &str)) -> Value {
    match (left.is_safe(), right.is_safe()) {
        (false, false) => Value::from([a, b].concat()),
        (true, true) => Value::from_safe_string([a, b].concat()),
        (true, false) => Value::from_safe_string(format!("{a}{}", escape(b))),
        (false, true) => Value::from_safe_string(format!("{}{b}", escape(a))),
    }
}

/// markupsafe's escaping.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `left * right`.
pub(crate) fn multiply(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let (left, right) = pair(args)?;
    let repeats = |value: &Value| {
        value.as_str().is_some() || value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some()
    };
    let (repeated, count) = if repeats(left) {
        (left, right)
    } else if repeats(right) {
        (right, left)
    } else {
        return arithmetic("*", left, right, i128::checked_mul, |a, b| a * b);
    };
    let Some(count) = integer(count) else {
        return Err(type_error(format!("can't multiply sequence by non-int of type '{}'", type_name(count))));
    };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = repeated.as_str() {
        let len = text.len().saturating_mul(count);
        if len > MAX_TEXT {
            return Err(too_long());
        }
        text::charge(state, len)?;
        let result = text.repeat(count);
        return Ok(if repeated.is_safe() { Value::from_safe_string(result) } else { Value::from(result) });
    }
    let parts = items(state, repeated)?;
    // Nothing, however often, is nothing: the iterator below would turn around forever.
    let count = if parts.is_empty() { 0 } else { count };
    let len = parts.len().saturating_mul(count);
    if len > MAX_TEXT / 64 {
        return Err(limit_error(format!("a list of more than {} items", MAX_TEXT / 64)));
    }
    state.consume_fuel(len as u64 / 4)?;
    let result: Vec<Value> = std::iter::repeat_n(parts, count).flatten().collect();
    Ok(if repeated.is_tuple() { Value::from(Tuple::from(result)) } else { Value::from(result) })
}

/// `left % right`: remainder, or printf-style formatting.
pub(crate) fn modulo(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let (left, right) = pair(args)?;
    if let Some(format) = left.as_str() {
        let text = percent(format, right)?;
        text::charge(state, text.len())?;
        return Ok(Value::from(text));
    }
    if matches!(right.kind(), ValueKind::Number | ValueKind::Bool) && !right.is_true() {
        return Err(type_error("integer modulo by zero"));
    }
    arithmetic(
        "%",
        left,
        right,
        |a, b| {
            let rest = a.checked_rem(b)?;
            Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        },
        |a, b| {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        },
    )
}

/// `-value`.
pub(crate) fn negate(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    match (integer(&value), float(&value)) {
        (Some(number), _) => match number.checked_neg() {
            Some(number) => Ok(i64::try_from(number).map_or(Value::from(number), Value::from)),
            None => Err(limit_error("an integer beyond 128 bits")),
        },
        (None, Some(number)) => Ok(Value::from(-number)),
        _ if value.is_undefined() => Err(undefined(&value)),
        _ => Err(type_error(format!("bad operand type for unary -: '{}'", type_name(&value)))),
    }
}

fn arithmetic(
    operator: &str,
    left: &Value,
    right: &Value,
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        return match integers(a, b) {
            Some(result) => Ok(i64::try_from(result).map_or(Value::from(result), Value::from)),
            None => Err(limit_error("an integer beyond 128 bits")),
        };
    }
    if let (Some(a), Some(b)) = (float(left), float(right)) {
        return Ok(Value::from(floats(a, b)));
    }
    for value in [left, right] {
        if value.is_undefined() {
            return Err(undefined(value));
        }
    }
    Err(type_error(match (left.as_str(), operator) {
        (Some(_), "+") => format!("can only concatenate str (not \"{}\") to str", type_name(right)),
        _ => format!(
            "unsupported operand type(s) for {operator}: '{}' and '{}'",
            type_name(left),
            type_name(right)
        ),
    }))
}

/// An int, or a bool as 0 or 1.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// Any number as a float.
pub(crate) fn float(value: &Value) -> Option<f64> {
    match integer(value) {
        Some(integer) => Some(integer as f64),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    }
}

/// `a ~ b ~ …`: everything as text.
pub(crate) fn concat(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let mut out = String::new();
    for value in args {
        let part = text::str(value)?;
        if out.len() + part.len() > MAX_TEXT {
            return Err(too_long());
        }
        out.push_str(&part);
    }
    text::charge(state, out.len())?;
    Ok(Value::from(out))
}

/// `value[key]` of a key that is computed: a list's or text's item, or a dict's entry.
pub(crate) fn item(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let (value, key) = pair(args)?;
    let Some(text) = value.as_str() else {
        return value.get_item(key).map_err(|_| undefined(value));
    };
    state.consume_fuel(text.len() as u64 / 64)?;
    let Some(at) = integer(key) else {
        return Ok(Value::UNDEFINED);
    };
    let at = if at < 0 { at.saturating_add(text.chars().count() as i128) } else { at };
    let c = usize::try_from(at).ok().and_then(|at| text.chars().nth(at));
    Ok(c.map_or(Value::UNDEFINED, Value::from))
}

/// `value[start:stop:step]`.
pub(crate) fn slice(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, start, stop, step] = args else {
        return Err(type_error("a slice takes a value and three bounds"));
    };
    if value.is_undefined() {
        return Err(undefined(value));
    }
    let bound = |bound: &Value| match bound.is_none() {
        true => Some(None),
        false => integer(bound).map(Some),
    };
    let (Some(start), Some(stop), Some(step)) = (bound(start), bound(stop), bound(step)) else {
        return Err(type_error("slice indices must be integers or None"));
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(type_error("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        state.consume_fuel(text.len() as u64 / 64)?;
        let chars: Vec<char> = text.chars().collect();
        let part: String = positions(chars.len(), start, stop, step).filter_map(|at| chars.get(at)).collect();
        return Ok(if value.is_safe() { Value::from_safe_string(part) } else { Value::from(part) });
    }
    let sliceable = value.is_tuple()
        || value.downcast_object_ref::<Vec<Value>>().is_some()
        || value.downcast_object_ref::<Range>().is_some();
    if !sliceable {
        return Err(type_error(format!("'{}' object is not subscriptable", type_name(value))));
    }
    let all = items(state, value)?;
    let part: Vec<Value> =
        positions(all.len(), start, stop, step).filter_map(|at| all.get(at).cloned()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(part)) } else { Value::from(part) })
}

/// The positions that a slice takes from `len` items.
fn positions(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |bound: i128| {
        let bound = if bound < 0 { bound.saturating_add(len) } else { bound };
        bound.clamp(lowest, highest)
    };
    let (first, end) = if step > 0 {
        (start.map_or(0, clamp), stop.map_or(len, clamp))
    } else {
        (start.map_or(len - 1, clamp), stop.map_or(-1, clamp))
    };
    let mut at = first;
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < end } else { at > end };
        let position = inside.then(|| usize::try_from(at).ok()).flatten()?;
        at = at.saturating_add(step);
        Some(position)
    })
}

/// What a `for` loop runs over: anything iterable, and nothing else.
pub(crate) fn iterate(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    if value.as_object().is_some_and(|_| is_opaque(&value)) || !is_iterable(&value) {
        return Err(type_error(format!("'{}' object is not iterable", type_name(&value))));
    }
    let text = value.as_str().map_or(0, str::len) as u64 / 16;
    state.consume_fuel(text + value.len().unwrap_or(0) as u64 / 4)?;
    Ok(value)
}

/// The value of `{% set name = value %}`.
pub(crate) fn store(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    check_storable(state, &value, false)?;
    Ok(value)
}

/// The value of `{% set namespace.name = value %}`.
pub(crate) fn store_attribute(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    check_storable(state, &value, true)?;
    Ok(value)
}

/// `{key: value}`, from the map that minijinja built.
pub(crate) fn dict_literal(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let map = args.first().cloned().unwrap_or_default();
    let pairs: Vec<(Value, Value)> =
        map.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten().collect();
    let dict = Dict::new(pairs)?;
    state.consume_fuel(dict.fuel())?;
    Ok(Value::from_object(dict))
}

fn pair(args: Arguments<'_>) -> Result<(&Value, &Value), Error> {
    match args {
        [left, right] => Ok((left, right)),
        _ => Err(type_error("an operator takes two operands")),
    }
}
