//! `'%s' % value` and `'{}'.format(value)`.

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::operators::{float, integer};
use super::text::{self, MAX_TEXT, too_long};
use super::value::{Dict, type_error, type_name};

/// No field is padded, and no number written, wider than this.
const MAX_WIDTH: usize = 4096;

/// How one value is laid out: `[[fill]align][sign][#][0][width][,][.precision][type]`.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    fill: char,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    const fn plain() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: None,
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

/// printf-style formatting: a tuple gives the values in turn, a dict gives them by name.
pub(crate) fn percent(format: &str, values: &Value) -> Result<String, Error> {
    let tuple: &[Value] = match values.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple,
        None => std::slice::from_ref(values),
    };
    let dict = values.downcast_object_ref::<Dict>();
    let mut given = tuple.iter();
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            push(&mut out, c.encode_utf8(&mut [0; 4]))?;
            continue;
        }
        let mut named = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = take_until(&mut chars, ')')?;
            let dict = dict.ok_or_else(|| type_error("format requires a mapping"))?;
            named = Some(
                dict.get(&Value::from(name.as_str()))
                    .cloned()
                    .ok_or_else(|| type_error(format!("the mapping to format has no key '{name}'")))?,
            );
        }
        let mut spec = Spec::plain();
        let mut left = false;
        while let Some(flag) = chars.next_if(|c| "-0+ #".contains(*c)) {
            match flag {
                '-' => left = true,
                '0' => (spec.fill, spec.align) = ('0', Some('=')),
                '#' => spec.alternate = true,
                ' ' if spec.sign == Some('+') => {}
                sign => spec.sign = Some(sign),
            }
        }
        spec.width = digits(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars)?.unwrap_or(0));
        }
        let kind = chars.next().ok_or_else(|| type_error("incomplete format: '%' at the end"))?;
        if kind == '%' {
            push(&mut out, "%")?;
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => {
                given.next().cloned().ok_or_else(|| type_error("not enough arguments for format string"))?
            }
        };
        spec.align = match (left, spec.align) {
            (true, _) => Some('<'),
            (false, None) => Some('>'),
            (false, align) => align,
        };
        if left {
            spec.fill = ' ';
        }
        push(&mut out, &percent_field(kind, spec, &value)?)?;
    }
    // Python takes whatever has subscripts for a mapping, and those may be left unused.
    let mapping =
        dict.is_some() || values.is_undefined() || values.downcast_object_ref::<Vec<Value>>().is_some();
    if !mapping && given.next().is_some() {
        return Err(type_error("not all arguments converted during string formatting"));
    }
    Ok(out)
}

fn percent_field(kind: char, mut spec: Spec, value: &Value) -> Result<String, Error> {
    let text = match kind {
        's' => text::str(value)?,
        'r' | 'a' => text::repr(value)?,
        'c' => match (value.as_str(), integer(value)) {
            (Some(text), _) => text.to_owned(),
            (None, Some(code)) => u32::try_from(code)
                .ok()
                .and_then(char::from_u32)
                .ok_or_else(|| type_error("%c arg not in range(0x110000)"))?
                .to_string(),
            _ => return Err(type_error("%c requires int or char")),
        },
        'd' | 'i' | 'u' => {
            let number = float(value).ok_or_else(|| {
                type_error(format!("%{kind} format: a real number is required, not {}", type_name(value)))
            })?;
            let whole = integer(value).unwrap_or(number.trunc() as i128);
            spec.kind = Some('d');
            spec.precision = None;
            return Ok(format_integer(whole, &spec));
        }
        'x' | 'X' | 'o' => {
            let whole = integer(value).ok_or_else(|| {
                type_error(format!("%{kind} format: an integer is required, not {}", type_name(value)))
            })?;
            spec.kind = Some(kind);
            return Ok(format_integer(whole, &spec));
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = float(value)
                .ok_or_else(|| type_error(format!("must be real number, not {}", type_name(value))))?;
            spec.kind = Some(kind);
            return Ok(format_float(number, &spec));
        }
        other => {
            return Err(type_error(format!("unsupported format character '{other}'")));
        }
    };
    if spec.align == Some('=') {
        (spec.align, spec.fill) = (Some('>'), ' ');
    }
    Ok(pad(&cut(&text, spec.precision), &spec, '<'))
}

