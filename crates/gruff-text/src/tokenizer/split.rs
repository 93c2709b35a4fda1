//! Cutting text into the pieces that byte-pair merges may not cross.
//!
//! A pre-tokenizer is a list of [`Stage`]s. Each stage cuts every piece of the one before: what its pattern
//! matches becomes a piece, and so does each stretch between two matches ("isolated" in tokenizer.json).
//! Patterns run as lazily built DFAs, so time grows linearly with the text whatever is in it; the one thing
//! the published patterns ask that a DFA cannot do, `(?!\S)`, is rewritten by [`rewrite_lookahead`].

use regex_automata::hybrid::{dfa, regex};
use regex_automata::util::pool::Pool;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

use super::chars::CharClass;

/// Room for the states of one lazily built DFA; beyond it they are dropped and built again as needed.
const CACHE_BYTES: usize = 16 << 20;

/// One step of a pre-tokenizer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// A regular expression as tokenizer.json has it. `(?!\S)` is understood at the end of a top-level
    /// alternative.
    Regex(&'static str),
    /// Digits (`\p{N}`) in threes, counted from the right: `1|234|567`.
    Thousands,
    /// The same for `\d`, but only where a word border follows: `\d{1,3}(?=(?:\d{3})*\b)`.
    ThousandsBeforeBorder,
}

type Make<C> = Box<dyn Fn() -> C + Send + Sync>;

enum Search {
    /// For patterns that match nearly everywhere: try at each position in turn.
    Dense { dfa: Box<dfa::DFA>, caches: Pool<dfa::Cache, Make<dfa::Cache>>, gives_back: Vec<bool> },
    /// For patterns that match here and there: look for the next match.
    Sparse { regex: Box<regex::Regex>, caches: Pool<regex::Cache, Make<regex::Cache>>, grouping: Grouping },
}

/// What becomes of a match.
enum Grouping {
    Whole,
    Thousands,
    /// Only where none of these characters follows.
    ThousandsUnlessBefore(CharClass),
}

/// `\w`, as the published tokenizers' library has it.
const WORD: &str = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]";

/// A compiled pre-tokenizer.
pub(crate) struct Splitter {
    stages: Vec<Search>,
}

impl std::fmt::Debug for Splitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Splitter").field("stages", &self.stages.len()).finish()
    }
}

impl Splitter {
    /// Compiles the stages; `Err` holds what is wrong with a pattern.
    pub(crate) fn new(stages: &[Stage]) -> Result<Self, String> {
        Ok(Splitter { stages: stages.iter().map(|&stage| Search::new(stage)).collect::<Result<_, _>>()? })
    }

    /// The ends of the pieces of `text`, ascending; the last is its length. Empty for empty text.
    pub(crate) fn ends(&self, text: &str) -> Vec<usize> {
        let mut ends = if text.is_empty() { vec![] } else { vec![text.len()] };
        for stage in &self.stages {
            let mut finer = Vec::with_capacity(ends.len());
            stage.split(text, &ends, &mut finer);
            ends = finer;
        }
        ends
    }
}

impl Search {
    fn new(stage: Stage) -> Result<Self, String> {
        match stage {
            Stage::Regex(pattern) if pattern.contains(NOT_BEFORE_TEXT) => Search::dense(pattern),
            Stage::Regex(pattern) => Search::sparse(pattern, Grouping::Whole),
            Stage::Thousands => Search::sparse(r"\p{N}+", Grouping::Thousands),
            Stage::ThousandsBeforeBorder => {
                Search::sparse(r"\d+", Grouping::ThousandsUnlessBefore(CharClass::new(WORD)?))
            }
        }
    }

    fn dense(pattern: &str) -> Result<Self, String> {
        let (patterns, gives_back): (Vec<_>, Vec<_>) = rewrite_lookahead(pattern).into_iter().unzip();
        let dfa = dfa::Builder::new()
            .configure(config())
            .syntax(syntax::Config::new())
            .build_many(&patterns)
            .map_err(reason)?;
        let template = dfa.clone();
        let caches = Pool::new(Box::new(move || template.create_cache()) as Make<_>);
        Ok(Search::Dense { dfa: Box::new(dfa), caches, gives_back })
    }

