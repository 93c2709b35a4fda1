//! Progress bars: of downloads, of files that are written, of pieces of work.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use gruff::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::console::Console;
use crate::signals;
use crate::size::Bytes;

const BAR: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const PERCENT: &str = "{msg} [{bar:30}] {percent}% {eta}";
const COUNTER: &str = "{msg} [{bar:30}] {pos}/{len} {eta}";
const SPINNER: &str = "{msg} {spinner} {bytes} {bytes_per_sec}";

/// Draws a bar on a terminal; elsewhere writes a line when a file begins.
pub(crate) struct DownloadProgress {
    console: Console,
    bar: Mutex<Option<ProgressBar>>,
}

impl DownloadProgress {
    pub(crate) fn new(console: Console) -> Self {
        Self { console, bar: Mutex::new(None) }
    }

    fn with_bar(&self, change: impl FnOnce(&mut Option<ProgressBar>)) {
        change(&mut self.bar.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }
}

impl Progress for DownloadProgress {
    fn start(&self, name: &str, total: Option<u64>, done: u64) {
        if self.console.is_quiet() {
            return;
        }
        if !self.console.is_terminal() {
            let total = total.map_or(String::new(), |total| format!(" ({})", Bytes(total)));
            let resumed = if done > 0 { format!(", going on from {}", Bytes(done)) } else { String::new() };
            self.console.note(format_args!("downloading {name}{total}{resumed}"));
            return;
        }
        let new = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        if let Ok(style) = ProgressStyle::with_template(if total.is_some() { BAR } else { SPINNER }) {
            new.set_style(style.progress_chars("=> "));
        }
        new.set_message(name.to_owned());
        new.set_position(done);
        new.reset_eta();
        self.with_bar(|bar| {
            if let Some(old) = bar.replace(new) {
                old.finish_and_clear();
            }
        });
    }

    fn advance(&self, bytes: u64) {
        self.with_bar(|bar| bar.iter().for_each(|bar| bar.inc(bytes)));
    }

    fn finish(&self) {
        self.with_bar(|bar| {
            if let Some(bar) = bar.take() {
                bar.finish();
            }
        });
    }

    fn notice(&self, message: &str) {
        if self.console.is_quiet() {
            return;
        }
        self.with_bar(|bar| match bar {
            Some(bar) => bar.println(message),
            None => self.console.note(message),
        });
    }
}

/// Draws a bar on a terminal while a file is made of others.
pub(crate) struct ConversionProgress {
    console: Console,
    message: String,
    bar: Mutex<Option<ProgressBar>>,
}

impl ConversionProgress {
    pub(crate) fn new(console: Console, message: impl Into<String>) -> Self {
        Self { console, message: message.into(), bar: Mutex::new(None) }
    }

    fn with_bar(&self, change: impl FnOnce(&mut Option<ProgressBar>)) {
        change(&mut self.bar.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }
}

impl gruff::floors::convert::Progress for ConversionProgress {
    fn start(&self, total: u64) {
        if self.console.is_quiet() || !self.console.is_terminal() {
            return;
        }
        let new = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(PERCENT) {
            new.set_style(style.progress_chars("=> "));
        }
        new.set_message(self.message.clone());
        self.with_bar(|bar| *bar = Some(new));
    }

    fn advance(&self, values: u64) {
        self.with_bar(|bar| bar.iter().for_each(|bar| bar.inc(values)));
    }

    fn finish(&self) {
        self.with_bar(|bar| {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        });
    }
}

/// A bar that counts pieces of work, on a terminal; elsewhere nothing. Ctrl-C ends the work behind the piece that is
/// in progress, so that nothing is left half done; a second one ends the program at once.
pub(crate) struct Counter {
    what: &'static str,
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl Counter {
    pub(crate) fn new(console: &Console, what: &'static str) -> Self {
        let bar = if console.is_terminal() && !console.is_quiet() {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(COUNTER) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        let interrupted = Arc::new(AtomicBool::new(false));
        signals::on_interrupt(interrupted.clone(), true);
        Self { what, bar, interrupted }
    }

    /// So many of so many pieces are done. `line` may write to a terminal meanwhile: the bar makes room for it.
    pub(crate) fn advance<T>(&self, done: usize, total: usize, line: impl FnOnce() -> T) -> T {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.suspend(line)
    }

    /// So many of so many pieces are done: whether to go on.
    pub(crate) fn step(&self, done: usize, total: usize) -> ControlFlow<()> {
        self.advance(done, total, || ());
        if self.interrupted.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// An error when Ctrl-C has ended the work before its end.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        if done < total && self.interrupted.load(Ordering::Relaxed) {
            anyhow::bail!("stopped after {done} of {total} {}", self.what);
        }
        Ok(())
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
