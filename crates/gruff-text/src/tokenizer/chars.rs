//! Classes of characters by Unicode category.

use regex_syntax::hir::{Class, HirKind};

/// A set of characters.
#[derive(Debug)]
pub(crate) struct CharClass {
    /// First and last of each range, ascending and apart.
    ranges: Vec<(char, char)>,
}

impl CharClass {
    /// The characters that a class of a regular expression, such as `\p{P}`, matches.
    pub(crate) fn new(class: &str) -> Result<Self, String> {
        let hir = regex_syntax::parse(class).map_err(|error| error.to_string())?;
        match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Ok(CharClass { ranges: class.iter().map(|range| (range.start(), range.end())).collect() })
            }
            _ => Err(format!("{class} is no class of characters")),
        }
    }

    /// Whether `c` is one of them.
    pub(crate) fn contains(&self, c: char) -> bool {
        let after = self.ranges.partition_point(|&(first, _)| first <= c);
        after > 0 && c <= self.ranges[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_unicode_categories() {
        let punctuation = CharClass::new(r"\p{P}").unwrap();
        assert!("!-_«。".chars().all(|c| punctuation.contains(c)));
        assert!("a$+ \u{301}".chars().all(|c| !punctuation.contains(c)));
        assert!(CharClass::new("ab").is_err());
    }
}
