//! Calls written with a tag for each argument.

use serde_json::Value;

use super::json_stream::escaped;
use super::schema::{property, texts, typed};
use super::sink::{Head, Sink, Status};
use crate::chat::stream::{Found, find, take};

/// How a format writes functions and their parameters.
#[derive(Debug)]
pub(in crate::chat) struct XmlSyntax {
    /// What stands around one or several functions; empty where nothing does.
    pub(in crate::chat) outer: (&'static str, &'static str),
    /// What begins a function, its name behind it.
    pub(in crate::chat) function: &'static str,
    /// What ends the name.
    pub(in crate::chat) name_end: &'static str,
    /// What ends a function.
    pub(in crate::chat) function_end: &'static str,
    /// What begins a parameter, its name behind it.
    pub(in crate::chat) parameter: &'static str,
    /// What ends the parameter's name.
    pub(in crate::chat) key_end: &'static str,
    /// What stands between that and the value, perhaps with white space.
    pub(in crate::chat) value: &'static str,
    /// What ends the value.
    pub(in crate::chat) value_end: &'static str,
}

/// No name is longer; what is, is text.
const MAX_NAME: usize = 300;

/// Reads calls from where the outer or a function's tag begins.
#[derive(Debug, Clone)]
pub(super) struct XmlCalls {
    syntax: &'static XmlSyntax,
    state: State,
    /// Whether the outer tag has been opened.
    outer: bool,
    any: bool,
    /// The schema of the function's parameters.
    parameters: Value,
    /// Names of parameters so far.
    keys: Vec<String>,
}

#[derive(Debug, Clone)]
enum State {
    Head,
    Between,
    Value(Parameter),
    Tail,
}

#[derive(Debug, Clone)]
struct Parameter {
    key: String,
    /// A text is passed on as it comes; anything else waits for its end.
    text: bool,
    /// What has come of it, where it is not passed on.
    held: String,
    /// Whether anything has come.
    begun: bool,
}

/// What is found in a parameter's value.
enum Piece {
    /// So many bytes of text.
    Text(usize),
    /// The value ends behind so many bytes; the tags behind it take so many.
    End(usize, usize),
    /// So many bytes of text, and then something that is not certain.
    More(usize),
}

impl XmlCalls {
    pub(super) fn new(syntax: &'static XmlSyntax) -> XmlCalls {
        let (parameters, keys) = (Value::Null, Vec::new());
        XmlCalls { syntax, state: State::Head, outer: false, any: false, parameters, keys }
    }

    pub(super) fn read(
        &mut self,
        pending: &mut String,
        last: bool,
        tools: &[Value],
        sink: &mut Sink<'_>,
    ) -> Status {
        loop {
            match &mut self.state {
                State::Head => match self.head(pending) {
                    Head::Found((name, len)) => {
                        take(pending, len);
                        self.parameters = schema(tools, &name).cloned().unwrap_or_default();
                        self.keys.clear();
                        self.any = true;
                        sink.start("", &name);
                        self.state = State::Between;
                    }
                    Head::More if !last && pending.len() <= MAX_NAME => return Status::More,
                    _ if self.any => return Status::Done,
                    _ => return Status::Text,
                },
                State::Between => {
                    if !self.between(pending, last, sink) {
                        return Status::More;
                    }
                }
                State::Value(_) => {
                    if !self.value(pending, last, sink) {
                        return Status::More;
                    }
                }
                State::Tail => match self.tail(pending, last) {
                    Some(status) => return status,
                    None => self.state = State::Head,
                },
            }
        }
    }

    /// The function's name, and the bytes up to its parameters.
    fn head(&mut self, pending: &str) -> Head<(String, usize)> {
        let syntax = self.syntax;
        let mut rest = pending.trim_start();
        let (open, _) = syntax.outer;
        let outer = !self.any && !open.is_empty() && rest.starts_with(open);
        if outer {
            rest = rest.get(open.len()..).unwrap_or_default().trim_start();
        }
        let Some(behind) = rest.strip_prefix(syntax.function) else {
            return if syntax.function.starts_with(rest) { Head::More } else { Head::Text };
        };
        // A name without a tag of its own ends where a line or a tag does.
        let end = match syntax.name_end {
            "" => {
                behind.trim_start().find(['\n', '<']).map(|at| at + behind.len() - behind.trim_start().len())
            }
            end => behind.find(end),
        };
        let Some(end) = end else { return Head::More };
        let name = unquoted(behind.get(..end).unwrap_or_default());
        if name.is_empty() || name.contains(char::is_whitespace) || name.contains('<') {
            return Head::Text;
        }
        self.outer |= outer;
        Head::Found((name.to_owned(), pending.len() - behind.len() + end + syntax.name_end.len()))
    }