    fn sparse(pattern: &str, grouping: Grouping) -> Result<Self, String> {
        let regex = regex::Builder::new().dfa(config()).build(pattern).map_err(reason)?;
        let forward = regex.forward().clone();
        let reverse = regex.reverse().clone();
        let template = regex::Builder::new().build_from_dfas(forward, reverse);
        let caches = Pool::new(Box::new(move || template.create_cache()) as Make<_>);
        Ok(Search::Sparse { regex: Box::new(regex), caches, grouping })
    }

    fn split(&self, text: &str, ends: &[usize], finer: &mut Vec<usize>) {
        let mut start = 0;
        match self {
            Search::Dense { dfa, caches, gives_back } => {
                let cache = &mut caches.get();
                for &end in ends {
                    split_dense(dfa, cache, gives_back, &text[start..end], start, finer);
                    start = end;
                }
            }
            Search::Sparse { regex, caches, grouping } => {
                let cache = &mut caches.get();
                for &end in ends {
                    split_sparse(regex, cache, grouping, &text[start..end], start, finer);
                    start = end;
                }
            }
        }
    }
}

/// The whole chain of causes.
fn reason(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn config() -> dfa::Config {
    dfa::Config::new()
        .match_kind(MatchKind::LeftmostFirst)
        .cache_capacity(CACHE_BYTES)
        .skip_cache_capacity_check(true)
}

fn split_dense(
    dfa: &dfa::DFA,
    cache: &mut dfa::Cache,
    gives_back: &[bool],
    piece: &str,
    base: usize,
    ends: &mut Vec<usize>,
) {
    let mut at = 0;
    let mut gap = false;
    while at < piece.len() {
        let input = Input::new(piece).range(at..).anchored(Anchored::Yes);
        // The search can only fail on bytes or limits that the configuration does not set.
        let found = dfa.try_search_fwd(cache, &input).ok().flatten();
        let end = found.map_or(at, |found| {
            if gives_back[found.pattern().as_usize()] {
                found.offset() - last_char_len(&piece[..found.offset()])
            } else {
                found.offset()
            }
        });
        if end > at {
            if gap {
                ends.push(base + at);
            }
            ends.push(base + end);
            at = end;
            gap = false;
        } else {
            at += piece[at..].chars().next().map_or(1, char::len_utf8);
            gap = true;
        }
    }
    if gap {
        ends.push(base + piece.len());
    }
}

fn split_sparse(
    regex: &regex::Regex,
    cache: &mut regex::Cache,
    grouping: &Grouping,
    piece: &str,
    base: usize,
    ends: &mut Vec<usize>,
) {
    let mut at = 0;
    let mut done = 0;
    while at < piece.len() {
        let input = Input::new(piece).range(at..);
        let Some(found) = regex.try_search(cache, &input).ok().flatten() else { break };
        at = found.end();
        if found.is_empty() {
            at += piece[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        if let Grouping::ThousandsUnlessBefore(word) = grouping
            && piece[found.end()..].chars().next().is_some_and(|c| word.contains(c))
        {
            continue;
        }
        if found.start() > done {
            ends.push(base + found.start());
        }
        if !matches!(grouping, Grouping::Whole) {
            push_thousands(&piece[found.range()], base + found.start(), ends);
        }
        ends.push(base + found.end());
        done = found.end();
    }
    if done < piece.len() {
        ends.push(base + piece.len());
    }
}

/// Pushes the ends of all groups of three but the last, counted from the right.
fn push_thousands(digits: &str, base: usize, ends: &mut Vec<usize>) {
    let count = digits.chars().count();
    for (nth, (at, _)) in digits.char_indices().enumerate().skip(1) {
        if (count - nth).is_multiple_of(3) {
            ends.push(base + at);
        }
    }
}

fn last_char_len(text: &str) -> usize {
    text.chars().next_back().map_or(0, char::len_utf8)
}

const NOT_BEFORE_TEXT: &str = r"(?!\S)";

/// Rewrites a pattern whose alternatives may end in `(?!\S)` into patterns without look-ahead, in order of
/// preference; the flag says that a match includes one character too many, to be given back.
///
/// `X(?!\S)` holds where X ends at the end of the text, `X$`, or where white space follows X: `X\s`, less the
/// white space.
fn rewrite_lookahead(pattern: &str) -> Vec<(String, bool)> {
    let mut patterns: Vec<(String, bool)> = Vec::new();
    let mut plain = String::new();
    for alternative in alternatives(pattern) {
        match alternative.strip_suffix(NOT_BEFORE_TEXT) {
            Some(head) => {
                if !plain.is_empty() {
                    patterns.push((std::mem::take(&mut plain), false));
                }
                patterns.push((format!("(?:{head})$"), false));
                patterns.push((format!(r"(?:{head})\s"), true));
            }
            None => {
                if !plain.is_empty() {
                    plain.push('|');
                }
                plain.push_str(alternative);
            }
        }
    }
    if !plain.is_empty() {
        patterns.push((plain, false));
    }
    patterns
}

/// The top-level alternatives of a regular expression.
fn alternatives(pattern: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut class, mut escaped) = (0, 0_u32, 0_u32, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class += 1,
            ']' if class > 0 => class -= 1,
            '(' if class == 0 => depth += 1,
            ')' if class == 0 => depth = depth.saturating_sub(1),
            '|' if class == 0 && depth == 0 => {
                parts.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&pattern[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'a>(stages: &[Stage], text: &'a str) -> Vec<&'a str> {
        let mut start = 0;
        let ends = Splitter::new(stages).unwrap().ends(text);
        ends.into_iter().map(|end| &text[std::mem::replace(&mut start, end)..end]).collect()
    }

    #[test]
    fn look_ahead_leaves_one_space_to_the_next_word() {
        let words = [Stage::Regex(r" ?\p{L}+|\s+(?!\S)|\s+")];
        assert_eq!(pieces(&words, "a   b  \n"), ["a", "  ", " b", "  \n"]);
        assert_eq!(pieces(&words, "\t\u{3000}!! b"), ["\t", "\u{3000}", "!!", " b"]);
        let cascade = [Stage::Regex(r"\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}")];
        assert_eq!(pieces(&cascade, "       x"), ["    ", "  ", " ", "x"]);
        assert_eq!(pieces(&cascade, "    x"), ["  ", " ", " ", "x"]);
        assert_eq!(pieces(&words, ""), [""; 0]);
    }

    #[test]
    fn stages_cut_what_earlier_ones_left() {
        let stages = [Stage::Regex(r"\p{N}"), Stage::Regex(r"\p{L}+|[^\p{L}]+")];
        assert_eq!(pieces(&stages, "a1b--22"), ["a", "1", "b", "--", "2", "2"]);
    }

    #[test]
    fn digits_group_from_the_right() {
        assert_eq!(pieces(&[Stage::Thousands], "x1234567y12"), ["x", "1", "234", "567", "y", "12"]);
        let border = [Stage::ThousandsBeforeBorder];
        assert_eq!(pieces(&border, "1234 5678x 123456"), ["1", "234", " 5678x ", "123", "456"]);
        assert_eq!(pieces(&border, "1234\u{301}"), ["1234\u{301}"]);
    }

    #[test]
    fn alternatives_are_those_of_the_top_level() {
        assert_eq!(alternatives(r"a|(?:b|c)|[|\]]|\||d"), ["a", "(?:b|c)", r"[|\]]", r"\|", "d"]);
        assert!(Splitter::new(&[Stage::Regex("(")]).is_err());
    }
}