/// `format.format(*positional, **named)`.
pub(crate) fn str_format(
    format: &str,
    positional: &[Value],
    named: &[(String, Value)],
) -> Result<String, Error> {
    let mut out = String::new();
    let mut automatic = 0;
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => push(&mut out, "{")?,
            '}' if chars.next_if_eq(&'}').is_some() => push(&mut out, "}")?,
            '}' => return Err(type_error("Single '}' encountered in format string")),
            '{' => {
                let field: String = take_until(&mut chars, '}')?;
                push(&mut out, &replacement(&field, positional, named, &mut automatic)?)?;
            }
            c => push(&mut out, c.encode_utf8(&mut [0; 4]))?,
        }
    }
    Ok(out)
}

/// One `{name!conversion:spec}`, without its braces.
fn replacement(
    field: &str,
    positional: &[Value],
    named: &[(String, Value)],
    automatic: &mut usize,
) -> Result<String, Error> {
    let (target, spec) = field.split_once(':').unwrap_or((field, ""));
    let (target, conversion) = match target.split_once('!') {
        Some((target, conversion)) => (target, Some(conversion)),
        None => (target, None),
    };
    let name_end = target.find(['.', '[']).unwrap_or(target.len());
    let (name, path) = target.split_at_checked(name_end).unwrap_or((target, ""));
    let index = match name {
        "" => {
            *automatic += 1;
            Some(*automatic - 1)
        }
        name => name.parse::<usize>().ok(),
    };
    let found = match index {
        Some(index) => positional.get(index),
        None => named.iter().find(|(key, _)| key == name).map(|(_, v)| v),
    };
    let mut value =
        found.cloned().ok_or_else(|| type_error(format!("format: no argument for {{{field}}}")))?;
    let mut path = path;
    while !path.is_empty() {
        let key: Value;
        if let Some(rest) = path.strip_prefix('[') {
            let (inside, after) =
                rest.split_once(']').ok_or_else(|| type_error("Missing ']' in format string"))?;
            key = match inside.parse::<i64>() {
                Ok(index) => Value::from(index),
                Err(_) => Value::from(inside),
            };
            path = after;
            value = value.get_item(&key)?;
        } else {
            let rest = path.strip_prefix('.').unwrap_or(path);
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (attribute, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
            path = after;
            value = value.get_attr(attribute)?;
        }
    }
    match conversion {
        Some("r" | "a") => value = Value::from(text::repr(&value)?),
        Some("s") => value = Value::from(text::str(&value)?),
        Some(other) => {
            return Err(type_error(format!("Unknown conversion specifier {other}")));
        }
        None => {}
    }
    if spec.is_empty() {
        return text::str(&value);
    }
    formatted(&value, &parse_spec(spec)?)
}

fn formatted(value: &Value, spec: &Spec) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return match spec.kind {
            None | Some('s') => Ok(pad(&cut(text, spec.precision), spec, '<')),
            Some(kind) => Err(unknown_code(kind, "str")),
        };
    }
    let float_kind = matches!(spec.kind, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' | 'n'));
    match (integer(value), float(value)) {
        (Some(_), _) if value.kind() == minijinja::value::ValueKind::Bool && spec.kind.is_none() => {
            Ok(pad(&text::str(value)?, spec, '<'))
        }
        (Some(whole), _) if !float_kind => match spec.kind {
            Some('c') => match u32::try_from(whole).ok().and_then(char::from_u32) {
                Some(c) => Ok(pad(&c.to_string(), spec, '<')),
                None => Err(type_error("%c arg not in range(0x110000)")),
            },
            None | Some('d' | 'x' | 'X' | 'o' | 'b') => Ok(format_integer(whole, spec)),
            Some(kind) => Err(unknown_code(kind, "int")),
        },
        (_, Some(number)) if float_kind || spec.kind.is_none() => Ok(format_float(number, spec)),
        (_, Some(_)) => Err(unknown_code(spec.kind.unwrap_or('?'), "float")),
        _ => Err(type_error(format!("unsupported format string passed to {}.__format__", type_name(value)))),
    }
}

