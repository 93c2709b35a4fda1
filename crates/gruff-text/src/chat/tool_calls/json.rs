//! Calls that are JSON objects with a name and arguments, alone or in a list.

use serde_json::Value;

use super::json_stream::{JsonStream, Progress};
use super::sink::{Head, Sink, Status};
use crate::chat::stream::take;

/// How a format frames its JSON.
#[derive(Debug)]
pub(in crate::chat) struct JsonSyntax {
    /// What begins calls; JSON follows. Empty for JSON that stands for itself.
    pub(super) open: &'static str,
    /// What ends them; empty where nothing does.
    pub(super) close: &'static str,
}

/// No name and id before the arguments take more.
const MAX_HEAD: usize = 16 << 10;

/// Reads calls from where their opening tag begins.
#[derive(Debug, Clone)]
pub(super) struct JsonCalls {
    syntax: &'static JsonSyntax,
    state: State,
    /// Whether a list has been opened.
    list: bool,
    /// Whether a call has been put out.
    any: bool,
}

#[derive(Debug, Clone)]
enum State {
    Head,
    /// Inside arguments that are passed on, in so many objects.
    Arguments(JsonStream, usize),
    /// Behind a call, in so many objects.
    Tail(usize),
}

/// The beginning of a call, up to its arguments.
struct Call {
    id: String,
    name: String,
    /// The bytes up to the arguments, or up to the end of the call where they are known.
    len: usize,
    arguments: Option<String>,
    /// Objects that are open.
    objects: usize,
}

impl JsonCalls {
    pub(super) fn new(syntax: &'static JsonSyntax) -> JsonCalls {
        JsonCalls { syntax, state: State::Head, list: false, any: false }
    }

    /// Goes on reading. `known` tells whether there is a tool of a name.
    pub(super) fn read(
        &mut self,
        pending: &mut String,
        last: bool,
        known: impl Fn(&str) -> bool,
        sink: &mut Sink<'_>,
    ) -> Status {
        loop {
            match &mut self.state {
                State::Head => match self.head(pending) {
                    Head::Found(call) if known(&call.name) => {
                        take(pending, call.len);
                        self.any = true;
                        match call.arguments {
                            Some(arguments) => {
                                sink.whole(&call.id, &call.name, &arguments);
                                self.state = State::Tail(call.objects);
                            }
                            None => {
                                sink.start(&call.id, &call.name);
                                self.state = State::Arguments(JsonStream::default(), call.objects);
                            }
                        }
                    }
                    Head::More if !last && pending.len() <= MAX_HEAD => return Status::More,
                    _ if self.any => return Status::Done,
                    _ => return Status::Text,
                },
                State::Arguments(stream, objects) => {
                    let objects = *objects;
                    let Some(()) = pass(stream, pending, last, sink) else { return Status::More };
                    sink.end();
                    self.state = State::Tail(objects);
                }
                State::Tail(objects) => {
                    let mut objects = *objects;
                    let status = self.tail(&mut objects, pending, last);
                    match status {
                        Some(status) => {
                            self.state = State::Tail(objects);
                            return status;
                        }
                        None => self.state = State::Head,
                    }
                }
            }
        }
    }

    fn head(&mut self, pending: &str) -> Head<Call> {
        let opened =
            if self.any { pending } else { pending.get(self.syntax.open.len()..).unwrap_or_default() };
        let mut body = opened.trim_start();
        if !self.any
            && let Some(inside) = body.strip_prefix('[')
        {
            self.list = true;
            body = inside.trim_start();
        }
        match body.chars().next() {
            None => Head::More,
            Some('{') => match call(body) {
                Head::Found(mut call) => {
                    call.len += pending.len() - body.len();
                    Head::Found(call)
                }
                other => other,
            },
            Some(_) => Head::Text,
        }
    }

    /// Takes away what closes a call; `None` where another one follows.
    fn tail(&self, objects: &mut usize, pending: &mut String, last: bool) -> Option<Status> {
        let framed = !self.syntax.close.is_empty();
        loop {
            let rest = pending.trim_start();
            let space = pending.len() - rest.len();
            let skip = |pending: &mut String, len: usize| drop(take(pending, space + len));
            match rest.chars().next() {
                None if last => return Some(Status::Done),
                None if framed || *objects > 0 || self.list => return Some(Status::More),
                None => return Some(Status::Done),
                Some('}') if framed || *objects > 0 => {
                    *objects = objects.saturating_sub(1);
                    skip(pending, 1);
                }
                Some(',') => {
                    let after = rest.get(1..).unwrap_or_default().trim_start();
                    let len = rest.len() - after.len();
                    match after.chars().next() {
                        None if !last => return Some(Status::More),
                        Some('{') if self.list || framed => {
                            skip(pending, len);
                            return None;
                        }
                        Some('"') if *objects > 0 => match member(after) {
                            Head::Found((_, value, used)) => match value {
                                Head::Found((_, value)) => skip(pending, len + used + value),
                                Head::More if !last => return Some(Status::More),
                                _ => return Some(Status::Done),
                            },
                            Head::More if !last => return Some(Status::More),
                            _ => return Some(Status::Done),
                        },
                        _ => return Some(Status::Done),
                    }
                }
                Some(']') if self.list => {
                    skip(pending, 1);
                    if !framed {
                        return Some(Status::Done);
                    }
                }
                Some('{') if framed => {
                    skip(pending, 0);
                    return None;
                }
                Some(_) if framed && rest.starts_with(self.syntax.close) => {
                    skip(pending, self.syntax.close.len());
                    return Some(Status::Done);
                }
                Some(_) if framed && !last && self.syntax.close.starts_with(rest) => {
                    return Some(Status::More);
                }
                Some(_) => return Some(Status::Done),
            }
        }
    }
}

