//! `str()` and `repr()`: values as Python prints them.

use std::fmt::{self, Write};

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::value::{Dict, Generator, Range, View, limit_error};

/// No text that a template makes may be longer.
pub(crate) const MAX_TEXT: usize = 64 << 20;

/// `str(value)`; undefined is empty, as Jinja prints it.
pub(crate) fn str(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = Bounded(String::new());
    write_str(&mut out, value).map_err(|_| too_long())?;
    Ok(out.0)
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = Bounded(String::new());
    write_repr(&mut out, value).map_err(|_| too_long())?;
    Ok(out.0)
}

pub(crate) fn too_long() -> Error {
    limit_error(format!("a text of more than {} MiB", MAX_TEXT >> 20))
}

/// Pays for a text of `len` bytes. Long ones cost more, or a few of them would fill the memory.
pub(crate) fn charge(state: &State, len: usize) -> Result<(), Error> {
    const LONG: usize = 4 << 20;
    let bytes_per_unit = if len < LONG { 64 } else { 8 };
    state.consume_fuel((len / bytes_per_unit) as u64)
}

/// A string that refuses to grow beyond [`MAX_TEXT`].
pub(crate) struct Bounded(pub(crate) String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

pub(crate) fn write_str(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

pub(crate) fn write_repr(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Bool | ValueKind::Number => write!(out, "{value}"),
        ValueKind::String if value.is_safe() => {
            out.write_str("Markup(")?;
            string(out, value.as_str().unwrap_or_default())?;
            out.write_str(")")
        }
        ValueKind::String => string(out, value.as_str().unwrap_or_default()),
        _ => container(out, value),
    }
}

fn container(out: &mut impl Write, value: &Value) -> fmt::Result {
    if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
        sequence(out, "[", list, "]")
    } else if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
        sequence(out, "(", tuple, if tuple.len() == 1 { ",)" } else { ")" })
    } else if let Some(view) = value.downcast_object_ref::<View>() {
        write!(out, "{}", view.name)?;
        sequence(out, "([", &view.items, "])")
    } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
        out.write_str("{")?;
        for (at, (key, value)) in dict.entries().iter().enumerate() {
            if at > 0 {
                out.write_str(", ")?;
            }
            write_repr(out, key)?;
            out.write_str(": ")?;
            write_repr(out, value)?;
        }
        out.write_str("}")
    } else if value.downcast_object_ref::<Generator>().is_some() {
        out.write_str("<generator object>")
    } else if let Some(range) = value.downcast_object_ref::<Range>() {
        write!(out, "{range:?}")
    } else {
        // Namespaces could hold themselves; their contents are never printed.
        write!(out, "<{}>", super::value::type_name(value))
    }
}

fn sequence(out: &mut impl Write, open: &str, items: &[Value], close: &str) -> fmt::Result {
    out.write_str(open)?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, item)?;
    }
    out.write_str(close)
}

/// `repr()` of a float: the shortest digits that read back the same, with an exponent below
/// 1e-4 and from 1e16 on.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        let mut text = number.to_string();
        if !text.contains('.') {
            text.push_str(".0");
        }
        return text;
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.unsigned_abs())
}

/// `repr()` of a string: single quotes unless it has some and no double ones.
pub(crate) fn string(out: &mut impl Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c => match c as u32 {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// Spaces other than U+0020, format and private-use characters and noncharacters: what `repr()`
/// escapes besides controls (Unicode categories Zs, Zl, Zp, Cf, Co). Characters that are not
/// assigned yet are printed, whatever Unicode version a Python has.
const UNPRINTABLE: [(u32, u32); 31] = [
    (0xa0, 0xa0),
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x1680, 0x1680),
    (0x180e, 0x180e),
    (0x2000, 0x200f),
    (0x2028, 0x202f),
    (0x205f, 0x206f),
    (0x3000, 0x3000),
    (0xe000, 0xf8ff),
    (0xfdd0, 0xfdef),
    (0xfeff, 0xfeff),
    (0xfff0, 0xfffb),
    (0xfffe, 0xffff),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0x1fffe, 0x1ffff),
    (0x2fffe, 0x2ffff),
    (0x3fffe, 0x3ffff),
    (0x40000, 0xe00ff),
    (0xe01f0, 0xeffff),
    (0xf0000, 0xfffff),
    (0x100000, 0x10ffff),
];

fn is_printable(c: char) -> bool {
    let code = c as u32;
    if code < 0x7f {
        return code >= 0x20;
    }
    let after = UNPRINTABLE.partition_point(|range| range.0 <= code);
    let inside = after.checked_sub(1).and_then(|at| UNPRINTABLE.get(at)).is_some_and(|range| code <= range.1);
    !c.is_control() && !inside
}

/// `str.isspace()` of a character: Unicode white space and the four separators U+001C-U+001F.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()` without arguments.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}
