//! The line that one types in.

use std::borrow::Cow;

use reedline::{Prompt, PromptEditMode, PromptHistorySearch, Reedline, ValidationResult, Validator};

use super::history;
use crate::console::Console;

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

/// An editor with the history of earlier conversations.
pub(super) fn editor(console: &Console) -> Reedline {
    let editor = Reedline::create().with_validator(Box::new(Lines)).use_bracketed_paste(true);
    match history::open(console) {
        Some(history) => editor.with_history(history),
        None => editor,
    }
}

/// What stands before the cursor.
pub(super) struct Mark;

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

    #[test]
    fn open_messages_go_on() {
        let open = |line| matches!(Lines.validate(line), ValidationResult::Incomplete);
        assert!(open("one\\") && open("\"\"\"") && open("\"\"\" a\nb"));
        assert!(!open("one") && !open("\"\"\" a\nb\"\"\"") && !open("\"\"\"a\"\"\""));
    }
}
