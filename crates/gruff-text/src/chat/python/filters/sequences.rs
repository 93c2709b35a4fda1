//! Filters over sequences and dicts.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::super::arguments::{bind, split as split_arguments};
use super::super::methods::pair;
use super::super::operators::{add, float, integer};
use super::super::text::{self, MAX_TEXT, too_long};
use super::super::value::{Dict, Generator, items, type_error, type_name};
use super::super::{Arguments, compare, undefined};
use super::Filter;

pub(super) const FILTERS: [(&str, Filter); 19] = [
    ("batch", batch),
    ("dictsort", dictsort),
    ("first", first),
    ("groupby", groupby),
    ("join", join),
    ("last", last),
    ("list", list),
    ("map", map),
    ("max", |state, args| extreme(state, args, true)),
    ("min", |state, args| extreme(state, args, false)),
    ("reject", |state, args| select(state, args, false)),
    ("rejectattr", |state, args| selectattr(state, args, false)),
    ("reverse", reverse),
    ("select", |state, args| select(state, args, true)),
    ("selectattr", |state, args| selectattr(state, args, true)),
    ("slice", slice),
    ("sort", sort),
    ("sum", sum),
    ("unique", unique),
];

pub(super) fn length(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    value
        .len()
        .map(Value::from)
        .ok_or_else(|| type_error(format!("object of type '{}' has no len()", type_name(&value))))
}

pub(super) fn items_filter(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    match value.downcast_object_ref::<Dict>() {
        Some(dict) => Ok(Generator::value(dict.entries().iter().map(pair).collect())),
        None if value.is_undefined() => Ok(Generator::value(Vec::new())),
        None => Err(type_error("Can only get item pairs from a mapping.")),
    }
}

fn input(state: &State, args: Arguments<'_>) -> Result<Vec<Value>, Error> {
    items(state, args.first().unwrap_or(&Value::UNDEFINED))
}

/// [`input`] of the filters for which whatever is false is empty.
fn input_if_true(state: &State, args: Arguments<'_>) -> Result<Vec<Value>, Error> {
    match args.first() {
        Some(value) if value.is_true() => {
            let values = items(state, value)?;
            // Each is passed to a filter or test.
            state.consume_fuel(values.len() as u64 * 4)?;
            Ok(values)
        }
        _ => Ok(Vec::new()),
    }
}

fn first(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    Ok(input(state, args)?.into_iter().next().unwrap_or_default())
}

fn last(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    if value.downcast_object_ref::<Generator>().is_some() {
        return Err(type_error("'generator' object is not reversible"));
    }
    Ok(items(state, &value)?.pop().unwrap_or_default())
}

fn list(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    Ok(Value::from(input(state, args)?))
}

fn join(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, separator, attribute] = bind("join", args, ["value", "d", "attribute"], 1)?;
    let separator = text::str(&separator.unwrap_or(Value::from("")))?;
    let mut out = String::new();
    for (at, item) in input(state, args)?.iter().enumerate() {
        let part = match &attribute {
            Some(attribute) if !attribute.is_none() => text::str(&get(item, attribute, None)?)?,
            _ => text::str(item)?,
        };
        if out.len() + separator.len() + part.len() > MAX_TEXT {
            return Err(too_long());
        }
        if at > 0 {
            out.push_str(&separator);
        }
        out.push_str(&part);
    }
    text::charge(state, out.len())?;
    Ok(Value::from(out))
}

/// `item.a.b.0`: each part a subscript, a missing one replaced by the default.
fn get(item: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let mut value = item.clone();
    let subscript = |value: &Value, key: &Value| {
        let found = value.get_item(key)?;
        Ok::<_, Error>(match default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        })
    };
    let Some(path) = path.as_str() else {
        return subscript(&value, path);
    };
    for part in path.split('.') {
        let key = match part.parse::<u32>() {
            Ok(index) => Value::from(index),
            Err(_) => Value::from(part),
        };
        value = subscript(&value, &key)?;
    }
    Ok(value)
}

fn map(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let values = input_if_true(state, args)?;
    let (positional, named) = split_arguments(args.get(1..).unwrap_or_default())?;
    let keyword = |name: &str| named.iter().find(|(key, _)| key == name).map(|(_, v)| v);
    let mut mapped = Vec::with_capacity(values.len().min(1024));
    match (positional.split_first(), keyword("attribute")) {
        (None, Some(attribute)) => {
            for value in &values {
                mapped.push(get(value, attribute, keyword("default"))?);
            }
        }
        (Some((name, rest)), _) => {
            let name = name.as_str().ok_or_else(|| type_error("map: a filter's name is a str"))?;
            let tail = args.get(2..).unwrap_or(rest);
            for value in values {
                let mut call = vec![value];
                call.extend_from_slice(tail);
                mapped.push(state.apply_filter(name, &call)?);
            }
        }
        (None, None) => return Err(type_error("map requires a filter argument")),
    }
    Ok(Generator::value(mapped))
}

