//! One JSON value that arrives piece by piece, passed on as valid JSON.

use serde_json::Value;

/// How deep a value may be nested; what goes deeper is not read.
const MAX_DEPTH: usize = 64;

/// How far a piece of text took the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it was used, and the value is not at its end.
    More,
    /// The value ends before that byte.
    Done(usize),
    /// That byte cannot stand where it does.
    Fault(usize),
}

/// Passes a JSON value through. What comes out is, at any time, the beginning of valid JSON that
/// [`JsonStream::close`] completes; the mistakes that models make are put right: line breaks in
/// strings, unknown escapes, lone surrogates, commas before a closing bracket, Python's `True`, `False` and
/// `None`. Other words and impossible numbers become strings.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonStream {
    stack: Vec<char>,
    state: State,
    /// A comma with the white space behind it, while nothing follows that it separates.
    comma: String,
    /// A number or word, or an escape in a string, that has begun.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// A value comes next.
    #[default]
    Value,
    /// In a list, a value or its end.
    Item,
    /// In an object, a key or its end.
    Key,
    /// A colon behind a key.
    Colon,
    /// A comma or a closing bracket.
    Next,
    /// Inside a string, which may be a key.
    Text {
        key: bool,
    },
    /// Inside a number or word.
    Word,
    Done,
}

impl JsonStream {
    /// Takes text in, adding to `out` what is certain.
    pub(super) fn feed(&mut self, text: &str, out: &mut String) -> Progress {
        for (at, c) in text.char_indices() {
            if self.state == State::Word && !is_word(c) {
                self.end_word(out);
            }
            match self.state {
                State::Done => return Progress::Done(at),
                State::Text { key } => self.text(c, key, out),
                State::Word => self.held.push(c),
                _ => {
                    if !self.structure(c, out) {
                        return Progress::Fault(at);
                    }
                }
            }
        }
        if self.state == State::Done { Progress::Done(text.len()) } else { Progress::More }
    }

    /// Completes the value where it is.
    pub(super) fn close(&mut self, out: &mut String) {
        match self.state {
            State::Text { key } => {
                for c in std::mem::take(&mut self.held).chars() {
                    match c {
                        '\\' => out.push_str("\\\\"),
                        c => plain(c, out),
                    }
                }
                out.push_str(if key { "\":null" } else { "\"" });
            }
            State::Word => self.end_word(out),
            State::Colon => out.push_str(":null"),
            State::Value => out.push_str("null"),
            State::Item | State::Key | State::Next | State::Done => {}
        }
        while let Some(open) = self.stack.pop() {
            out.push(closing(open));
        }
        self.state = State::Done;
    }

    /// A character outside strings and words; false where it cannot stand.
    fn structure(&mut self, c: char, out: &mut String) -> bool {
        if matches!(c, ' ' | '\n' | '\r' | '\t') {
            let held = !self.comma.is_empty();
            if held {
                self.comma.push(c)
            } else {
                out.push(c)
            }
            return true;
        }
        match (self.state, c) {
            (State::Value | State::Item, '{' | '[') if self.stack.len() < MAX_DEPTH => {
                out.push_str(&std::mem::take(&mut self.comma));
                out.push(c);
                self.stack.push(c);
                self.state = if c == '{' { State::Key } else { State::Item };
            }
            (State::Value | State::Item | State::Key, '"') => {
                out.push_str(&std::mem::take(&mut self.comma));
                out.push(c);
                self.state = State::Text { key: self.state == State::Key };
            }
            (State::Value | State::Item, c) if is_word(c) => {
                out.push_str(&std::mem::take(&mut self.comma));
                self.held.push(c);
                self.state = State::Word;
            }
            (State::Colon, ':') => {
                out.push(c);
                self.state = State::Value;
            }
            (State::Next, ',') => {
                self.comma.push(c);
                self.state = if self.stack.last() == Some(&'{') { State::Key } else { State::Item };
            }
            (State::Item | State::Key | State::Next, '}' | ']')
                if self.stack.last().is_some_and(|open| closing(*open) == c) =>
            {
                self.comma.clear();
                self.stack.pop();
                out.push(c);
                self.value_ended();
            }
            _ => return false,
        }
        true
    }

    fn value_ended(&mut self) {
        self.state = if self.stack.is_empty() { State::Done } else { State::Next };
    }

    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.held);
        let known = match word.as_str() {
            "true" | "True" => Some("true"),
            "false" | "False" => Some("false"),
            "null" | "None" => Some("null"),
            number => serde_json::from_str::<serde_json::Number>(number).ok().map(|_| number),
        };
        match known {
            Some(known) => out.push_str(known),
            None => out.push_str(&Value::from(word.as_str()).to_string()),
        }
        self.value_ended();
    }

    /// A character inside a string.
    fn text(&mut self, c: char, key: bool, out: &mut String) {
        if self.held.is_empty() {
            match c {
                '"' => {
                    out.push('"');
                    if key { self.state = State::Colon } else { self.value_ended() }
                }
                '\\' => self.held.push(c),
                c => plain(c, out),
            }
            return;
        }
        self.held.push(c);
        match Escape::of(&self.held) {
            Escape::Begun => {}
            Escape::Whole => out.push_str(&std::mem::take(&mut self.held)),
            Escape::Not(valid) => {
                let held = std::mem::take(&mut self.held);
                out.push_str(if valid == 0 { "\\\\" } else { "\\ufffd" });
                // What was taken for a part of the escape is text of its own.
                for c in held.chars().skip(valid.max(1)) {
                    self.text(c, key, out);
                }
            }
        }
    }
}