    /// Between parameters; false while more text is needed.
    fn between(&mut self, pending: &mut String, last: bool, sink: &mut Sink<'_>) -> bool {
        let syntax = self.syntax;
        let rest = pending.trim_start().to_owned();
        // Closing tags that are doubled do no harm.
        if let Some(behind) = rest.strip_prefix(syntax.value_end) {
            *pending = behind.to_owned();
            return true;
        }
        if let Some(behind) = rest.strip_prefix(syntax.parameter) {
            match header(behind, syntax) {
                Head::Found((key, is_text, len)) => {
                    let text = is_text.unwrap_or_else(|| self.is_text(&key));
                    let separator = if self.keys.is_empty() { "{" } else { "," };
                    sink.arguments(&format!(
                        "{separator}\"{}\":{}",
                        escaped(&key),
                        if text { "\"" } else { "" }
                    ));
                    self.keys.push(key.clone());
                    self.state = State::Value(Parameter { key, text, held: String::new(), begun: false });
                    *pending = behind.get(len..).unwrap_or_default().to_owned();
                    return true;
                }
                Head::More if !last && behind.len() <= MAX_NAME => return false,
                _ => {}
            }
        }
        let tags = [syntax.value_end, syntax.parameter, syntax.function_end, syntax.outer.1];
        let may_come = tags.iter().any(|tag| tag.starts_with(rest.as_str()));
        if may_come && !last && !tags.iter().any(|tag| !tag.is_empty() && rest.starts_with(tag)) {
            return false;
        }
        if let Some(behind) = rest.strip_prefix(syntax.function_end) {
            *pending = behind.to_owned();
        }
        // What else stands here is no part of the call, which ends before it.
        sink.arguments(if self.keys.is_empty() { "{}" } else { "}" });
        sink.end();
        self.state = State::Tail;
        true
    }

    /// Inside a parameter's value; false while more text is needed.
    fn value(&mut self, pending: &mut String, last: bool, sink: &mut Sink<'_>) -> bool {
        let piece = self.piece(pending, last);
        let State::Value(parameter) = &mut self.state else { return true };
        let (len, ended) = match piece {
            Piece::Text(len) | Piece::More(len) => (len, None),
            Piece::End(len, tags) => (len, Some(tags)),
        };
        let more = matches!(piece, Piece::More(_));
        if !parameter.begun && (len > 0 || ended.is_some()) {
            parameter.begun = true;
            if pending.starts_with('\n') && len > 0 {
                take(pending, 1);
                parameter.text(pending, len - 1, ended.is_some(), sink);
            } else {
                parameter.text(pending, len, ended.is_some(), sink);
            }
        } else {
            parameter.text(pending, len, ended.is_some(), sink);
        }
        if let Some(tags) = ended {
            take(pending, tags);
            if parameter.text {
                sink.arguments("\"");
            } else {
                let property = property(&self.parameters, &parameter.key);
                sink.arguments(&typed(&parameter.held, &self.parameters, property).to_string());
            }
            self.state = State::Between;
        }
        !more
    }

    /// What the value goes on with.
    fn piece(&self, pending: &str, last: bool) -> Piece {
        let syntax = self.syntax;
        let tags = [syntax.value_end, syntax.parameter, syntax.function_end, syntax.outer.1];
        let tags: Vec<&str> = tags.into_iter().filter(|tag| !tag.is_empty()).collect();
        // The line break before a closing tag is not part of the value, so it waits.
        let held =
            |at: usize| pending.get(..at).map_or(at, |text| text.strip_suffix('\n').unwrap_or(text).len());
        let (at, tag) = match find(pending, &tags) {
            Found::Whole(at, tag) => (at, tag),
            Found::Partial(at) if !last => return Piece::More(held(at)),
            _ if last => return Piece::End(pending.len(), 0),
            _ => return Piece::More(held(pending.len())),
        };
        let behind = pending.get(at + tag.len()..).unwrap_or_default();
        let text = Piece::Text(at + tag.len());
        let undecided = if last { Piece::End(at, 0) } else { Piece::More(held(at)) };
        let begins = |rest: &str, tag: &str| !tag.is_empty() && rest.starts_with(tag);
        let may_begin = |rest: &str, tag: &str| !tag.is_empty() && tag.starts_with(rest);
        if tag == syntax.value_end {
            // It ends the value only where the call goes on behind it.
            let mut rest = behind.trim_start();
            while let Some(doubled) = rest.strip_prefix(tag) {
                rest = doubled.trim_start();
            }
            let follow = [syntax.parameter, syntax.function_end, syntax.outer.1];
            if follow.iter().any(|next| begins(rest, next)) {
                return Piece::End(at, tag.len());
            }
            if last && rest.is_empty() {
                return Piece::End(at, pending.len() - at);
            }
            let waits = !last && follow.iter().chain([&tag]).any(|next| may_begin(rest, next));
            return if waits { Piece::More(held(at)) } else { text };
        }
        if tag == syntax.parameter {
            return match header(behind, syntax) {
                Head::Found((key, ..)) if self.is_other_parameter(&key) => Piece::End(at, 0),
                Head::More if behind.len() <= MAX_NAME => undecided,
                _ => text,
            };
        }
        // The value's own closing tag is missing, if this is one of those that close the call.
        let rest = behind.trim_start();
        let (_, outer_end) = syntax.outer;
        if tag == syntax.function_end && self.outer && begins(rest, outer_end) {
            return Piece::End(at, 0);
        }
        let waits =
            rest.is_empty() || (tag == syntax.function_end && self.outer && may_begin(rest, outer_end));
        if waits { undecided } else { text }
    }

