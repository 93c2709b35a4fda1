//! Calls whose arguments are literals of Python, or nearly: `f(a="x", b=[1])` (LFM2) and
//! `call:f{a:<|"|>x<|"|>,b:[1]}` (Gemma 4).

use serde_json::{Map, Value};

use super::sink::{Sink, Status};
use crate::chat::stream::take;

/// How a format frames such calls.
#[derive(Debug)]
pub(in crate::chat) struct LiteralSyntax {
    pub(in crate::chat) open: &'static str,
    pub(in crate::chat) close: &'static str,
    /// What stands before a name.
    pub(in crate::chat) name: &'static str,
    /// What stands around and within arguments: opening bracket, sign behind a key, closing bracket.
    pub(in crate::chat) arguments: (char, char, char),
}

/// How deep values may be nested.
const MAX_DEPTH: usize = 64;

/// The marks of a text in Gemma's calls.
pub(in crate::chat) const QUOTE: &str = "<|\"|>";

/// Reads the calls of one pair of tags, once it is whole.
#[derive(Debug, Clone)]
pub(super) struct LiteralCalls {
    syntax: &'static LiteralSyntax,
    /// Bytes that have been looked through for the closing tag.
    seen: usize,
}

impl LiteralCalls {
    pub(super) fn new(syntax: &'static LiteralSyntax) -> LiteralCalls {
        LiteralCalls { syntax, seen: syntax.open.len() }
    }

    pub(super) fn read(&mut self, pending: &mut String, last: bool, sink: &mut Sink<'_>) -> Status {
        let LiteralSyntax { open, close, .. } = *self.syntax;
        // A closing tag may stand in a text, so every one is tried, and the first that gives calls is it.
        while let Some(found) = pending.get(self.seen..).and_then(|rest| rest.find(close)) {
            let end = self.seen + found;
            self.seen = end + close.len();
            if let Some(calls) = pending.get(open.len()..end).and_then(|body| self.calls(body)) {
                put(calls, sink);
                take(pending, self.seen);
                return Status::Done;
            }
        }
        self.seen = pending.len().saturating_sub(close.len()).max(self.seen);
        while !pending.is_char_boundary(self.seen) {
            self.seen -= 1;
        }
        if !last {
            return Status::More;
        }
        match pending.get(open.len()..).and_then(|body| self.calls(body)) {
            Some(calls) => {
                put(calls, sink);
                pending.clear();
                Status::Done
            }
            None => Status::Text,
        }
    }

    fn calls(&self, body: &str) -> Option<Vec<(String, Value)>> {
        let syntax = self.syntax;
        let body = body.trim();
        let body = body.strip_prefix('[').and_then(|body| body.strip_suffix(']')).unwrap_or(body);
        let mut reader = Reader { rest: body };
        let mut calls = Vec::new();
        loop {
            reader.space();
            reader.eat(syntax.name);
            let (open, sign, close) = syntax.arguments;
            let (name, _) = reader.rest.split_once(open)?;
            let valid = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
            if name.is_empty() || !name.chars().all(valid) {
                return None;
            }
            reader.rest = reader.rest.get(name.len() + open.len_utf8()..)?;
            calls.push((name.to_owned(), reader.members(sign, close, 0)?));
            reader.space();
            reader.eat(",");
            reader.space();
            if reader.rest.is_empty() {
                return Some(calls);
            }
        }
    }
}

fn put(calls: Vec<(String, Value)>, sink: &mut Sink<'_>) {
    for (name, arguments) in calls {
        sink.whole("", &name, &arguments.to_string());
    }
}

/// The value that a text is as a whole.
pub(super) fn whole(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.space();
    reader.rest.is_empty().then_some(value)
}

/// The character behind `\u`: four digits, or twice four for one beyond 16 bits.
fn unicode(chars: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    let digits = |chars: &mut dyn Iterator<Item = (usize, char)>| {
        chars
            .take(4)
            .try_fold((0, 0), |(value, count), (_, c)| Some((value * 16 + c.to_digit(16)?, count + 1)))
    };
    let (first, 4) = digits(chars)? else { return None };
    if !(0xD800..0xDC00).contains(&first) {
        return char::from_u32(first);
    }
    if (chars.next()?.1, chars.next()?.1) != ('\\', 'u') {
        return None;
    }
    let (second, 4) = digits(chars)? else { return None };
    let low = second.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
    char::from_u32(0x10000 + ((first - 0xD800) << 10) + low)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, text: &str) -> bool {
        let behind = self.rest.strip_prefix(text);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    /// What comes before `end`, which is taken away too.
    fn until(&mut self, end: &str) -> Option<&'a str> {
        let (before, behind) = self.rest.split_once(end)?;
        self.rest = behind;
        Some(before)
    }

    /// Keys and values up to the closing bracket.
    fn members(&mut self, sign: char, close: char, depth: usize) -> Option<Value> {
        let mut members = Map::new();
        loop {
            self.space();
            if self.rest.starts_with(close) {
                self.rest = self.rest.get(close.len_utf8()..)?;
                return Some(Value::Object(members));
            }
            let key = match self.rest.chars().next()? {
                '"' | '\'' => self.quoted()?,
                _ if self.rest.starts_with(QUOTE) => self.quoted()?,
                _ => {
                    let (key, _) = self.rest.split_once(sign)?;
                    self.rest = self.rest.get(key.len()..)?;
                    key.trim().to_owned()
                }
            };
            self.space();
            self.rest = self.rest.strip_prefix(sign)?;
            members.insert(key, self.value(depth)?);
            self.space();
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
    }

    fn items(&mut self, close: char, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        loop {
            self.space();
            if self.rest.starts_with(close) {
                self.rest = self.rest.get(close.len_utf8()..)?;
                return Some(Value::Array(items));
            }
            items.push(self.value(depth)?);
            self.space();
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        if self.rest.starts_with(['"', '\'']) || self.rest.starts_with(QUOTE) {
            return self.quoted().map(Value::from);
        }
        for (open, close) in [("[", ']'), ("(", ')')] {
            if self.eat(open) {
                return self.items(close, depth + 1);
            }
        }
        if self.eat("{") {
            return self.members(':', '}', depth + 1);
        }
        let end = self.rest.find([',', ')', ']', '}']).unwrap_or(self.rest.len());
        let (word, behind) = self.rest.split_at_checked(end)?;
        let value = match word.trim() {
            "True" | "true" => Value::from(true),
            "False" | "false" => Value::from(false),
            "None" | "null" => Value::Null,
            number => Value::Number(serde_json::from_str(number).ok()?),
        };
        self.rest = behind;
        Some(value)
    }

    fn quoted(&mut self) -> Option<String> {
        if self.eat(QUOTE) {
            return self.until(QUOTE).map(str::to_owned);
        }
        let quote = self.rest.chars().next()?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = self.rest.get(at + c.len_utf8()..)?;
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => text.push(unicode(&mut chars)?),
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        None
    }
}
