//! Finding tags in text that arrives in pieces.

/// Where one of `tags` is, as far as the text so far tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'t> {
    /// A whole tag: where it begins, and which.
    Whole(usize, &'t str),
    /// The text ends with what may become a tag, from here on.
    Partial(usize),
    /// No tag, and none begun.
    No,
}

/// The first of the tags. A longer one wins where two begin at the same place.
pub(super) fn find<'t>(text: &str, tags: &[&'t str]) -> Found<'t> {
    let whole = tags
        .iter()
        .filter_map(|tag| text.find(tag).map(|at| (at, *tag)))
        .min_by_key(|(at, tag)| (*at, usize::MAX - tag.len()));
    if let Some((at, tag)) = whole {
        return Found::Whole(at, tag);
    }
    let begun = |at: &usize| {
        let tail = text.get(*at..).unwrap_or_default();
        tags.iter().any(|tag| tag.starts_with(tail))
    };
    let longest = tags.iter().map(|tag| tag.len()).max().unwrap_or(0);
    let first = text.len().saturating_sub(longest.saturating_sub(1));
    match (first..text.len()).filter(|at| text.is_char_boundary(*at)).find(begun) {
        Some(at) => Found::Partial(at),
        None => Found::No,
    }
}

/// Takes the first `len` bytes off a text.
pub(super) fn take(text: &mut String, len: usize) -> String {
    let rest = text.get(len..).unwrap_or_default().to_owned();
    text.truncate(len);
    std::mem::replace(text, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_whole_or_begun() {
        assert_eq!(find("a<b>c", &["<b>"]), Found::Whole(1, "<b>"));
        assert_eq!(find("a<b", &["<b>"]), Found::Partial(1));
        assert_eq!(find("a<c", &["<b>"]), Found::No);
        assert_eq!(find("é<", &["<b>", "</b>"]), Found::Partial(2));
        assert_eq!(find("x</b><b>", &["<b>", "</b>"]), Found::Whole(1, "</b>"));
        assert_eq!(find("", &["<b>"]), Found::No);
    }
}