fn unknown_code(kind: char, of: &str) -> Error {
    type_error(format!("Unknown format code '{kind}' for object of type '{of}'"))
}

fn parse_spec(text: &str) -> Result<Spec, Error> {
    let mut spec = Spec::plain();
    let all: Vec<char> = text.chars().collect();
    let mut chars = text.chars().peekable();
    let is_align = |c: &char| "<>=^".contains(*c);
    if let (Some(fill), Some(align)) = (all.first(), all.get(1).filter(|c| is_align(c))) {
        (spec.fill, spec.align) = (*fill, Some(*align));
        chars.next();
        chars.next();
    } else if let Some(align) = chars.next_if(is_align) {
        spec.align = Some(align);
    }
    spec.sign = chars.next_if(|c| "+- ".contains(*c));
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    spec.width = digits(&mut chars)?.unwrap_or(0);
    spec.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = digits(&mut chars)?;
    }
    spec.kind = chars.next();
    match chars.next() {
        Some(_) => Err(type_error(format!("Invalid format specifier '{text}'"))),
        None => Ok(spec),
    }
}

fn format_integer(value: i128, spec: &Spec) -> String {
    let magnitude = value.unsigned_abs();
    let (prefix, digits) = match spec.kind {
        Some('x') => ("0x", format!("{magnitude:x}")),
        Some('X') => ("0X", format!("{magnitude:X}")),
        Some('o') => ("0o", format!("{magnitude:o}")),
        Some('b') => ("0b", format!("{magnitude:b}")),
        _ => ("", magnitude.to_string()),
    };
    let prefix = if spec.alternate { prefix } else { "" };
    number(value < 0, prefix, &digits, spec)
}

fn format_float(value: f64, spec: &Spec) -> String {
    let magnitude = value.abs();
    let precision = spec.precision.unwrap_or(6).min(MAX_WIDTH);
    let kind = spec.kind.map(|kind| kind.to_ascii_lowercase());
    let mut digits = match kind {
        _ if !value.is_finite() => text::float(magnitude),
        Some('f') => format!("{magnitude:.precision$}"),
        Some('%') => format!("{:.precision$}%", magnitude * 100.0),
        Some('e') => exponent(&format!("{magnitude:.precision$e}")),
        Some('g' | 'n') => general(magnitude, precision.max(1)),
        _ => match spec.precision {
            Some(_) => general(magnitude, precision.max(1)),
            None => text::float(magnitude),
        },
    };
    if spec.kind.is_some_and(|kind| kind.is_ascii_uppercase()) {
        digits = digits.to_uppercase();
    }
    number(value.is_sign_negative(), "", &digits, spec)
}

/// Rust's `1.5e7` as C's `1.5e+07`.
fn exponent(scientific: &str) -> String {
    let (digits, power) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.unsigned_abs())
}

/// C's `%g`.
fn general(magnitude: f64, precision: usize) -> String {
    let scientific = format!("{magnitude:.*e}", precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..precision as i32).contains(&power) {
        let decimals = (precision as i32 - 1 - power).max(0) as usize;
        return trim(&format!("{magnitude:.decimals$}"));
    }
    let (digits, _) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    exponent(&format!("{}e{power}", trim(digits)))
}

/// Sign, prefix, grouped digits and padding of a number.
fn number(negative: bool, prefix: &str, digits: &str, spec: &Spec) -> String {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let digits = match spec.grouping {
        Some(separator) => grouped(digits, separator),
        None => digits.to_owned(),
    };
    if spec.align == Some('=') {
        let taken = sign.len() + prefix.len() + digits.chars().count();
        let fill: String = std::iter::repeat_n(spec.fill, spec.width.saturating_sub(taken)).collect();
        return format!("{sign}{prefix}{fill}{digits}");
    }
    pad(&format!("{sign}{prefix}{digits}"), spec, '>')
}

