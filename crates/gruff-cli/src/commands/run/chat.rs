//! A conversation on a terminal.

use std::borrow::Cow;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::ValueEnum;
use gruff::{Conversation, Message};
use reedline::{Prompt, PromptEditMode, PromptHistorySearch, Reedline, Signal, ValidationResult, Validator};

use super::answer::{Answer, AnswerPrompt, Part};
use super::{Reasoning, Runner, history};
use crate::console::{Stdout, stdout};
use crate::signals;

const HELP: &str = "\
/help               this text
/clear              begin a new conversation
/system [TEXT]      begin a new conversation with this system message; without TEXT, none
/reasoning on|off|auto
                    let the model think before it answers, or not
/retry              answer the last message again, with other random numbers
/info               model, memory, tokens so far
/exit, Ctrl-D       leave
Ctrl-C              stop the answer; at the prompt, drop the line
Alt-Enter           a new line in the message; so does a backslash at the end of a line
\"\"\"                 opens a message of several lines, which \"\"\" closes";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Exit,
    Help,
    Clear,
    Info,
    Retry,
    System(&'a str),
    Reasoning(&'a str),
    Unknown(&'a str),
    Message(String),
}

struct Chat {
    runner: Runner,
    conversation: Conversation,
    /// Set by Ctrl-C while an answer is generated.
    interrupted: Arc<AtomicBool>,
    /// Tokens of the last prompt and answer.
    tokens: usize,
}

/// Converses until the end of input.
pub(super) fn run(runner: Runner) -> anyhow::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::on_interrupt(interrupted.clone(), false);
    let mut editor = editor(&runner);
    let conversation = Conversation::new(runner.opening());
    let mut chat = Chat { runner, conversation, interrupted, tokens: 0 };
    chat.runner.console.note(format_args!("{}. /help for help, /exit to leave.", chat.runner.name));
    loop {
        let ended = match editor.read_line(&Mark).context("the terminal cannot be read")? {
            Signal::Success(line) => chat.obey(&line)?.is_break(),
            Signal::CtrlD => true,
            _ => false,
        };
        if ended {
            return Ok(());
        }
    }
}

impl Chat {
    fn obey(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        let console = self.runner.console;
        match parse(line) {
            Line::Nothing => {}
            Line::Exit => return Ok(ControlFlow::Break(())),
            Line::Help => console.write(&format!("{HELP}\n")),
            Line::Clear => self.restart(),
            Line::Info => self.info(),
            Line::System(text) => {
                self.runner.system = (!text.is_empty()).then(|| text.to_owned());
                self.restart();
            }
            Line::Reasoning(mode) => self.reasoning(mode),
            Line::Unknown(command) => {
                console.write(&format!(
                    "{command} is no command; /help lists them. Begin with a space to send it.\n"
                ));
            }
            Line::Retry => return self.retry(),
            Line::Message(text) => {
                self.conversation.push(Message::user(text));
                return self.reply();
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn restart(&mut self) {
        self.conversation = Conversation::new(self.runner.opening());
        self.tokens = 0;
        self.runner.console.write("A new conversation.\n");
    }

    fn info(&self) {
        let memory =
            self.runner.model.memory().map_or_else(|error| error.to_string(), |memory| memory.to_string());
        self.runner.console.write(&format!(
            "{}\n{} on {}\nmemory: {memory}\n{} messages, {} tokens\n",
            self.runner.name,
            self.runner.model.model().config().architecture,
            self.runner.model.device().name(),
            self.conversation.messages().len(),
            self.tokens,
        ));
    }

    fn reasoning(&mut self, mode: &str) {
        let text = match Reasoning::from_str(mode, true) {
            Ok(mode) => {
                self.runner.set_reasoning(mode);
                match (mode, self.runner.switchable) {
                    (Reasoning::Auto, _) => "Reasoning is as the model's template has it.\n",
                    (_, true) => "As you wish, from the next answer on.\n",
                    (_, false) => "This model's template does not let reasoning be switched.\n",
                }
            }
            Err(_) => "Write /reasoning on, /reasoning off or /reasoning auto.\n",
        };
        self.runner.console.write(text);
    }

    fn retry(&mut self) -> anyhow::Result<ControlFlow<()>> {
        let mut messages = self.conversation.messages().to_vec();
        if messages.last().is_some_and(|message| message.role() == Some("assistant")) {
            messages.pop();
        }
        if messages.last().and_then(Message::role) != Some("user") {
            self.runner.console.write("There is nothing to answer again.\n");
            return Ok(ControlFlow::Continue(()));
        }
        self.runner.config.seed = self.runner.config.seed.map(|seed| seed.wrapping_add(1));
        self.conversation = Conversation::new(messages);
        self.reply()
    }

    /// Answers the last message. What goes wrong with one message does not end the conversation; a closed
    /// terminal does.
    fn reply(&mut self) -> anyhow::Result<ControlFlow<()>> {
        self.interrupted.store(false, Ordering::Relaxed);
        let (mut out, mut failed) = (stdout(), None);
        let mut shown = Shown::default();
        let outcome = self.prompt().and_then(|prompt| {
            self.runner.answer(&prompt, |part| {
                if let Err(error) = shown.part(&mut out, &self.runner, part) {
                    failed = Some(error);
                }
                if failed.is_some() || self.interrupted.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        match outcome {
            Ok(answer) => {
                writeln!(out)?;
                self.runner.console.note(answer.speed());
                self.take(&answer);
            }
            Err(error) => {
                self.conversation.pop();
                self.runner.console.error(format_args!("{error:#}"));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn prompt(&mut self) -> anyhow::Result<AnswerPrompt> {
        let tokenizer = &self.runner.tokenizer;
        if self.runner.raw {
            let text = self.conversation.messages().last().map(Message::text).unwrap_or_default();
            let ids = tokenizer.encode(&text)?;
            return Ok(AnswerPrompt { text, ids });
        }
        let ids = self.conversation.prompt(tokenizer, &self.runner.chat)?;
        Ok(AnswerPrompt { text: self.conversation.text().to_owned(), ids })
    }

    fn take(&mut self, answer: &Answer) {
        self.tokens = answer.usage.prompt_tokens + answer.usage.new_tokens;
        let mut message = Message::assistant(&answer.text);
        if let Some(reasoning) = &answer.reasoning {
            message = message.with_reasoning(reasoning);
        }
        self.conversation.answered(&self.runner.tokenizer, &answer.ids, message);
    }
}

/// What of an answer is on the screen.
#[derive(Default)]
struct Shown {
    thinking: bool,
}

impl Shown {
    fn part(&mut self, out: &mut Stdout, runner: &Runner, part: Part) -> std::io::Result<()> {
        match part {
            Part::Waiting => return Ok(()),
            Part::Reasoning(text) => {
                self.thinking = true;
                let shown = runner.console.dim(out.shown(text));
                write!(out, "{shown}")?;
            }
            Part::Text(text) => {
                if std::mem::take(&mut self.thinking) {
                    write!(out, "\n\n")?;
                }
                out.write_text(text)?;
            }
        }
        out.flush()
    }
}

/// Understands a line.
fn parse(line: &str) -> Line<'_> {
    let trimmed = line.trim();
    if trimmed.is_empty() || trimmed == "\"\"\"" {
        return Line::Nothing;
    }
    if let Some(block) = trimmed.strip_prefix("\"\"\"") {
        let block = block.strip_suffix("\"\"\"").unwrap_or(block);
        return Line::Message(block.trim_matches('\n').to_owned());
    }
    // A message may begin with a slash behind a space.
    if !line.starts_with('/') {
        return Line::Message(trimmed.replace("\\\n", "\n"));
    }
    let (command, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    match command {
        "/exit" | "/quit" | "/bye" => Line::Exit,
        "/help" | "/?" => Line::Help,
        "/clear" | "/new" => Line::Clear,
        "/info" => Line::Info,
        "/retry" => Line::Retry,
        "/system" => Line::System(rest.trim()),
        "/reasoning" => Line::Reasoning(rest.trim()),
        _ => Line::Unknown(command),
    }
}

/// Says when a message goes on in the next line.
struct Lines;

impl Validator for Lines {
    fn validate(&self, line: &str) -> ValidationResult {
        let trimmed = line.trim();
        let open = match trimmed.strip_prefix("\"\"\"") {
            Some(rest) => !rest.ends_with("\"\"\""),
            None => line.ends_with('\\'),
        };
        if open { ValidationResult::Incomplete } else { ValidationResult::Complete }
    }
}

fn editor(runner: &Runner) -> Reedline {
    let editor = Reedline::create().with_validator(Box::new(Lines)).use_bracketed_paste(true);
    match history::open(&runner.console) {
        Some(history) => editor.with_history(history),
        None => editor,
    }
}

/// What stands before the cursor.
struct Mark;

impl Prompt for Mark {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed("> ")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed("  ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("search {:?}: ", search.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Line<'_> {
        Line::Message(text.to_owned())
    }

    #[test]
    fn lines_are_understood() {
        let table = [
            ("", Line::Nothing),
            ("  ", Line::Nothing),
            ("hello ", message("hello")),
            ("/exit", Line::Exit),
            ("/system  You are a cat. ", Line::System("You are a cat.")),
            ("/system", Line::System("")),
            ("/reasoning off", Line::Reasoning("off")),
            ("/nonsense x", Line::Unknown("/nonsense")),
            (" /etc/hosts is what?", message("/etc/hosts is what?")),
            ("one\\\ntwo", message("one\ntwo")),
            ("\"\"\"\na\n\n/b\n\"\"\"", message("a\n\n/b")),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn open_messages_go_on() {
        let open = |line| matches!(Lines.validate(line), ValidationResult::Incomplete);
        assert!(open("one\\") && open("\"\"\"") && open("\"\"\" a\nb"));
        assert!(!open("one") && !open("\"\"\" a\nb\"\"\"") && !open("\"\"\"a\"\"\""));
    }
}
