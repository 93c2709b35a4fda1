//! A conversation with the model.

use std::ops::ControlFlow;

use gruff::{Conversation, Message};

use super::answer::{Answer, AnswerPrompt};
use super::{Reasoning, Runner};
use crate::conversation::{self, Part, Partner};

struct Local {
    runner: Runner,
    conversation: Conversation,
    /// Tokens of the last prompt and answer.
    tokens: usize,
}

/// Converses until the end of input.
pub(super) fn run(runner: Runner) -> anyhow::Result<()> {
    let console = runner.console;
    let conversation = Conversation::new(runner.opening());
    conversation::run(Local { runner, conversation, tokens: 0 }, &console)
}

impl Partner for Local {
    fn name(&self) -> &str {
        &self.runner.name
    }

    fn info(&self) -> String {
        let memory =
            self.runner.model.memory().map_or_else(|error| error.to_string(), |memory| memory.to_string());
        format!(
            "{}\n{} on {}\nmemory: {memory}\n{} messages, {} tokens",
            self.runner.name,
            self.runner.model.model().config().architecture,
            self.runner.model.device().name(),
            self.conversation.messages().len(),
            self.tokens,
        )
    }

    fn restart(&mut self, system: Option<Option<String>>) {
        if let Some(system) = system {
            self.runner.system = system;
        }
        self.conversation = Conversation::new(self.runner.opening());
        self.tokens = 0;
    }

    fn set_reasoning(&mut self, reasoning: Reasoning) -> &'static str {
        self.runner.set_reasoning(reasoning);
        match (reasoning, self.runner.switchable) {
            (Reasoning::Auto, _) => "Reasoning is as the model's template has it.\n",
            (_, true) => "As you wish, from the next answer on.\n",
            (_, false) => "This model's template does not let reasoning be switched.\n",
        }
    }

    fn push(&mut self, message: String) {
        self.conversation.push(Message::user(message));
    }

    fn pop(&mut self) {
        self.conversation.pop();
    }

    fn retry(&mut self) -> bool {
        let mut messages = self.conversation.messages().to_vec();
        if messages.last().is_some_and(|message| message.role() == Some("assistant")) {
            messages.pop();
        }
        if messages.last().and_then(Message::role) != Some("user") {
            return false;
        }
        self.runner.config.seed = self.runner.config.seed.map(|seed| seed.wrapping_add(1));
        self.conversation = Conversation::new(messages);
        true
    }

    fn answer(&mut self, on_part: &mut dyn FnMut(Part) -> ControlFlow<()>) -> anyhow::Result<String> {
        let prompt = self.prompt()?;
        let answer = self.runner.answer(&prompt, on_part)?;
        self.take(&answer);
        Ok(answer.speed())
    }
}

impl Local {
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