    /// Whether a name is that of a parameter that has not come yet.
    fn is_other_parameter(&self, key: &str) -> bool {
        property(&self.parameters, key).is_some() && !self.keys.iter().any(|known| known == key)
    }

    fn is_text(&self, key: &str) -> bool {
        property(&self.parameters, key).is_none_or(|property| texts(&self.parameters, property).are_bare())
    }

    /// Behind a function: takes away what closes the outer tag; `None` where another function follows.
    fn tail(&self, pending: &mut String, last: bool) -> Option<Status> {
        let syntax = self.syntax;
        let (_, outer_end) = syntax.outer;
        let rest = pending.trim_start().to_owned();
        if !self.outer {
            return Some(Status::Done);
        }
        if let Some(behind) = rest.strip_prefix(outer_end) {
            *pending = behind.to_owned();
            return Some(Status::Done);
        }
        if rest.starts_with(syntax.function) {
            return None;
        }
        let doubled = [syntax.function_end, syntax.value_end];
        if let Some(behind) = doubled.iter().find_map(|tag| rest.strip_prefix(tag)) {
            *pending = behind.to_owned();
            return self.tail(pending, last);
        }
        let may_come =
            [outer_end, syntax.function].iter().chain(&doubled).any(|tag| tag.starts_with(rest.as_str()));
        Some(if may_come && !last { Status::More } else { Status::Done })
    }
}

impl Parameter {
    /// Takes `len` bytes of the value in.
    fn text(&mut self, pending: &mut String, len: usize, ended: bool, sink: &mut Sink<'_>) {
        let taken = take(pending, len);
        let taken = match ended {
            true => taken.strip_suffix('\n').unwrap_or(&taken),
            false => &taken,
        };
        match self.text {
            true => sink.arguments(&escaped(taken)),
            false => self.held.push_str(taken),
        }
    }
}

/// Behind a parameter's opening: its name, whether it says itself that it is text, and the bytes
/// before the value.
fn header(behind: &str, syntax: &XmlSyntax) -> Head<(String, Option<bool>, usize)> {
    let Some(end) = behind.find(syntax.key_end) else { return Head::More };
    let head = behind.get(..end).unwrap_or_default();
    let rest = behind.get(end + syntax.key_end.len()..).unwrap_or_default();
    let value = match syntax.value {
        "" => rest,
        tag => match rest.trim_start().strip_prefix(tag) {
            Some(value) => value,
            None if tag.starts_with(rest.trim_start()) => return Head::More,
            None => return Head::Text,
        },
    };
    let (key, attributes) = match head.strip_prefix('"').and_then(|head| head.split_once('"')) {
        Some(parts) => parts,
        None => (head.trim(), ""),
    };
    let is_text = match attributes.trim() {
        "string=\"true\"" => Some(true),
        "string=\"false\"" => Some(false),
        _ => None,
    };
    if key.contains('\n') {
        return Head::Text;
    }
    Head::Found((key.to_owned(), is_text, behind.len() - value.len()))
}

fn unquoted(name: &str) -> &str {
    let name = name.trim();
    name.strip_prefix('"').map_or(name, |name| name.split('"').next().unwrap_or_default())
}

/// The parameters' schemas of the tool of that name.
fn schema<'a>(tools: &'a [Value], name: &str) -> Option<&'a Value> {
    let function = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .find(|function| function.get("name").and_then(Value::as_str) == Some(name))?;
    function.get("parameters")
}