fn select(state: &mut State, args: Arguments<'_>, wanted: bool) -> Result<Value, Error> {
    let mut kept = Vec::new();
    for value in input_if_true(state, args)? {
        if holds(state, &value, args.get(1..).unwrap_or_default())? == wanted {
            kept.push(value);
        }
    }
    Ok(Generator::value(kept))
}

fn selectattr(state: &mut State, args: Arguments<'_>, wanted: bool) -> Result<Value, Error> {
    let attribute = args.get(1).ok_or_else(|| type_error("Missing parameter for attribute name"))?;
    let mut kept = Vec::new();
    for value in input_if_true(state, args)? {
        let part = get(&value, attribute, None)?;
        if holds(state, &part, args.get(2..).unwrap_or_default())? == wanted {
            kept.push(value);
        }
    }
    Ok(Generator::value(kept))
}

/// Whether a value passes the test that `test` names; without a test, whether it is true.
fn holds(state: &mut State, value: &Value, test: &[Value]) -> Result<bool, Error> {
    let Some((name, rest)) = test.split_first() else {
        return Ok(value.is_true());
    };
    let name = name.as_str().ok_or_else(|| type_error("a test's name is a str"))?;
    let mut call = vec![value.clone()];
    call.extend_from_slice(rest);
    state.perform_test(name, &call)
}

/// A sort key: text in lower case unless case matters.
fn folded(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// Pairs each value with its sort key.
fn keyed(
    values: Vec<Value>,
    attribute: Option<&Value>,
    case_sensitive: bool,
    default: Option<&Value>,
) -> Result<Vec<(Value, Value)>, Error> {
    values
        .into_iter()
        .map(|value| {
            let key = match attribute.filter(|attribute| !attribute.is_none()) {
                Some(attribute) => get(&value, attribute, default)?,
                None => value.clone(),
            };
            Ok((folded(key, case_sensitive), value))
        })
        .collect()
}

fn sort(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, reverse, case_sensitive, attribute] =
        bind("sort", args, ["value", "reverse", "case_sensitive", "attribute"], 1)?;
    let values = input(state, args)?;
    let case_sensitive = flag(case_sensitive);
    let mut pairs = match attribute.filter(|attribute| !attribute.is_none()) {
        None => keyed(values, None, case_sensitive, None)?,
        Some(attributes) => sort_keyed(values, &attributes, case_sensitive)?,
    };
    sort_pairs(state, &mut pairs, flag(reverse))?;
    Ok(Value::from(pairs.into_iter().map(|(_, value)| value).collect::<Vec<_>>()))
}

/// Pairs each value with the list of its attributes, which are named with commas between them.
fn sort_keyed(
    values: Vec<Value>,
    attributes: &Value,
    case_sensitive: bool,
) -> Result<Vec<(Value, Value)>, Error> {
    let names: Vec<Value> = match attributes.as_str() {
        Some(names) => names.split(',').map(Value::from).collect(),
        None => vec![attributes.clone()],
    };
    values
        .into_iter()
        .map(|value| {
            let keys = names.iter().map(|name| Ok(folded(get(&value, name, None)?, case_sensitive)));
            Ok((Value::from(keys.collect::<Result<Vec<_>, Error>>()?), value))
        })
        .collect()
}

/// Sorts by key; in reverse, equal keys keep their order, as in Python.
fn sort_pairs(state: &State, pairs: &mut Vec<(Value, Value)>, reverse: bool) -> Result<(), Error> {
    if reverse {
        pairs.reverse();
    }
    compare::sort_by_key(state, pairs, |pair| &pair.0)?;
    if reverse {
        pairs.reverse();
    }
    Ok(())
}

fn dictsort(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, case_sensitive, by, reverse] =
        bind("dictsort", args, ["value", "case_sensitive", "by", "reverse"], 1)?;
    let value = value.unwrap_or_default();
    let Some(dict) = value.downcast_object_ref::<Dict>() else {
        return Err(match value.is_undefined() {
            true => undefined(&value),
            false => type_error(format!("'{}' object has no attribute 'items'", type_name(&value))),
        });
    };
    let by_value = match by.as_ref().map(|by| by.as_str()) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        _ => return Err(type_error("You can only sort by either \"key\" or \"value\"")),
    };
    let case_sensitive = flag(case_sensitive);
    let mut pairs: Vec<(Value, Value)> = dict
        .entries()
        .iter()
        .map(|entry| {
            let key = if by_value { &entry.1 } else { &entry.0 };
            (folded(key.clone(), case_sensitive), pair(entry))
        })
        .collect();
    state.consume_fuel(pairs.len() as u64)?;
    sort_pairs(state, &mut pairs, flag(reverse))?;
    Ok(Value::from(pairs.into_iter().map(|(_, value)| value).collect::<Vec<_>>()))
}