/// What a text that begins with a backslash is.
enum Escape {
    Begun,
    Whole,
    /// None; so many characters are an escape that means nothing alone.
    Not(usize),
}

impl Escape {
    fn of(text: &str) -> Escape {
        let bytes = text.as_bytes();
        match bytes.get(1) {
            None => return Escape::Begun,
            Some(b'u') => {}
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => return Escape::Whole,
            Some(_) => return Escape::Not(0),
        }
        let digits = bytes.get(2..6.min(bytes.len())).unwrap_or_default();
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Escape::Not(0);
        }
        if digits.len() < 4 {
            return Escape::Begun;
        }
        let unit = |digits: Option<&str>| digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        match unit(text.get(2..6)) {
            Some(0xDC00..=0xDFFF) => Escape::Not(6),
            Some(0xD800..=0xDBFF) => match (bytes.get(6), bytes.get(7)) {
                (None, _) | (Some(b'\\'), None) => Escape::Begun,
                (Some(b'\\'), Some(b'u')) => {
                    let digits = bytes.get(8..).unwrap_or_default();
                    match unit(text.get(8..12)) {
                        Some(0xDC00..=0xDFFF) => Escape::Whole,
                        None if digits.len() < 4 && digits.iter().all(u8::is_ascii_hexdigit) => Escape::Begun,
                        _ => Escape::Not(6),
                    }
                }
                _ => Escape::Not(6),
            },
            _ => Escape::Whole,
        }
    }
}

/// A character of a string; what JSON does not allow bare is escaped.
fn plain(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// What stands in a JSON string for a text.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

fn closing(open: char) -> char {
    if open == '{' { '}' } else { ']' }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The value completed, and what is left.
    fn read<'a>(parts: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let (mut stream, mut out, mut rest) = (JsonStream::default(), String::new(), String::new());
        let mut ended = false;
        for part in parts {
            if ended {
                rest.push_str(part);
                continue;
            }
            match stream.feed(part, &mut out) {
                Progress::More => {}
                Progress::Done(at) | Progress::Fault(at) => {
                    ended = true;
                    rest.push_str(&part[at..]);
                }
            }
        }
        stream.close(&mut out);
        (out, rest)
    }

    #[test]
    fn values_are_passed_on_put_right_and_completed() {
        for (text, out, rest) in [
            (r#"{"a": 1, "b": [true, null, "x\n"]} rest"#, r#"{"a": 1, "b": [true, null, "x\n"]}"#, " rest"),
            (r#"{"a": {}, "b": []}"#, r#"{"a": {}, "b": []}"#, ""),
            (r#"{"a": "one"#, r#"{"a": "one"}"#, ""),
            (r#"{"a": 12"#, r#"{"a": 12}"#, ""),
            (r#"{"a": 12."#, r#"{"a": "12."}"#, ""),
            (r#"{"a": 007}"#, r#"{"a": "007"}"#, ""),
            (r#"{"a": True, "b": None, "c": nan}"#, r#"{"a": true, "b": null, "c": "nan"}"#, ""),
            (r#"{"a": 1,}"#, r#"{"a": 1}"#, ""),
            (r#"{"a": 1, "b"#, r#"{"a": 1, "b":null}"#, ""),
            (r#"{"a": 1, "b":"#, r#"{"a": 1, "b":null}"#, ""),
            (r#"{"a": 1, "#, r#"{"a": 1}"#, ""),
            ("{\"a\": \"x\ny\u{1}\"}", r#"{"a": "x\ny\u0001"}"#, ""),
            (
                r#"{"a": "\d \ud83d\ude00 \ud83d \ude00 \u12"#,
                r#"{"a": "\\d \ud83d\ude00 \ufffd \ufffd \\u12"}"#,
                "",
            ),
            (r#"{"a": 1}}"#, r#"{"a": 1}"#, "}"),
            (r#"{"a": [1</tool>"#, r#"{"a": [1]}"#, "</tool>"),
            (r#"{"a": 1 "b": 2}"#, r#"{"a": 1 }"#, r#""b": 2}"#),
            ("[1, 2", "[1, 2]", ""),
        ] {
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(read([text]), (out.to_owned(), rest.to_owned()), "{text}");
            assert_eq!(read(chars.iter().map(String::as_str)), (out.to_owned(), rest.to_owned()), "{text}");
            serde_json::from_str::<Value>(out).unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_gives_valid_json(text in "\\{[\\[\\]{}:,\"\\\\u0-9d8ce+. \n\u{e9}tn]{0,40}") {
            let (out, rest) = read([text.as_str()]);
            prop_assert!(serde_json::from_str::<Value>(&out).is_ok(), "{} -> {}", text, out);
            prop_assert!(text.ends_with(&rest));
            let chars: Vec<String> = text.chars().map(String::from).collect();
            prop_assert_eq!(read(chars.iter().map(String::as_str)), (out, rest));
        }

        #[test]
        fn valid_json_comes_through_unchanged(keys in prop::collection::vec(".{0,6}", 0..4), number: i64, real: f64) {
            let map: serde_json::Map<String, Value> =
                keys.into_iter().map(|key| (key.clone(), serde_json::json!([key, number, real, true, null]))).collect();
            let text = Value::Object(map).to_string();
            prop_assert_eq!(read([text.as_str()]), (text.clone(), String::new()));
        }
    }
}