fn grouped(digits: &str, separator: char) -> String {
    let whole = digits.bytes().take_while(u8::is_ascii_digit).count();
    let mut out = String::new();
    for (at, c) in digits.chars().enumerate() {
        if at > 0 && at < whole && (whole - at) % 3 == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

fn pad(text: &str, spec: &Spec, default: char) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    let (before, after) = match spec.align.unwrap_or(default) {
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    let fill = |count| std::iter::repeat_n(spec.fill, count).collect::<String>();
    format!("{}{text}{}", fill(before), fill(after))
}

fn cut(text: &str, precision: Option<usize>) -> String {
    match precision {
        Some(count) => text.chars().take(count).collect(),
        None => text.to_owned(),
    }
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut number = None;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        let digit = digit as usize - '0' as usize;
        let value = number.unwrap_or(0) * 10 + digit;
        if value > MAX_WIDTH {
            return Err(type_error(format!("a format asks for more than {MAX_WIDTH} characters")));
        }
        number = Some(value);
    }
    Ok(number)
}

fn take_until(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, end: char) -> Result<String, Error> {
    let mut taken = String::new();
    for c in chars {
        if c == end {
            return Ok(taken);
        }
        taken.push(c);
    }
    Err(type_error(format!("a format string lacks its '{end}'")))
}

fn push(out: &mut String, part: &str) -> Result<(), Error> {
    if out.len() + part.len() > MAX_TEXT {
        return Err(too_long());
    }
    out.push_str(part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_formats_as_python() {
        let tuple = |values: Vec<Value>| Value::from(Tuple::from(values));
        for (format, value, expected) in [
            ("%s", Value::from("x"), "x"),
            ("<%5s|%-5s|%.2s>", tuple(vec!["ab".into(), "cd".into(), "efg".into()]), "<   ab|cd   |ef>"),
            ("%d %05d %+d", tuple(vec![7.into(), (-42).into(), 3.into()]), "7 -0042 +3"),
            ("%x %X %#x %o", tuple(vec![255.into(), 255.into(), 255.into(), 8.into()]), "ff FF 0xff 10"),
            (
                "%.2f %e %g %g",
                tuple(vec![1.005.into(), 12345.678.into(), 0.0001.into(), 1e20.into()]),
                "1.00 1.234568e+04 0.0001 1e+20",
            ),
            ("%r", Value::from("it's"), "\"it's\""),
            ("100%% %d", Value::from(3.9), "100% 3"),
        ] {
            assert_eq!(percent(format, &value).unwrap(), expected, "{format}");
        }
        assert!(percent("%s %s", &Value::from(1)).is_err());
        assert!(percent("none", &Value::from(1)).is_err());
        assert!(percent("%999999999d", &Value::from(1)).is_err());
    }

    #[test]
    fn str_format_formats_as_python() {
        let named = [("name".to_owned(), Value::from("Ann"))];
        for (format, expected) in [
            ("{} {}", "7 2.5"),
            ("{1} {0} {name}", "2.5 7 Ann"),
            ("{0:03d}|{0:>4}|{0:<4}|{0:^5}|{0:+}", "007|   7|7   |  7  |+7"),
            ("{1:.3f}|{1:8.1f}|{1:e}|{1}", "2.500|     2.5|2.500000e+00|2.5"),
            ("{{}} {name!r:*^9}", "{} **'Ann'**"),
            ("{2:,}", "1,234,567"),
        ] {
            let values = [7.into(), 2.5.into(), 1_234_567.into()];
            assert_eq!(str_format(format, &values, &named).unwrap(), expected, "{format}");
        }
        assert!(str_format("{", &[], &[]).is_err());
        assert!(str_format("{}", &[], &[]).is_err());
    }
}
