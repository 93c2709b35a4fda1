//! What one can type in a conversation.

pub(super) const HELP: &str = "\
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
pub(super) enum Line<'a> {
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

/// Understands a line.
pub(super) fn parse(line: &str) -> Line<'_> {
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
}
