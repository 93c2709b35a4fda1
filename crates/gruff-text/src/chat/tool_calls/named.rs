//! Calls that give a name in tags and then the arguments as JSON.

use super::json::pass;
use super::json_stream::JsonStream;
use super::sink::{Head, Sink, Status};
use crate::chat::stream::take;

/// How a format frames the name and the arguments.
#[derive(Debug)]
pub(in crate::chat) struct NamedSyntax {
    /// What may stand around all calls, once: before the first and after the last.
    pub(super) section: (&'static str, &'static str),
    /// What begins a call, and what may follow that.
    pub(super) open: (&'static str, &'static str),
    /// What stands between id or name and the arguments; any of them, or none where the arguments' brace does.
    pub(super) between: &'static [&'static str],
    /// What stands around the arguments, in order.
    pub(super) close: &'static [&'static str],
    /// How the name is told from what else stands there.
    pub(super) name: NameStyle,
}

/// How a name is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) enum NameStyle {
    /// Alone.
    Plain,
    /// `functions.NAME:INDEX`, the whole of which is the call's id (Kimi).
    Indexed,
    /// `NAME[CALL_ID]ID` (Mistral).
    WithId,
    /// In the header of a message, behind ` to=functions.` (gpt-oss).
    Recipient,
}

/// What stands between a name and an id.
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// No header is longer; what is, is text.
const MAX_HEAD: usize = 600;

/// Reads calls from where the section's or a call's opening tag begins.
#[derive(Debug, Clone)]
pub(super) struct NamedCalls {
    syntax: &'static NamedSyntax,
    state: State,
    any: bool,
}

#[derive(Debug, Clone)]
enum State {
    Head,
    Arguments(JsonStream),
    Tail,
}

impl NamedCalls {
    pub(super) fn new(syntax: &'static NamedSyntax) -> NamedCalls {
        NamedCalls { syntax, state: State::Head, any: false }
    }

    pub(super) fn read(&mut self, pending: &mut String, last: bool, sink: &mut Sink<'_>) -> Status {
        loop {
            match &mut self.state {
                State::Head => match self.head(pending) {
                    Head::Found((id, name, len)) => {
                        take(pending, len);
                        self.any = true;
                        sink.start(&id, &name);
                        self.state = State::Arguments(JsonStream::default());
                    }
                    Head::More if !last && pending.len() <= MAX_HEAD => return Status::More,
                    _ if self.any => return Status::Done,
                    _ => return Status::Text,
                },
                State::Arguments(stream) => {
                    let Some(()) = pass(stream, pending, last, sink) else { return Status::More };
                    sink.end();
                    self.state = State::Tail;
                }
                State::Tail => match self.tail(pending, last) {
                    Some(status) => return status,
                    None => self.state = State::Head,
                },
            }
        }
    }

    /// Id, name, and the bytes before the arguments.
    fn head(&self, pending: &str) -> Head<(String, String, usize)> {
        let syntax = self.syntax;
        let mut rest = pending.trim_start();
        for tag in [syntax.section.0, syntax.open.0] {
            match after(rest, tag) {
                Head::Found(behind) => rest = behind.trim_start(),
                Head::More => return Head::More,
                Head::Text if tag == syntax.open.0 => return Head::Text,
                Head::Text => {}
            }
        }
        if let Head::Found(behind) = after(rest, syntax.open.1) {
            rest = behind;
        }
        let Some(brace) = rest.find('{') else {
            return if plausible(rest) { Head::More } else { Head::Text };
        };
        let mut header = rest.get(..brace).unwrap_or_default();
        let len = pending.len() - rest.len() + brace;
        // What would have been text before its brace came is text with it.
        if len > MAX_HEAD || !plausible(header) {
            return Head::Text;
        }
        let mut id = "";
        if syntax.name == NameStyle::Recipient {
            let Some((head, _)) = header.split_once("<|message|>") else { return Head::Text };
            header = head;
        }
        for between in syntax.between {
            header = header.split_once(between).map_or(header, |(head, _)| head);
        }
        let mut name = header.trim();
        match syntax.name {
            NameStyle::Plain => {}
            NameStyle::Indexed => {
                id = name;
                name = name.rsplit_once(':').map_or(name, |(name, _)| name);
                name = name.strip_prefix("functions.").unwrap_or(name);
            }
            NameStyle::WithId => (name, id) = name.split_once(CALL_ID).unwrap_or((name, "")),
            NameStyle::Recipient => {
                let Some((_, recipient)) = name.split_once("to=") else { return Head::Text };
                let end = recipient.find([' ', '<']).unwrap_or(recipient.len());
                name = recipient.get(..end).unwrap_or_default();
                name = name.strip_prefix("functions.").unwrap_or(name);
            }
        }
        if name.is_empty() || name.contains(char::is_whitespace) || name.contains(['"', '[', '<']) {
            return Head::Text;
        }
        Head::Found((id.trim().to_owned(), name.to_owned(), len))
    }

    /// Takes away what closes a call; `None` where another one follows.
    fn tail(&self, pending: &mut String, last: bool) -> Option<Status> {
        let syntax = self.syntax;
        loop {
            let rest = pending.trim_start();
            let tags = syntax.close.iter().chain([&syntax.section.1]).filter(|tag| !tag.is_empty());
            let mut may_come = rest.is_empty() && (!syntax.close.is_empty() || !syntax.section.1.is_empty());
            let mut found = None;
            for tag in tags.clone() {
                match after(rest, tag) {
                    Head::Found(behind) => found = Some((behind.to_owned(), *tag == syntax.section.1)),
                    Head::More => may_come = true,
                    Head::Text => {}
                }
            }
            match found {
                Some((behind, over)) => {
                    *pending = behind;
                    if over {
                        return Some(Status::Done);
                    }
                    continue;
                }
                None if may_come && !last => return Some(Status::More),
                None => {}
            }
            return match after(rest, syntax.open.0) {
                Head::Found(_) if !syntax.section.1.is_empty() => None,
                Head::More if !syntax.section.1.is_empty() && !last => Some(Status::More),
                _ => Some(Status::Done),
            };
        }
    }
}

/// What stands behind a tag that the text begins with.
fn after<'a>(text: &'a str, tag: &str) -> Head<&'a str> {
    match text.strip_prefix(tag) {
        Some(behind) => Head::Found(behind),
        None if tag.starts_with(text) => Head::More,
        None => Head::Text,
    }
}

/// Whether a header without arguments may still get some.
fn plausible(header: &str) -> bool {
    header.lines().count() <= 3
}
