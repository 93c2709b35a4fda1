//! SentencePiece's way with spaces: they are written as U+2581, so that they can be part of a piece.

use std::borrow::Cow;

/// U+2581, "lower one eighth block".
pub(crate) const ESCAPED: &str = "▁";

/// What happens to the spaces of a text before it is split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceRules {
    /// Whether a space is put before the text (`tokenizer.ggml.add_space_prefix`).
    pub(crate) prefix: bool,
    /// Whether runs of spaces become one, and those at either end none
    /// (`tokenizer.ggml.remove_extra_whitespaces`).
    pub(crate) remove_extra: bool,
}

impl SpaceRules {
    /// The text with its spaces escaped.
    pub(crate) fn normalize(self, text: &str) -> String {
        let text = if self.remove_extra { Cow::Owned(remove_extra(text)) } else { Cow::Borrowed(text) };
        let mut normalized = String::with_capacity(text.len() + text.len() / 2 + ESCAPED.len());
        if self.prefix && !text.is_empty() {
            normalized.push_str(ESCAPED);
        }
        escape(&text, &mut normalized);
        normalized
    }
}

fn remove_extra(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !kept.is_empty() {
            kept.push(' ');
        }
        kept.push_str(word);
    }
    kept
}

/// Appends the text with its spaces escaped.
pub(crate) fn escape(text: &str, out: &mut String) {
    for (nth, part) in text.split(' ').enumerate() {
        if nth > 0 {
            out.push_str(ESCAPED);
        }
        out.push_str(part);
    }
}

/// Appends the token with its spaces as spaces.
pub(crate) fn unescape(token: &[u8], out: &mut Vec<u8>) {
    let mut rest = token;
    while let Some((&byte, tail)) = rest.split_first() {
        match rest.strip_prefix(ESCAPED.as_bytes()) {
            Some(tail) => {
                out.push(b' ');
                rest = tail;
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_follow_the_rules() {
        let rules = |prefix, remove_extra| SpaceRules { prefix, remove_extra };
        assert_eq!(rules(true, false).normalize(" a  b "), "▁▁a▁▁b▁");
        assert_eq!(rules(true, true).normalize(" a  b "), "▁a▁b");
        assert_eq!(rules(false, false).normalize("a b"), "a▁b");
        assert_eq!(rules(true, true).normalize("  "), "");
    }

    #[test]
    fn escapes_are_undone() {
        let mut out = Vec::new();
        unescape("▁▁é▁".as_bytes(), &mut out);
        assert_eq!(out, "  é ".as_bytes());
    }
}