/// Passes arguments on; `None` while they are not at their end.
pub(super) fn pass(
    stream: &mut JsonStream,
    pending: &mut String,
    last: bool,
    sink: &mut Sink<'_>,
) -> Option<()> {
    let mut out = String::new();
    let progress = stream.feed(pending, &mut out);
    let used = match progress {
        Progress::More => pending.len(),
        Progress::Done(at) | Progress::Fault(at) => at,
    };
    take(pending, used);
    let ended = last || progress != Progress::More;
    if ended {
        stream.close(&mut out);
    }
    sink.arguments(&out);
    ended.then_some(())
}

/// A value that is at hand as a whole: valid JSON for it, and its length.
fn value(text: &str) -> Head<(String, usize)> {
    let (mut stream, mut out) = (JsonStream::default(), String::new());
    match stream.feed(text, &mut out) {
        Progress::Done(at) => Head::Found((out, at)),
        Progress::More => Head::More,
        Progress::Fault(_) => Head::Text,
    }
}

/// A key with its colon: the key, what is known of the value behind it, and where that begins.
#[allow(clippy::type_complexity)]
fn member(text: &str) -> Head<(String, Head<(String, usize)>, usize)> {
    let (key, len) = match value(text) {
        Head::Found(found) => found,
        Head::More => return Head::More,
        Head::Text => return Head::Text,
    };
    let Ok(key) = serde_json::from_str::<String>(&key) else { return Head::Text };
    let rest = text.get(len..).unwrap_or_default().trim_start();
    let Some(after) = rest.strip_prefix(':') else {
        return if rest.is_empty() { Head::More } else { Head::Text };
    };
    let after = after.trim_start();
    Head::Found((key, value(after), text.len() - after.len()))
}

/// Reads an object up to its arguments.
fn call(text: &str) -> Head<Call> {
    let mut found = Call { id: String::new(), name: String::new(), len: 1, arguments: None, objects: 1 };
    loop {
        let rest = text.get(found.len..).unwrap_or_default();
        let trimmed = rest.trim_start_matches([' ', '\n', '\r', '\t', ',']);
        found.len += rest.len() - trimmed.len();
        match trimmed.chars().next() {
            None => return Head::More,
            Some('}') => {
                found.len += 1;
                found.objects -= 1;
                if found.objects > 0 && found.name.is_empty() {
                    continue;
                }
                if found.name.is_empty() {
                    return Head::Text;
                }
                found.arguments.get_or_insert_with(|| "{}".to_owned());
                return Head::Found(found);
            }
            Some('"') => {}
            Some(_) => return Head::Text,
        }
        let (key, content, at) = match member(trimmed) {
            Head::Found(member) => member,
            Head::More => return Head::More,
            Head::Text => return Head::Text,
        };
        let begins = trimmed.get(at..).unwrap_or_default();
        match key.as_str() {
            "function" if begins.starts_with('{') && found.objects == 1 => {
                found.objects += 1;
                found.len += at + 1;
                continue;
            }
            "arguments" | "parameters" if begins.starts_with('{') && !found.name.is_empty() => {
                found.len += at;
                return Head::Found(found);
            }
            _ => {}
        }
        let (content, len) = match content {
            Head::Found(content) => content,
            Head::More => return Head::More,
            Head::Text => return Head::Text,
        };
        found.len += at + len;
        let text = || serde_json::from_str::<String>(&content).ok();
        match key.as_str() {
            "name" | "tool_name" | "function" => found.name = text().unwrap_or_default(),
            "id" | "tool_call_id" => found.id = text().unwrap_or_default(),
            "arguments" | "parameters" => found.arguments = Some(arguments(content)),
            _ => {}
        }
    }
}

/// Arguments that are a string of JSON are what it says; `null` is none.
fn arguments(content: String) -> String {
    match serde_json::from_str::<Value>(&content) {
        Ok(Value::Null) => "{}".to_owned(),
        Ok(Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(Value::Object(_)) => text.trim().to_owned(),
            _ => content,
        },
        _ => content,
    }
}
