//! The methods of Python's `str`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{bind, split as split_arguments};
use super::format::str_format;
use super::operators::integer;
use super::text::{MAX_TEXT, is_space, too_long};
use super::value::{items, type_error, type_name};

/// Calls `value.method(args)` of the string `text`. Text made from markup stays markup.
pub(crate) fn call(
    state: &mut State,
    value: &Value,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    state.consume_fuel(text.len() as u64 / 64)?;
    let result = dispatch(state, text, method, args)?;
    match (value.is_safe(), result.as_str()) {
        (true, Some(text)) => Ok(Value::from_safe_string(text.to_owned())),
        _ => Ok(result),
    }
}

fn dispatch(state: &mut State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match method {
        "upper" => Value::from(text.to_uppercase()),
        "lower" | "casefold" => Value::from(text.to_lowercase()),
        "capitalize" => Value::from(capitalize(text)),
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(swap_case(text)),
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "removeprefix" => {
            let affix = one_text(method, args)?;
            Value::from(text.strip_prefix(affix.as_str()).unwrap_or(text))
        }
        "removesuffix" => {
            let affix = one_text(method, args)?;
            Value::from(text.strip_suffix(affix.as_str()).unwrap_or(text))
        }
        "split" => list(state, split(text, args, false)?)?,
        "rsplit" => list(state, split(text, args, true)?)?,
        "splitlines" => {
            let [keep] = bind(method, args, ["keepends"], 0)?;
            list(state, split_lines(text, keep.is_some_and(|keep| keep.is_true())))?
        }
        "partition" => {
            let separator = separator(method, args)?;
            match text.split_once(separator.as_str()) {
                Some((before, after)) => triple(before, &separator, after),
                None => triple(text, "", ""),
            }
        }
        "rpartition" => {
            let separator = separator(method, args)?;
            match text.rsplit_once(separator.as_str()) {
                Some((before, after)) => triple(before, &separator, after),
                None => triple("", "", text),
            }
        }
        "replace" => replace_method(state, text, args)?,
        "startswith" | "endswith" => Value::from(has_affix(text, method, args)?),
        "find" | "rfind" => Value::from(find(text, method, args)?.map_or(-1, |at| at as i64)),
        "index" | "rindex" => match find(text, method, args)? {
            Some(at) => Value::from(at),
            None => return Err(type_error("substring not found")),
        },
        "count" => {
            let (part, window, _) = search(text, method, args)?;
            let found = match part.is_empty() {
                true => window.chars().count() + 1,
                false => window.matches(part.as_str()).count(),
            };
            Value::from(found)
        }
        "join" => {
            let [parts] = bind(method, args, ["iterable"], 1)?;
            join(state, text, &parts.unwrap_or_default())?
        }
        "format" => {
            let (positional, named) = split_arguments(args)?;
            let text = str_format(text, positional, &named)?;
            super::text::charge(state, text.len())?;
            Value::from(text)
        }
        "zfill" => {
            let width = width(method, args)?.0;
            let (sign, digits) = match text.chars().next() {
                Some(sign @ ('+' | '-')) => (Some(sign), text.get(1..).unwrap_or_default()),
                _ => (None, text),
            };
            let missing = width.saturating_sub(text.chars().count());
            Value::from(
                sign.into_iter().chain(repeat('0', missing)).chain(digits.chars()).collect::<String>(),
            )
        }
        "center" | "ljust" | "rjust" => justify(text, method, args)?,
        "expandtabs" => Value::from(expand_tabs(text, args)?),
        "isalpha" => all(text, char::is_alphabetic),
        "isalnum" => all(text, char::is_alphanumeric),
        "isdigit" | "isdecimal" | "isnumeric" => all(text, char::is_numeric),
        "isspace" => all(text, is_space),
        "isascii" => Value::from(text.is_ascii()),
        "islower" => Value::from(is_lower(text)),
        "isupper" => Value::from(is_upper(text)),
        "istitle" => Value::from(text.chars().any(char::is_alphabetic) && title(text) == text),
        "isidentifier" => Value::from(
            text.chars().next().is_some_and(|c| c == '_' || c.is_alphabetic())
                && text.chars().all(|c| c == '_' || c.is_alphanumeric()),
        ),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn list(state: &State, parts: Vec<&str>) -> Result<Value, Error> {
    state.consume_fuel(parts.len() as u64 / 2)?;
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()))
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([Value::from(before), Value::from(separator), Value::from(after)]))
}

fn repeat(c: char, count: usize) -> impl Iterator<Item = char> {
    std::iter::repeat_n(c, count)
}

fn all(text: &str, class: impl Fn(char) -> bool) -> Value {
    Value::from(!text.is_empty() && text.chars().all(class))
}

fn one_text(method: &str, args: &[Value]) -> Result<String, Error> {
    let [value] = bind(method, args, ["value"], 1)?;
    text_of(method, &value.unwrap_or_default())
}

