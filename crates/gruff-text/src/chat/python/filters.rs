//! Jinja's filters with Python's semantics. Sequence filters are in [`sequences`].

mod sequences;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, State, Value};

use super::arguments::{bind, split as split_arguments};
use super::format::percent;
use super::operators::{escape, float, integer};
use super::strings;
use super::text::{self, MAX_TEXT, too_long};
use super::value::{Dict, Method, type_error, type_name};
use super::{Arguments, json, undefined};

/// A filter: its input first, then its arguments.
pub(crate) type Filter = fn(&mut State, Arguments<'_>) -> Result<Value, Error>;

const TEXT_FILTERS: [(&str, Filter); 29] = [
    ("abs", abs),
    ("attr", attr),
    ("capitalize", |state, args| method(state, args, "capitalize")),
    ("center", center),
    ("d", default),
    ("default", default),
    ("e", escape_filter),
    ("escape", escape_filter),
    ("float", to_float),
    ("forceescape", escape_filter),
    ("format", format),
    ("indent", indent),
    ("int", to_int),
    ("lower", |state, args| method(state, args, "lower")),
    ("pprint", pprint),
    ("replace", replace),
    ("round", round),
    ("safe", safe),
    ("string", string),
    ("striptags", striptags),
    ("title", title),
    ("tojson", json::tojson),
    ("trim", |state, args| method(state, args, "strip")),
    ("truncate", truncate),
    ("upper", |state, args| method(state, args, "upper")),
    ("wordcount", wordcount),
    ("count", sequences::length),
    ("length", sequences::length),
    ("items", sequences::items_filter),
];

/// Replaces minijinja's filters by these.
pub(crate) fn install(environment: &mut Environment<'static>) {
    for name in MINIJINJA_ONLY {
        environment.remove_filter(name);
    }
    for (name, filter) in TEXT_FILTERS.into_iter().chain(sequences::FILTERS) {
        super::super::environment::add_filter(environment, name, filter);
    }
}

/// Filters that Jinja does not have.
const MINIJINJA_ONLY: [&str; 5] = ["split", "lines", "bool", "zip", "chain"];

/// The input as text, kept markup if it is: Jinja's `soft_str`.
fn soft(args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    match value.kind() {
        ValueKind::String => Ok(value),
        _ => Ok(Value::from(text::str(&value)?)),
    }
}

/// A filter that is a string method.
fn method(state: &mut State, args: Arguments<'_>, name: &str) -> Result<Value, Error> {
    let value = soft(args)?;
    let text = value.as_str().unwrap_or_default();
    strings::call(state, &value, text, name, args.get(1..).unwrap_or_default())
}

fn center(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [_, width] = bind("center", args, ["value", "width"], 1)?;
    let value = soft(args)?;
    let text = value.as_str().unwrap_or_default();
    let width = width.unwrap_or(Value::from(80));
    strings::call(state, &value, text, "center", &[width])
}

fn string(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    soft(args)
}

fn safe(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    Ok(Value::from_safe_string(value.as_str().unwrap_or_default().to_owned()))
}

fn escape_filter(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    if value.is_safe() {
        return Ok(value);
    }
    let escaped = escape(value.as_str().unwrap_or_default());
    text::charge(state, escaped.len())?;
    Ok(Value::from_safe_string(escaped))
}

fn default(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, default, boolean] = bind("default", args, ["value", "default_value", "boolean"], 1)?;
    let value = value.unwrap_or_default();
    let falsy = boolean.is_some_and(|flag| flag.is_true()) && !value.is_true();
    Ok(if value.is_undefined() || falsy { default.unwrap_or(Value::from("")) } else { value })
}

/// `getattr(value, name)`: a dict's keys are no attributes.
fn attr(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, name] = bind("attr", args, ["obj", "name"], 2)?;
    let (value, name) = (value.unwrap_or_default(), name.unwrap_or_default());
    let found = value.get_attr(name.as_str().unwrap_or_default())?;
    let is_method = found.downcast_object_ref::<Method>().is_some();
    Ok(match value.downcast_object_ref::<Dict>() {
        Some(_) if !is_method => Value::UNDEFINED,
        _ => found,
    })
}

