//! A conversation on a terminal, whoever answers.

mod editor;
mod history;
mod line;
mod shown;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::ValueEnum;
use reedline::Signal;

use crate::commands::run::Reasoning;
use crate::console::{Console, stdout};
use crate::failure::paragraph;
use crate::signals;
use line::{HELP, Line};

use shown::Shown;
pub(crate) use shown::{OneShot, Part};

/// Who answers.
pub(crate) trait Partner {
    /// What it is called.
    fn name(&self) -> &str;

    /// What there is to know of it, in lines.
    fn info(&self) -> String;

    /// Begins a new conversation, with another system message if there is one to set.
    fn restart(&mut self, system: Option<Option<String>>);

    /// Lets it think before it answers, or not, and tells what becomes of that.
    fn set_reasoning(&mut self, reasoning: Reasoning) -> &'static str;

    /// A message for it.
    fn push(&mut self, message: String);

    /// Takes the last message back.
    fn pop(&mut self);

    /// Takes the last answer back, so that its message is answered once more in another way. False where there is
    /// nothing to answer.
    fn retry(&mut self) -> bool;

    /// Answers the last message, handing out what there is; a break ends the answer. Gives a line on its speed.
    fn answer(&mut self, on_part: &mut dyn FnMut(Part) -> ControlFlow<()>) -> anyhow::Result<String>;
}

/// Converses until the end of input.
pub(crate) fn run(partner: impl Partner, console: &Console) -> anyhow::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::on_interrupt(interrupted.clone(), false);
    let mut editor = editor::editor(console);
    console.note(format_args!("{}. /help for help, /exit to leave.", partner.name()));
    let mut chat = Chat { partner, console: *console, interrupted };
    loop {
        let ended = match editor.read_line(&editor::Mark).context("the terminal cannot be read")? {
            Signal::Success(line) => chat.obey(&line)?.is_break(),
            Signal::CtrlD => true,
            _ => false,
        };
        if ended {
            return Ok(());
        }
    }
}

struct Chat<P> {
    partner: P,
    console: Console,
    /// Set by Ctrl-C while an answer is made.
    interrupted: Arc<AtomicBool>,
}

impl<P: Partner> Chat<P> {
    fn obey(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        let console = self.console;
        match line::parse(line) {
            Line::Nothing => {}
            Line::Exit => return Ok(ControlFlow::Break(())),
            Line::Help => console.write(&format!("{HELP}\n")),
            Line::Clear => self.restart(None),
            Line::Info => console.write(&format!("{}\n", console.shown(&self.partner.info()))),
            Line::System(text) => self.restart(Some((!text.is_empty()).then(|| text.to_owned()))),
            Line::Reasoning(mode) => console.write(match Reasoning::from_str(mode, true) {
                Ok(mode) => self.partner.set_reasoning(mode),
                Err(_) => "Write /reasoning on, /reasoning off or /reasoning auto.\n",
            }),
            Line::Unknown(command) => {
                console.write(&format!(
                    "{command} is no command; /help lists them. Begin with a space to send it.\n"
                ));
            }
            Line::Retry => match self.partner.retry() {
                true => return self.reply(),
                false => console.write("There is nothing to answer again.\n"),
            },
            Line::Message(text) => {
                self.partner.push(text);
                return self.reply();
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn restart(&mut self, system: Option<Option<String>>) {
        self.partner.restart(system);
        self.console.write("A new conversation.\n");
    }

    /// Answers the last message. What goes wrong with one message does not end the conversation; a closed
    /// terminal does.
    fn reply(&mut self) -> anyhow::Result<ControlFlow<()>> {
        self.interrupted.store(false, Ordering::Relaxed);
        let (mut out, mut failed) = (stdout(), None);
        let mut shown = Shown::default();
        let outcome = self.partner.answer(&mut |part| {
            if let Err(error) = shown.part(&mut out, &self.console, part) {
                failed = Some(error);
            }
            if failed.is_some() || self.interrupted.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        if outcome.is_ok() || !shown.is_empty() {
            writeln!(out)?;
        }
        match outcome {
            Ok(speed) => self.console.note(speed),
            Err(error) => {
                self.partner.pop();
                self.console.error(paragraph(&error));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