fn text_of(method: &str, value: &Value) -> Result<String, Error> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| type_error(format!("{method}() argument must be str, not {}", type_name(value))))
}

fn separator(method: &str, args: &[Value]) -> Result<String, Error> {
    let separator = one_text(method, args)?;
    match separator.is_empty() {
        true => Err(type_error("empty separator")),
        false => Ok(separator),
    }
}

pub(crate) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().collect::<String>() + &chars.as_str().to_lowercase(),
        None => String::new(),
    }
}

/// `str.title()`: a capital wherever letters begin.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_uppercase() {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
    }
    out
}

pub(crate) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
}

pub(crate) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let [chars] = bind("strip", args, ["chars"], 0)?;
    let set = match chars.filter(|chars| !chars.is_none()) {
        Some(chars) => Some(text_of("strip", &chars)?),
        None => None,
    };
    let matches = |c: char| match &set {
        Some(set) => set.contains(c),
        None => is_space(c),
    };
    let mut part = text;
    if start {
        part = part.trim_start_matches(matches);
    }
    if end {
        part = part.trim_end_matches(matches);
    }
    Ok(Value::from(part))
}

fn split<'a>(text: &'a str, args: &[Value], from_end: bool) -> Result<Vec<&'a str>, Error> {
    let [separator, limit] = bind("split", args, ["sep", "maxsplit"], 0)?;
    let limit = match limit {
        None => None,
        Some(limit) => {
            let limit = integer(&limit).ok_or_else(|| type_error("split(): maxsplit must be an integer"))?;
            usize::try_from(limit).ok()
        }
    };
    let Some(separator) = separator.filter(|separator| !separator.is_none()) else {
        return Ok(split_space(text, limit, from_end));
    };
    let separator = text_of("split", &separator)?;
    if separator.is_empty() {
        return Err(type_error("empty separator"));
    }
    let pieces = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    if !from_end {
        return Ok(text.splitn(pieces, separator.as_str()).collect());
    }
    let mut parts: Vec<&str> = text.rsplitn(pieces, separator.as_str()).collect();
    parts.reverse();
    Ok(parts)
}

/// Splitting at runs of white space.
fn split_space(text: &str, limit: Option<usize>, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    // The part that is left when the limit is reached keeps the white space at its far end.
    let mut rest = match from_end {
        true => text.trim_end_matches(is_space),
        false => text.trim_start_matches(is_space),
    };
    while !rest.is_empty() {
        if limit.is_some_and(|limit| parts.len() >= limit) {
            parts.push(rest);
            break;
        }
        let cut = match from_end {
            true => rest.rfind(is_space).map(|at| {
                let width = rest.get(at..).and_then(|r| r.chars().next()).map_or(1, char::len_utf8);
                (rest.get(at + width..), rest.get(..at))
            }),
            false => rest.find(is_space).map(|at| (rest.get(..at), rest.get(at..))),
        };
        match cut {
            Some((Some(part), Some(remaining))) => {
                parts.push(part);
                rest = match from_end {
                    true => remaining.trim_end_matches(is_space),
                    false => remaining.trim_start_matches(is_space),
                };
            }
            _ => {
                parts.push(rest);
                break;
            }
        }
    }
    if from_end {
        parts.reverse();
    }
    parts
}

pub(crate) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r'
                | '\u{b}'
                | '\u{c}'
                | '\u{1c}'
                | '\u{1d}'
                | '\u{1e}'
                | '\u{85}'
                | '\u{2028}'
                | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(at) = rest.find(is_end) else {
            lines.push(rest);
            break;
        };
        let tail = rest.get(at..).unwrap_or_default();
        let width = match tail.starts_with("\r\n") {
            true => 2,
            false => tail.chars().next().map_or(1, char::len_utf8),
        };
        let end = if keep_ends { at + width } else { at };
        lines.push(rest.get(..end).unwrap_or_default());
        rest = rest.get(at + width..).unwrap_or_default();
    }
    lines
}

fn replace_method(state: &State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind("replace", args, ["old", "new", "count"], 2)?;
    let old = text_of("replace", &old.unwrap_or_default())?;
    let new = text_of("replace", &new.unwrap_or_default())?;
    let count = count.as_ref().and_then(integer).unwrap_or(-1);
    Ok(Value::from(replace(state, text, &old, &new, count)?))
}

/// `text.replace(old, new, count)`, a negative count meaning all.
pub(crate) fn replace(state: &State, text: &str, old: &str, new: &str, count: i128) -> Result<String, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let found = match old.is_empty() {
        true => text.chars().count() + 1,
        false => text.matches(old).count(),
    };
    let len = text.len().saturating_add(found.min(limit).saturating_mul(new.len()));
    if len > MAX_TEXT {
        return Err(too_long());
    }
    super::text::charge(state, len)?;
    Ok(text.replacen(old, new, limit))
}