fn abs(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = args.first().cloned().unwrap_or_default();
    match (integer(&value), float(&value)) {
        (Some(number), _) => Ok(whole(number.saturating_abs())),
        (None, Some(number)) => Ok(Value::from(number.abs())),
        _ => Err(type_error(format!("bad operand type for abs(): '{}'", type_name(&value)))),
    }
}

fn whole(number: i128) -> Value {
    i64::try_from(number).map_or(Value::from(number), Value::from)
}

fn to_int(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, default, base] = bind("int", args, ["value", "default", "base"], 1)?;
    let value = value.unwrap_or_default();
    let default = default.unwrap_or(Value::from(0));
    if value.is_undefined() {
        return Err(undefined(&value));
    }
    let base = base.as_ref().and_then(integer).unwrap_or(10);
    if let Some(text) = value.as_str() {
        let text = text::strip(text);
        let parsed = parse_int(text, base);
        let parsed = parsed.or_else(|| parse_float(text).and_then(truncated));
        return Ok(parsed.map_or(default, whole));
    }
    let number = integer(&value).or_else(|| float(&value).and_then(truncated));
    Ok(number.map_or(default, whole))
}

fn truncated(number: f64) -> Option<i128> {
    (number.is_finite() && number.abs() < 1e38).then_some(number.trunc() as i128)
}

fn parse_int(text: &str, base: i128) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let lower = digits.to_ascii_lowercase();
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    if digits.starts_with(['+', '-', '_']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    let number = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -number } else { number })
}

fn parse_float(text: &str) -> Option<f64> {
    let lower = text.to_ascii_lowercase();
    let body = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    if body.starts_with('_') || body.ends_with('_') || body.contains("__") {
        return None;
    }
    lower.replace('_', "").parse().ok()
}

fn to_float(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, default] = bind("float", args, ["value", "default"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(undefined(&value));
    }
    let number = match value.as_str() {
        Some(text) => parse_float(text::strip(text)),
        None => float(&value),
    };
    Ok(number.map_or_else(|| default.unwrap_or(Value::from(0.0)), Value::from))
}

fn round(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, precision, method] = bind("round", args, ["value", "precision", "method"], 1)?;
    let value = value.unwrap_or_default();
    let precision = precision.as_ref().and_then(integer).unwrap_or(0).clamp(-30, 30) as i32;
    let Some(number) = float(&value) else {
        return Err(type_error(format!("type {} doesn't define __round__ method", type_name(&value))));
    };
    let scale = 10f64.powi(precision);
    let method = method.unwrap_or(Value::from("common"));
    match method.as_str() {
        Some("common") if precision >= 0 && integer(&value).is_some() => {
            Ok(whole(integer(&value).unwrap_or_default()))
        }
        Some("common") if precision >= 0 => {
            // Formatting rounds the exact binary value, as Python's round() does.
            let digits = precision.unsigned_abs() as usize;
            let rounded = format!("{number:.digits$}").parse().unwrap_or(number);
            Ok(Value::from(rounded))
        }
        Some("common") => {
            let rounded = (number * scale).round_ties_even() / scale;
            Ok(match integer(&value) {
                Some(_) => whole(rounded as i128),
                None => Value::from(rounded),
            })
        }
        Some("ceil") => Ok(Value::from((number * scale).ceil() / scale)),
        Some("floor") => Ok(Value::from((number * scale).floor() / scale)),
        _ => Err(type_error("method must be common, ceil or floor")),
    }
}

fn replace(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, old, new, count] = bind("replace", args, ["s", "old", "new", "count"], 3)?;
    let count = count.as_ref().and_then(integer).unwrap_or(-1);
    let text = |value: Option<Value>| text::str(&value.unwrap_or_default());
    let (value, old, new) = (text(value)?, text(old)?, text(new)?);
    Ok(Value::from(strings::replace(state, &value, &old, &new, count)?))
}

