//! What goes to standard error: notes, warnings, errors. A closed stream is nobody's problem there.

use std::fmt::{Arguments, Display};
use std::io::{IsTerminal, Write};

use clap::Args;
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

/// Standard error, and how much goes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    verbose: bool,
    quiet: bool,
    terminal: bool,
    color: bool,
}

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

    /// Sends the library's events to standard error: those that `GRUFF_LOG` selects, else warnings.
    pub(crate) fn trace_to_stderr(&self) {
        let default = if self.quiet { "error" } else { "warn" };
        let filter = EnvFilter::try_from_env("GRUFF_LOG").unwrap_or_else(|_| EnvFilter::new(default));
        // A second call, in a test, keeps the first subscriber.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(self.color)
            .without_time()
            .try_init();
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
            self.line(format_args!("{}", self.dim(text)));
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
            self.line(format_args!("warning: {text}"));
        }
    }

    /// The reason for giving up.
    pub(crate) fn error(&self, text: impl Display) {
        let (red, reset) = if self.color { (RED, RESET) } else { ("", "") };
        self.line(format_args!("{red}error:{reset} {text}"));
    }

    /// Text as it is, without a line end.
    pub(crate) fn write(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }

    /// Text set back, where the stream can show that.
    pub(crate) fn dim(&self, text: impl Display) -> String {
        if self.color { format!("{DIM}{text}{RESET}") } else { text.to_string() }
    }

    fn line(&self, text: Arguments) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