fn has_affix(text: &str, method: &str, args: &[Value]) -> Result<bool, Error> {
    let [affix, start, end] = bind(method, args, ["prefix", "start", "end"], 1)?;
    let affix = affix.unwrap_or_default();
    let Some((window, _)) = window(text, start, end)? else {
        return Ok(false);
    };
    let matches = |affix: &Value| match affix.as_str() {
        Some(affix) if method == "startswith" => Ok(window.starts_with(affix)),
        Some(affix) => Ok(window.ends_with(affix)),
        None => Err(type_error(format!(
            "{method} first arg must be str or a tuple of str, not {}",
            type_name(affix)
        ))),
    };
    let Some(tuple) = affix.downcast_object_ref::<Tuple>() else {
        return matches(&affix);
    };
    for affix in tuple.iter() {
        if matches(affix)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The characters from `start` to `end`, and how many precede them; none where start is beyond.
fn window(text: &str, start: Option<Value>, end: Option<Value>) -> Result<Option<(&str, usize)>, Error> {
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let len = text.chars().count();
    let clamp = |bound: Option<Value>, default: usize| match bound.filter(|bound| !bound.is_none()) {
        None => Ok::<_, Error>(default),
        Some(bound) => {
            let bound =
                integer(&bound).ok_or_else(|| type_error("slice indices must be integers or None"))?;
            let bound = if bound < 0 { bound + len as i128 } else { bound };
            Ok(usize::try_from(bound.max(0)).unwrap_or(usize::MAX))
        }
    };
    let (start, end) = (clamp(start, 0)?, clamp(end, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    let offset = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(offset, _)| offset);
    Ok(text.get(offset(start)..offset(end)).map(|window| (window, start)))
}

fn search<'a>(
    text: &'a str,
    method: &str,
    args: &[Value],
) -> Result<(String, &'a str, Option<usize>), Error> {
    let [part, start, end] = bind(method, args, ["sub", "start", "end"], 1)?;
    let part = text_of(method, &part.unwrap_or_default())?;
    Ok(match window(text, start, end)? {
        Some((window, before)) => (part, window, Some(before)),
        None => (part, "", None),
    })
}

/// The position, in characters, where the argument is found.
fn find(text: &str, method: &str, args: &[Value]) -> Result<Option<usize>, Error> {
    let (part, window, before) = search(text, method, args)?;
    let found = match method.starts_with('r') {
        true => window.rfind(part.as_str()),
        false => window.find(part.as_str()),
    };
    Ok(match (found, before) {
        (Some(at), Some(before)) => Some(before + window.get(..at).unwrap_or_default().chars().count()),
        _ => None,
    })
}

fn join(state: &State, separator: &str, parts: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, part) in items(state, parts)?.iter().enumerate() {
        let Some(text) = part.as_str().filter(|_| part.kind() == ValueKind::String) else {
            return Err(type_error(format!(
                "sequence item {at}: expected str instance, {} found",
                type_name(part)
            )));
        };
        if out.len() + separator.len() + text.len() > MAX_TEXT {
            return Err(too_long());
        }
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    super::text::charge(state, out.len())?;
    Ok(Value::from(out))
}

fn width(method: &str, args: &[Value]) -> Result<(usize, char), Error> {
    let [width, fill] = bind(method, args, ["width", "fillchar"], 1)?;
    let width = width
        .as_ref()
        .and_then(integer)
        .ok_or_else(|| type_error(format!("{method}(): the width must be an integer")))?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    if width > MAX_TEXT {
        return Err(too_long());
    }
    let fill = match fill {
        None => ' ',
        Some(fill) => {
            let fill = text_of(method, &fill)?;
            let mut chars = fill.chars();
            match (chars.next(), chars.next()) {
                (Some(c), None) => c,
                _ => return Err(type_error("The fill character must be exactly one character long")),
            }
        }
    };
    Ok((width, fill))
}

fn justify(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill) = width(method, args)?;
    let missing = width.saturating_sub(text.chars().count());
    // Python puts the odd character left when the width is odd, right when it is even.
    let before = match method {
        "center" => missing / 2 + (missing & width & 1),
        "rjust" => missing,
        _ => 0,
    };
    Ok(Value::from(
        repeat(fill, before).chain(text.chars()).chain(repeat(fill, missing - before)).collect::<String>(),
    ))
}

fn expand_tabs(text: &str, args: &[Value]) -> Result<String, Error> {
    let [size] = bind("expandtabs", args, ["tabsize"], 0)?;
    let size = size.as_ref().and_then(integer).unwrap_or(8).clamp(0, 256) as usize;
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.extend(repeat(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
        if out.len() > MAX_TEXT {
            return Err(too_long());
        }
    }
    Ok(out)
}
