//! Tokens that wait for their text to be told.

use crate::logprobs::TokenLogprob;

/// The tokens of an answer whose text has not been told. Marks of reasoning and of calls, and the white space beside
/// them, are text of tokens that nobody is ever told; so a token is found by its text.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    tokens: Vec<TokenLogprob>,
    /// The end of the last token told, whose text was held back.
    rest: Vec<u8>,
    /// Content was told last, so that more of it begins where that ended.
    goes_on: bool,
}

impl Untold {
    /// The next token.
    pub(crate) fn push(&mut self, token: TokenLogprob) {
        self.tokens.push(token);
    }

    /// Something else than content has been told: what led to it is no content.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The tokens that the next piece of content is made of, but for one whose beginning was told before.
    pub(crate) fn take(&mut self, text: &str) -> Vec<TokenLogprob> {
        let mut text = text.as_bytes();
        if self.goes_on && !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            if let Some(longer) = rest.strip_prefix(text) {
                self.rest = longer.to_vec();
                return Vec::new();
            }
            text = text.strip_prefix(rest.as_slice()).unwrap_or(text);
        }
        let first = self.first(text);
        self.goes_on = true;
        self.tokens.drain(..first);
        let mut bytes = 0;
        let made_of = self.tokens.iter().take_while(|token| {
            let before = bytes;
            bytes += token.bytes().len();
            before < text.len()
        });
        let count = made_of.count();
        let taken: Vec<TokenLogprob> = self.tokens.drain(..count).collect();
        let told: Vec<u8> = taken.iter().flat_map(TokenLogprob::bytes).copied().collect();
        self.rest = told.strip_prefix(text).unwrap_or_default().to_vec();
        taken
    }

    /// The token that the text begins with.
    fn first(&self, text: &[u8]) -> usize {
        let begins = |first: usize| {
            let mut text = text;
            for token in self.tokens.iter().skip(first).map(TokenLogprob::bytes) {
                match text.strip_prefix(token) {
                    Some(more) => text = more,
                    // Of the last one a part may be held back.
                    None => return token.starts_with(text),
                }
            }
            text.is_empty()
        };
        if self.goes_on && begins(0) {
            return 0;
        }
        // All that came up to now is told, as a rule: then the text is the end of it.
        let mut bytes = 0;
        let mut last = self.tokens.len();
        while bytes < text.len() && last > 0 {
            last -= 1;
            bytes += self.tokens.get(last).map_or(0, |token| token.bytes().len());
        }
        if bytes == text.len() && begins(last) {
            return last;
        }
        let found = (0..self.tokens.len()).find(|first| begins(*first));
        found.unwrap_or(if self.goes_on { 0 } else { last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens that are told with each text; an empty text is another event than content.
    fn told(steps: &[(&[&str], &[&str])]) -> Vec<String> {
        let mut untold = Untold::default();
        let mut all = Vec::new();
        for (tokens, texts) in steps {
            tokens.iter().for_each(|token| untold.push(TokenLogprob::of(token)));
            for text in *texts {
                if text.is_empty() {
                    untold.clear();
                    continue;
                }
                let taken = untold.take(text);
                let taken = taken.iter().map(|token| String::from_utf8_lossy(token.bytes()).into_owned());
                all.push(taken.collect::<Vec<_>>().join("|"));
            }
        }
        all
    }

    #[test]
    fn tokens_of_marks_are_not_those_of_content() {
        let thought = [
            (&["I", " see"][..], &[""][..]),
            (&["</think>"], &[]),
            (&["\n\n"], &[]),
            (&["It"], &["It"]),
            (&[" is"], &[" is"]),
        ];
        assert_eq!(told(&thought), ["It", " is"]);
        // Content that begins as the mark does.
        let alike = [(&["</", "think", ">", "\n"][..], &[][..]), (&["<"], &["<"]), (&["b"], &["b"])];
        assert_eq!(told(&alike), ["<", "b"]);
        // More has come than is told.
        let held = [(&["</think>", "\n", "One", " two"][..], &["One"][..]), (&[" three"], &[" two three"])];
        assert_eq!(told(&held), ["One", " two| three"]);
        // A mark and content in one token.
        assert_eq!(told(&[(&["</think", ">\n\nYes"], &["Yes"]), (&["."], &["."])]), [">\n\nYes", "."]);
        // Behind a call, and behind content that a mark follows without a word.
        let call =
            [(&["A", "<tool_call>", "{}"][..], &["A", ""][..]), (&["</tool_call>", "\n", "B"], &["B"])];
        assert_eq!(told(&call), ["A", "B"]);
        let channels = [(&["A"][..], &["A"][..]), (&["<|end|>", "<|start|>", "B"], &["B"]), (&["C"], &["C"])];
        assert_eq!(told(&channels), ["A", "B", "C"]);
    }

    #[test]
    fn what_was_held_back_belongs_to_a_token_that_was_told() {
        let held = [(&["ab"][..], &["a"][..]), (&["cd", "ef"], &["bcd", "ef"])];
        assert_eq!(told(&held), ["ab", "cd", "ef"]);
        let slowly = [(&["abc"][..], &["a", "b", "c"][..]), (&["d"], &["d"])];
        assert_eq!(told(&slowly), ["abc", "", "", "d"]);
        // A first token whose space no text has.
        assert_eq!(told(&[(&[" It"], &["It"]), (&[" is"], &[" is"])]), [" It", " is"]);
    }
}