fn unique(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, case_sensitive, attribute] = bind("unique", args, ["value", "case_sensitive", "attribute"], 1)?;
    let values = input(state, args)?;
    state.consume_fuel(values.len() as u64 * 2)?;
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for (key, value) in keyed(values, attribute.as_ref(), flag(case_sensitive), None)? {
        if key.as_object().is_some() && !key.is_tuple() {
            return Err(type_error(format!("unhashable type: '{}'", type_name(&key))));
        }
        if seen.insert(key) {
            kept.push(value);
        }
    }
    Ok(Generator::value(kept))
}

fn extreme(state: &mut State, args: Arguments<'_>, largest: bool) -> Result<Value, Error> {
    let [_, case_sensitive, attribute] = bind("min", args, ["value", "case_sensitive", "attribute"], 1)?;
    let values = input(state, args)?;
    let mut best: Option<(Value, Value)> = None;
    for (key, value) in keyed(values, attribute.as_ref(), flag(case_sensitive), None)? {
        let better = match &best {
            None => true,
            Some((best, _)) => compare::order(state, "<", &key, best)?
                .is_some_and(|order| if largest { order.is_gt() } else { order.is_lt() }),
        };
        if better {
            best = Some((key, value));
        }
    }
    Ok(best.map(|(_, value)| value).unwrap_or_default())
}

fn groupby(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, attribute, default, case_sensitive] =
        bind("groupby", args, ["value", "attribute", "default", "case_sensitive"], 2)?;
    let values = input(state, args)?;
    let case_sensitive = flag(case_sensitive);
    let mut pairs = keyed(values, attribute.as_ref(), case_sensitive, default.as_ref())?;
    sort_pairs(state, &mut pairs, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, value) in pairs {
        match groups.last_mut() {
            Some((last, group)) if compare::equal(state, last, &key)? => group.push(value),
            _ => groups.push((key, vec![value])),
        }
    }
    let attribute = attribute.unwrap_or_default();
    let mut tuples = Vec::with_capacity(groups.len());
    for (key, group) in groups {
        // Where case does not matter, the group is called as its first member writes it.
        let name = match group.first() {
            Some(first) if !case_sensitive => get(first, &attribute, default.as_ref())?,
            _ => key,
        };
        tuples.push(Value::from(Tuple::from([name, Value::from(group)])));
    }
    Ok(Value::from(tuples))
}

fn sum(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, attribute, start] = bind("sum", args, ["iterable", "attribute", "start"], 1)?;
    let mut total = start.unwrap_or(Value::from(0));
    for item in input(state, args)? {
        let item = match attribute.as_ref().filter(|attribute| !attribute.is_none()) {
            Some(attribute) => get(&item, attribute, None)?,
            None => item,
        };
        if float(&total).is_none() && total.as_str().is_some() {
            return Err(type_error("sum() can't sum strings [use ''.join(seq) instead]"));
        }
        total = add(state, &[total, item])?;
    }
    Ok(total)
}

fn reverse(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    if let Some(text) = value.as_str().filter(|_| value.kind() == ValueKind::String) {
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut values = items(state, &value).map_err(|_| type_error("argument must be iterable"))?;
    values.reverse();
    Ok(Generator::value(values))
}

fn batch(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, size, fill] = bind("batch", args, ["value", "linecount", "fill_with"], 2)?;
    let size = positive("batch", size)?;
    let values = input(state, args)?;
    let mut batches = Vec::new();
    for chunk in values.chunks(size) {
        let mut chunk = chunk.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none()) {
            state.consume_fuel((size - chunk.len()) as u64)?;
            chunk.resize(size, fill.clone());
        }
        batches.push(Value::from(chunk));
    }
    Ok(Generator::value(batches))
}

fn slice(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, count, fill] = bind("slice", args, ["value", "slices", "fill_with"], 2)?;
    let count = positive("slice", count)?;
    state.consume_fuel(count as u64)?;
    let mut values = input(state, args)?.into_iter();
    let (each, larger) = (values.len() / count, values.len() % count);
    let mut slices = Vec::with_capacity(count.min(1024));
    for at in 0..count {
        let take = each + usize::from(at < larger);
        let mut part: Vec<Value> = values.by_ref().take(take).collect();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none() && at >= larger) {
            part.push(fill.clone());
        }
        slices.push(Value::from(part));
    }
    Ok(Generator::value(slices))
}

fn positive(filter: &str, value: Option<Value>) -> Result<usize, Error> {
    value
        .as_ref()
        .and_then(integer)
        .and_then(|number| usize::try_from(number).ok())
        .filter(|number| (1..=MAX_TEXT).contains(number))
        .ok_or_else(|| type_error(format!("{filter}: the count must be a positive integer")))
}