fn indent(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, width, first, blank] = bind("indent", args, ["s", "width", "first", "blank"], 1)?;
    let value = value.unwrap_or_default();
    let Some(text) = value.as_str() else {
        if value.is_undefined() {
            return Err(undefined(&value));
        }
        return Err(type_error(format!(
            "indent: unsupported operand type(s) for +=: '{}' and 'str'",
            type_name(&value)
        )));
    };
    let width = width.unwrap_or(Value::from(4));
    let indention = match (width.as_str(), integer(&width)) {
        (Some(text), _) => text.to_owned(),
        (None, Some(count)) => " ".repeat(usize::try_from(count).unwrap_or(0).min(4096)),
        _ => return Err(type_error("indent: the width must be an int or a str")),
    };
    let [first, blank] = [first, blank].map(|flag| flag.is_some_and(|flag| flag.is_true()));
    let closed = format!("{text}\n");
    let lines = strings::split_lines(&closed, false);
    let len = text.len().saturating_add(lines.len().saturating_mul(indention.len()));
    if len > MAX_TEXT {
        return Err(too_long());
    }
    text::charge(state, len)?;
    let mut out = String::with_capacity(len);
    for (at, line) in lines.iter().enumerate() {
        let indented = match at {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        if at > 0 {
            out.push('\n');
        }
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(match value.is_safe() {
        true => Value::from_safe_string(out),
        false => Value::from(out),
    })
}

fn format(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    let (positional, named) = split_arguments(args.get(1..).unwrap_or_default())?;
    let pattern = value.as_str().unwrap_or_default();
    let values = if named.is_empty() {
        Value::from(minijinja::value::Tuple::from(positional))
    } else if positional.is_empty() {
        let pairs = named.into_iter().map(|(name, value)| (Value::from(name), value));
        Value::from_object(Dict::new(pairs)?)
    } else {
        return Err(type_error("can't handle positional and keyword arguments at the same time"));
    };
    Ok(Value::from(percent(pattern, &values)?))
}

/// Jinja's title-casing: words begin after white space and after `-({[<`.
fn title(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    let mut out = String::new();
    let mut starts = true;
    for c in value.as_str().unwrap_or_default().chars() {
        match starts {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        starts = text::is_space(c) || "-({[<".contains(c);
    }
    Ok(Value::from(out))
}

fn truncate(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [value, length, killwords, end, leeway] =
        bind("truncate", args, ["s", "length", "killwords", "end", "leeway"], 1)?;
    let number = |value: Option<Value>, default| match value {
        Some(value) if !value.is_none() => integer(&value)
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| type_error("truncate: length and leeway must be positive integers")),
        _ => Ok(default),
    };
    let value = value.unwrap_or_default();
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let short = length.saturating_add(leeway);
    if value.is_undefined() || value.len().is_some_and(|len| len <= short) {
        return Ok(value);
    }
    let Some(text) = value.as_str() else {
        return Err(type_error(format!("truncate needs a str, not {}", type_name(&value))));
    };
    let end = text::str(&end.unwrap_or(Value::from("...")))?;
    let chars: Vec<char> = text.chars().collect();
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(type_error(format!("truncate: expected length >= {}", end.len())));
    };
    let mut cut: String = chars.iter().take(kept).collect();
    if !killwords.is_some_and(|flag| flag.is_true())
        && let Some(at) = cut.rfind(' ')
    {
        cut.truncate(at);
    }
    Ok(Value::from(cut + &end))
}

fn wordcount(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = value.as_str().unwrap_or_default().split(|c| !is_word(c));
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

/// Markup's tags and comments removed, white space collapsed.
fn striptags(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let value = soft(args)?;
    let mut rest = value.as_str().unwrap_or_default();
    let mut kept = String::new();
    while let Some((before, tag)) = rest.split_once('<') {
        let end = if tag.starts_with("!--") { "-->" } else { ">" };
        let Some((_, after)) = tag.split_once(end) else {
            break;
        };
        kept.push_str(before);
        rest = after;
    }
    kept.push_str(rest);
    let words: Vec<&str> = kept.split(text::is_space).filter(|word| !word.is_empty()).collect();
    Ok(Value::from(words.join(" ")))
}

fn pprint(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    Ok(Value::from(text::repr(args.first().unwrap_or(&Value::UNDEFINED))?))
}
