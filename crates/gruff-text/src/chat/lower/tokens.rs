//! The tokens inside `{{ … }}` and `{% … %}`.

use super::{SyntaxError, error_at, slice};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Name,
    Integer,
    Float,
    String,
    Operator,
}

/// A token and the white space before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) space: &'a str,
    pub(super) text: &'a str,
    pub(super) offset: usize,
}

/// What a tag holds, up to and including its end.
pub(super) struct Inside<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    /// White space before the end.
    pub(super) space: &'a str,
    /// The closing delimiter with its white space sign, such as `-%}`.
    pub(super) close: &'a str,
    /// Where the template goes on.
    pub(super) end: usize,
}

/// Longest first.
const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(",
    ")", "[", "]", "{", "}", ";",
];

pub(super) struct Lexer<'a> {
    source: &'a str,
    at: usize,
    close: &'static str,
    /// Brackets that are open: a closing delimiter inside them is not the tag's.
    open: Vec<char>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str, at: usize, close: &'static str) -> Lexer<'a> {
        Lexer { source, at, close, open: Vec::new() }
    }

    /// Reads to the end of the tag that starts at `start`.
    pub(super) fn run(mut self, start: usize) -> Result<Inside<'a>, SyntaxError> {
        let mut tokens = Vec::new();
        loop {
            let begin = self.at;
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let space = slice(self.source, begin, self.at);
            let rest = self.rest();
            if rest.is_empty() {
                return Err(error_at(self.source, start, &format!("this tag has no end '{}'", self.close)));
            }
            if let Some(close) = self.closing(rest) {
                return Ok(Inside { tokens, space, close, end: self.at + close.len() });
            }
            let (kind, len) = self.token(rest)?;
            tokens.push(Token { kind, space, text: slice(rest, 0, len), offset: self.at });
            self.at += len;
        }
    }

    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn closing(&self, rest: &'a str) -> Option<&'a str> {
        if !self.open.is_empty() {
            return None;
        }
        let signed = rest.strip_prefix('-').or_else(|| match self.close {
            "%}" => rest.strip_prefix('+'),
            _ => None,
        });
        if signed.is_some_and(|after| after.starts_with(self.close)) {
            return Some(slice(rest, 0, 1 + self.close.len()));
        }
        rest.starts_with(self.close).then(|| slice(rest, 0, self.close.len()))
    }

    fn token(&mut self, rest: &str) -> Result<(Kind, usize), SyntaxError> {
        let first = rest.chars().next().unwrap_or(' ');
        if first == '"' || first == '\'' {
            return self.string(rest, first);
        }
        if first.is_ascii_digit() {
            return Ok(number(rest));
        }
        if first == '_' || first.is_alphabetic() {
            let len = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            return Ok((Kind::Name, len));
        }
        let operator = OPERATORS.iter().find(|operator| rest.starts_with(**operator));
        let Some(operator) = operator else {
            return Err(error_at(self.source, self.at, &format!("unexpected character {first:?}")));
        };
        match *operator {
            "(" => self.open.push(')'),
            "[" => self.open.push(']'),
            "{" => self.open.push('}'),
            ")" | "]" | "}" => {
                let expected = self.open.pop();
                if expected != Some(first) {
                    let message = match expected {
                        Some(expected) => format!("unexpected '{first}', expected '{expected}'"),
                        None => format!("unexpected '{first}'"),
                    };
                    return Err(error_at(self.source, self.at, &message));
                }
            }
            _ => {}
        }
        Ok((Kind::Operator, operator.len()))
    }

    fn string(&self, rest: &str, quote: char) -> Result<(Kind, usize), SyntaxError> {
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => return Ok((Kind::String, at + 1)),
                _ => {}
            }
        }
        Err(error_at(self.source, self.at, "this string has no end"))
    }
}

/// Jinja's numbers: digits with `_` between them, a fraction and an exponent, or a prefix.
fn number(rest: &str) -> (Kind, usize) {
    let run =
        |text: &str, radix: u32| text.find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(text.len());
    let prefixed = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => Some(16),
        Some("0o") => Some(8),
        Some("0b") => Some(2),
        _ => None,
    };
    if let Some(radix) = prefixed {
        return (Kind::Integer, 2 + run(slice(rest, 2, rest.len()), radix));
    }
    let mut len = run(rest, 10);
    let mut kind = Kind::Integer;
    let digit_at = |at: usize| rest.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    if rest.as_bytes().get(len) == Some(&b'.') && digit_at(len + 1) {
        kind = Kind::Float;
        len += 1 + run(slice(rest, len + 1, rest.len()), 10);
    }
    if matches!(rest.as_bytes().get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(rest.as_bytes().get(len + 1), Some(b'+' | b'-')));
        if digit_at(len + 1 + sign) {
            kind = Kind::Float;
            len += 1 + sign + run(slice(rest, len + 1 + sign, rest.len()), 10);
        }
    }
    (kind, len)
}
