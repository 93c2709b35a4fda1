//! How an answer is shown while it comes.

use std::io::{self, Write};

use crate::console::{Console, Stdout, stdout};

/// A part of an answer as it comes.
pub(crate) enum Part<'a> {
    /// Nothing to show yet; a moment to look for an interruption.
    Waiting,
    Reasoning(&'a str),
    Text(&'a str),
}

/// What of an answer is on the screen: reasoning set back, before the text.
#[derive(Default)]
pub(super) struct Shown {
    thinking: bool,
    any: bool,
}

impl Shown {
    pub(super) fn is_empty(&self) -> bool {
        !self.any
    }

    pub(super) fn part(&mut self, out: &mut Stdout, console: &Console, part: Part) -> io::Result<()> {
        match part {
            Part::Waiting => return Ok(()),
            Part::Reasoning(text) => {
                self.thinking = true;
                let shown = console.dim(out.shown(text));
                write!(out, "{shown}")?;
            }
            Part::Text(text) => {
                if !text.is_empty() && std::mem::take(&mut self.thinking) {
                    write!(out, "\n\n")?;
                }
                out.write_text(text)?;
            }
        }
        self.any = true;
        out.flush()
    }
}

/// An answer to one prompt: text to standard output, reasoning to standard error.
pub(crate) struct OneShot {
    console: Console,
    out: Stdout,
    thinking: bool,
    any: bool,
    ends_line: bool,
}

impl OneShot {
    pub(crate) fn new(console: &Console) -> Self {
        Self { console: *console, out: stdout(), thinking: false, any: false, ends_line: false }
    }

    pub(crate) fn part(&mut self, part: Part) -> io::Result<()> {
        match part {
            Part::Waiting => Ok(()),
            Part::Reasoning(text) => {
                self.thinking = true;
                self.aside(&self.console.dim(self.console.shown(text)));
                Ok(())
            }
            Part::Text("") => Ok(()),
            Part::Text(text) => {
                if std::mem::take(&mut self.thinking) {
                    self.aside("\n");
                }
                self.any = true;
                self.ends_line = text.ends_with('\n');
                self.out.write_text(text).and_then(|()| self.out.flush())
            }
        }
    }

    /// The end: a file or pipe gets a whole last line, as from any other program.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.thinking) {
            self.aside("\n");
        }
        if !self.ends_line {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// The end of an answer that broke off: what there is of it ends its line.
    pub(crate) fn finish_if_any(&mut self) -> io::Result<()> {
        if self.any || self.thinking { self.finish() } else { Ok(()) }
    }

    fn aside(&self, text: &str) {
        if !self.console.is_quiet() {
            self.console.write(text);
        }
    }
}
