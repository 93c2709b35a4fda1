//! What goes to standard error: notes, warnings, errors. A closed stream is nobody's problem there.

use std::borrow::Cow;
use std::fmt::{Arguments, Display};
use std::io::{self, IsTerminal, StdoutLock, Write};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How much to say.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Say more on standard error: the memory plan, where files come from
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
    /// Say nothing on standard error but errors
    #[arg(short, long, global = true, help_heading = "Output")]
    quiet: bool,
}

/// How events of the server are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// An object a line
    Json,
}

/// Standard error, and how much goes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    verbose: bool,
    quiet: bool,
    terminal: bool,
    color: bool,
}

/// Characters of a line at most: more than any explanation needs, and no screens full of what a file holds.
const LONGEST: usize = 4000;

/// Dark text.
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

impl Console {
    pub(crate) fn new(args: &OutputArgs) -> Self {
        let terminal = std::io::stderr().is_terminal();
        // https://no-color.org
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { verbose: args.verbose, quiet: args.quiet, terminal, color: terminal && !plain }
    }

    /// Sends the library's events to standard error: those that `GRUFF_LOG` selects, else warnings, and with a format
    /// also what a server tells of its requests.
    pub(crate) fn trace_to_stderr(&self, format: Option<LogFormat>) {
        let default = match (format, self.quiet) {
            (Some(_), _) => "warn,gruff_server=info",
            (None, true) => "error",
            (None, false) => "warn",
        };
        let filter = EnvFilter::try_from_env("GRUFF_LOG").unwrap_or_else(|_| EnvFilter::new(default));
        let to_stderr = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(self.color);
        // A second call, in a test, keeps the first subscriber.
        let _ = match format {
            None => to_stderr.without_time().try_init(),
            Some(LogFormat::Text) => to_stderr.try_init(),
            Some(LogFormat::Json) => to_stderr.json().flatten_event(true).with_span_list(false).try_init(),
        };
    }

    /// Whether a person watches standard error.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// A line that a person may want, unless they asked for quiet.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.line(format_args!("{}", self.dim(plain(&text.to_string()))));
        }
    }

    /// A line that only the curious want.
    pub(crate) fn detail(&self, text: impl Display) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Something that may make the answer wrong.
    pub(crate) fn warn(&self, text: impl Display) {
        if !self.quiet {
            self.line(format_args!("warning: {}", plain(&text.to_string())));
        }
    }

    /// The reason for giving up.
    pub(crate) fn error(&self, text: impl Display) {
        let (red, reset) = if self.color { (RED, RESET) } else { ("", "") };
        self.line(format_args!("{red}error:{reset} {}", plain(&text.to_string())));
    }

    /// Text as it is, without a line end.
    pub(crate) fn write(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Text of a model or file as it may be shown here.
    pub(crate) fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.terminal { harmless(text) } else { Cow::Borrowed(text) }
    }

    /// Text set back, where the stream can show that.
    pub(crate) fn dim(&self, text: impl Display) -> String {
        if self.color { format!("{DIM}{text}{RESET}") } else { text.to_string() }
    }

    fn line(&self, text: Arguments) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Text that may quote a file, as a terminal may show it: characters that would steer the terminal or turn the
/// direction of writing are spelled out, and what is endless is cut.
fn plain(text: &str) -> String {
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    for c in text.chars().take(LONGEST) {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    let left = text.chars().skip(LONGEST).count();
    if left > 0 {
        shown.push_str(&format!("… ({left} more characters)"));
    }
    shown
}

/// Text of a model or file, as a terminal may show it while it comes piece by piece: line ends and tabs are kept,
/// carriage returns left out, other control characters spelled out.
fn harmless(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars().filter(|c| *c != '\r') {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Standard output, whose errors say so.
pub(crate) struct Stdout(StdoutLock<'static>);

/// Standard output, until the value is dropped.
pub(crate) fn stdout() -> Stdout {
    Stdout(std::io::stdout().lock())
}

impl Stdout {
    pub(crate) fn is_terminal(&self) -> bool {
        self.0.is_terminal()
    }

    /// Text of a model or file as it may be shown here: a pipe gets it as it is, a terminal without what would steer it.
    pub(crate) fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_terminal() { harmless(text) } else { Cow::Borrowed(text) }
    }

    /// Writes text of a model or file, as it may be shown.
    pub(crate) fn write_text(&mut self, text: &str) -> io::Result<()> {
        let text = self.shown(text);
        self.write_all(text.as_bytes())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// The kind stays: a closed pipe is told by it.
fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_does_not_steer_the_terminal() {
        assert_eq!(plain("a\tb\nç漢😀"), "a\tb\nç漢😀");
        assert_eq!(plain("\u{1b}]0;x\u{7}\r\u{9b}m\u{202e}"), "\\u{1b}]0;x\\u{7}\\r\\u{9b}m\\u{202e}");
        assert_eq!(harmless("a\tb\r\nç漢😀\u{202b}"), "a\tb\nç漢😀\u{202b}");
        assert_eq!(harmless("\u{1b}[2J\u{7}\u{9b}m\u{7f}"), "\\u{1b}[2J\\u{7}\\u{9b}m\\u{7f}");
        assert!(matches!(harmless("plain\n"), Cow::Borrowed(_)));
        let long = plain(&"é".repeat(LONGEST + 5));
        assert!(long.ends_with("é… (5 more characters)"), "{long}");
        assert_eq!(plain(&"é".repeat(LONGEST)).chars().count(), LONGEST);
    }
}
