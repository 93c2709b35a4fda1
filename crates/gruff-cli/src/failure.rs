//! How a command ends when it does not succeed.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::console::Console;

/// A command line that cannot be meant: exit code 2, as for what clap refuses.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Refuses the command line.
pub(crate) fn usage<T>(fault: impl Into<String>) -> anyhow::Result<T> {
    Err(Usage(fault.into()).into())
}

/// Says what went wrong in one paragraph and gives the exit code.
pub(crate) fn report(error: &anyhow::Error, console: &Console) -> ExitCode {
    if is_closed_pipe(error) {
        // The reader has what it wanted (`gruff list | head -1`).
        return ExitCode::SUCCESS;
    }
    console.error(paragraph(error));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

/// The error and its causes, in one line; a cause that the error repeats is not said twice.
pub(crate) fn paragraph(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if cause.starts_with(&format!("{text}:")) {
            text.clear();
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_make_one_paragraph() {
        let error = Err::<(), _>(io::Error::other("no\nroom")).context("cannot write a.npy").unwrap_err();
        assert_eq!(paragraph(&error), "cannot write a.npy: no room");
        let twice = Err::<(), _>(io::Error::other("no room")).context("a.npy: no room").unwrap_err();
        assert_eq!(paragraph(&twice), "a.npy: no room");
        let named = Err::<(), _>(io::Error::other("a.gguf: no key")).context("a.gguf").unwrap_err();
        assert_eq!(paragraph(&named), "a.gguf: no key");
    }

    #[test]
    fn a_closed_pipe_is_seen_through_context() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::from(closed).context("standard output")));
        assert!(!is_closed_pipe(&anyhow::anyhow!("else")));
    }
}
