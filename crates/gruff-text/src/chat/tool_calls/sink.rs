//! Where readers of calls put what they find.

use super::OutputEvent;

/// Events, and the number of the call they belong to.
pub(super) struct Sink<'a> {
    pub(super) out: &'a mut Vec<OutputEvent>,
    /// Calls begun so far.
    pub(super) calls: &'a mut usize,
}

impl Sink<'_> {
    fn index(&self) -> usize {
        self.calls.saturating_sub(1)
    }

    pub(super) fn start(&mut self, id: &str, name: &str) {
        let index = *self.calls;
        *self.calls += 1;
        self.out.push(OutputEvent::CallStart { index, id: id.to_owned(), name: name.to_owned() });
    }

    pub(super) fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let index = self.index();
        match self.out.last_mut() {
            Some(OutputEvent::CallArguments { text: last, .. }) => last.push_str(text),
            _ => self.out.push(OutputEvent::CallArguments { index, text: text.to_owned() }),
        }
    }

    pub(super) fn end(&mut self) {
        self.out.push(OutputEvent::CallEnd { index: self.index() });
    }

    /// A call whose arguments are known as a whole.
    pub(super) fn whole(&mut self, id: &str, name: &str, arguments: &str) {
        self.start(id, name);
        self.arguments(arguments);
        self.end();
    }
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// More text is needed.
    More,
    /// The text is no call. Nothing of it has been taken, and nothing put out.
    Text,
    /// The calls are read and their text is taken away.
    Done,
}

/// What the beginning of a call tells.
pub(super) enum Head<T> {
    /// What was looked for.
    Found(T),
    /// More text is needed.
    More,
    /// The text is no call.
    Text,
}
