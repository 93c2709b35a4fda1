//! `tojson` as transformers defines it: Python's `json.dumps(value, ensure_ascii, indent,
//! separators, sort_keys)` with nothing escaped for HTML.

use std::fmt::Write;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::arguments::bind;
use super::compare;
use super::text::{Bounded, float, too_long};
use super::value::{Dict, type_error, type_name};

struct Layout {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter.
pub(crate) fn tojson(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, ensure_ascii, indent, separators, sort_keys] =
        bind("tojson", args, ["value", "ensure_ascii", "indent", "separators", "sort_keys"], 1)?;
    let value = value.unwrap_or_default();
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => Some(text.to_owned()),
            (_, Some(count)) => Some(" ".repeat(usize::try_from(count).unwrap_or(0).min(1024))),
            _ => return Err(type_error("tojson: indent must be a number or a string")),
        },
    };
    let (item_separator, key_separator) = match separators.filter(|pair| !pair.is_none()) {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => separator_pair(&pair)?,
    };
    let layout = Layout {
        ensure_ascii: ensure_ascii.is_some_and(|flag| flag.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
    };
    let mut out = Bounded(String::new());
    write_value(state, &mut out, &layout, &value, 0)?;
    state.consume_fuel(out.0.len() as u64 / 4)?;
    Ok(Value::from(out.0))
}

fn separator_pair(pair: &Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = pair.try_iter()?.collect();
    match parts.as_slice() {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok((item.to_owned(), key.to_owned())),
            _ => Err(type_error("tojson: separators must be two strings")),
        },
        _ => Err(type_error("tojson: separators must be two strings")),
    }
}

fn write_value(
    state: &State,
    out: &mut Bounded,
    layout: &Layout,
    value: &Value,
    level: usize,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => put(out, "null"),
        ValueKind::Bool => put(out, if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => put(out, &number(value)),
        ValueKind::String => write_string(out, layout, value.as_str().unwrap_or_default()),
        _ => {
            if let Some(dict) = value.downcast_object_ref::<Dict>() {
                return write_dict(state, out, layout, dict, level);
            }
            if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
                return write_list(state, out, layout, list, level);
            }
            if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
                return write_list(state, out, layout, tuple, level);
            }
            Err(type_error(format!("Object of type {} is not JSON serializable", type_name(value))))
        }
    }
}

/// Numbers as JSON has them; infinities and NaN as Python writes them.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) if number.is_infinite() && number > 0.0 => "Infinity".to_owned(),
        Ok(number) if number.is_infinite() => "-Infinity".to_owned(),
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

fn write_list(
    state: &State,
    out: &mut Bounded,
    layout: &Layout,
    items: &[Value],
    level: usize,
) -> Result<(), Error> {
    if items.is_empty() {
        return put(out, "[]");
    }
    put(out, "[")?;
    for (at, item) in items.iter().enumerate() {
        between(out, layout, at, level + 1)?;
        write_value(state, out, layout, item, level + 1)?;
    }
    line(out, layout, level)?;
    put(out, "]")
}

fn write_dict(
    state: &State,
    out: &mut Bounded,
    layout: &Layout,
    dict: &Dict,
    level: usize,
) -> Result<(), Error> {
    if dict.entries().is_empty() {
        return put(out, "{}");
    }
    let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
    if layout.sort_keys {
        compare::sort_by_key(state, &mut entries, |entry| &entry.0)?;
    }
    put(out, "{")?;
    for (at, (key, value)) in entries.into_iter().enumerate() {
        between(out, layout, at, level + 1)?;
        match key.kind() {
            ValueKind::String => write_string(out, layout, key.as_str().unwrap_or_default())?,
            ValueKind::None => put(out, "\"null\"")?,
            ValueKind::Bool if key.is_true() => put(out, "\"true\"")?,
            ValueKind::Bool => put(out, "\"false\"")?,
            ValueKind::Number => put(out, &format!("\"{}\"", number(key)))?,
            _ => {
                return Err(type_error(format!(
                    "keys must be str, int, float, bool or None, not {}",
                    type_name(key)
                )));
            }
        }
        put(out, &layout.key_separator)?;
        write_value(state, out, layout, value, level + 1)?;
    }
    line(out, layout, level)?;
    put(out, "}")
}

fn between(out: &mut Bounded, layout: &Layout, at: usize, level: usize) -> Result<(), Error> {
    if at > 0 {
        put(out, &layout.item_separator)?;
    }
    line(out, layout, level)
}

fn line(out: &mut Bounded, layout: &Layout, level: usize) -> Result<(), Error> {
    if let Some(indent) = &layout.indent {
        put(out, "\n")?;
        for _ in 0..level {
            put(out, indent)?;
        }
    }
    Ok(())
}

fn write_string(out: &mut Bounded, layout: &Layout, text: &str) -> Result<(), Error> {
    put(out, "\"")?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escape = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            '\0'..='\u{1f}' => format!("\\u{:04x}", c as u32),
            c if layout.ensure_ascii && c > '\u{7e}' => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units);
                units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => continue,
        };
        put(out, text.get(plain..at).unwrap_or_default())?;
        put(out, &escape)?;
        plain = at + c.len_utf8();
    }
    put(out, text.get(plain..).unwrap_or_default())?;
    put(out, "\"")
}

fn put(out: &mut Bounded, text: &str) -> Result<(), Error> {
    out.write_str(text).map_err(|_| too_long())
}
