//! llama.cpp's GBNF as a grammar for llguidance.
//!
//! Rules that do not lead back to themselves become terminals, which are regular languages taken as a whole; only the
//! recursive ones become rules. So a grammar without recursion means exactly what it means in llama.cpp.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// Text as it stands.
    Literal(String),
    /// One character: a class as a regular expression writes it.
    Class(String),
    /// Another rule.
    Rule(String),
    /// One of several sequences.
    Choice(Vec<Vec<Part>>),
    /// Something several times: at least, at most.
    Repeat(Box<Part>, usize, Option<usize>),
}

/// Nesting and repetition that no sensible grammar exceeds.
const DEEPEST: usize = 64;
const MOST_REPEATS: usize = 10_000;

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// The grammar in Lark.
///
/// # Errors
/// A message with the line of what is no GBNF.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let rules = Reader { text, at: 0, depth: 0 }.rules()?;
    if !rules.contains_key("root") {
        return Err("the grammar has no rule named root".to_owned());
    }
    let recursive = recursive(&rules)?;
    let names: BTreeMap<&str, String> = rules
        .keys()
        .enumerate()
        .map(|(index, name)| {
            let kind = if recursive.contains(name.as_str()) { "r" } else { "T" };
            (name.as_str(), format!("{kind}{index}"))
        })
        .collect();
    let mut lark = format!("start: {}\n", names["root"]);
    for (name, part) in &rules {
        let _ = writeln!(lark, "{}: {}", names[name.as_str()], write(part, &names));
    }
    Ok(lark)
}

/// The rules that lead back to themselves, and those that use one of them: a terminal has only terminals inside.
fn recursive(rules: &BTreeMap<String, Part>) -> Result<BTreeSet<&str>, String> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // How many rules each uses that are not known to be free of recursion.
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, part) in rules {
        let mut used = BTreeSet::new();
        collect(part, &mut used);
        if let Some(unknown) = used.iter().find(|used| !rules.contains_key(**used)) {
            return Err(format!("rule {name} uses {unknown}, which the grammar does not have"));
        }
        open.insert(name, used.len());
        for used in used {
            users.entry(used).or_default().push(name);
        }
    }
    let mut free: Vec<&str> = open.iter().filter(|(_, used)| **used == 0).map(|(name, _)| *name).collect();
    while let Some(name) = free.pop() {
        open.remove(name);
        for user in users.get(name).into_iter().flatten() {
            if let Some(used) = open.get_mut(user) {
                *used -= 1;
                if *used == 0 {
                    free.push(user);
                }
            }
        }
    }
    Ok(open.into_keys().collect())
}

fn collect<'a>(part: &'a Part, into: &mut BTreeSet<&'a str>) {
    match part {
        Part::Literal(_) | Part::Class(_) => {}
        Part::Rule(name) => {
            into.insert(name);
        }
        Part::Choice(choices) => choices.iter().flatten().for_each(|part| collect(part, into)),
        Part::Repeat(part, ..) => collect(part, into),
    }
}

fn write(part: &Part, names: &BTreeMap<&str, String>) -> String {
    match part {
        Part::Literal(text) => Value::from(text.as_str()).to_string(),
        Part::Class(class) => format!("/{class}/"),
        Part::Rule(name) => names[name.as_str()].clone(),
        Part::Choice(choices) => {
            let sequences = choices.iter().map(|sequence| {
                let parts: Vec<String> = sequence.iter().map(|part| write(part, names)).collect();
                if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
            });
            format!("({})", sequences.collect::<Vec<_>>().join(" | "))
        }
        Part::Repeat(part, least, most) => {
            let inner = match **part {
                Part::Choice(_) | Part::Rule(_) => write(part, names),
                _ => format!("({})", write(part, names)),
            };
            match (least, most) {
                (0, None) => format!("{inner}*"),
                (1, None) => format!("{inner}+"),
                (0, Some(1)) => format!("{inner}?"),
                (least, None) => format!("({inner}{{{least}}} {inner}*)"),
                (least, Some(most)) => format!("{inner}{{{least},{most}}}"),
            }
        }
    }
}

impl Reader<'_> {
    fn rules(mut self) -> Result<BTreeMap<String, Part>, String> {
        let mut rules = BTreeMap::new();
        self.skip(true);
        while !self.rest().is_empty() {
            let name = self.name()?;
            self.skip(false);
            self.expect("::=")?;
            let part = self.choice(false)?;
            if rules.insert(name.clone(), part).is_some() {
                return self.fail(&format!("rule {name} stands there twice"));
            }
            self.skip(true);
        }
        Ok(rules)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn fail<T>(&self, what: &str) -> Result<T, String> {
        let line = self.text[..self.at].lines().count().max(1);
        Err(format!("line {line} of the GBNF grammar: {what}"))
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if !self.rest().starts_with(word) {
            return self.fail(&format!("{word} is missing"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Skips white space and comments, line ends only where the rule may go on.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.rest().chars().next() {
            match c {
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                '\n' | '\r' if !lines => return,
                c if c.is_whitespace() => self.at += c.len_utf8(),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let len = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
        if len == 0 {
            return self.fail("the name of a rule is missing");
        }
        let name = self.rest()[..len].to_owned();
        self.at += len;
        Ok(name)
    }

    fn choice(&mut self, nested: bool) -> Result<Part, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return self.fail("it is nested too deeply");
        }
        let mut choices = Vec::new();
        loop {
            // A rule goes on in the next line behind `::=` and `|`.
            self.skip(true);
            choices.push(self.sequence(nested)?);
            if !self.rest().starts_with('|') {
                break;
            }
            self.at += 1;
        }
        self.depth -= 1;
        Ok(Part::Choice(choices))
    }

    fn sequence(&mut self, nested: bool) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        loop {
            self.skip(nested);
            let part = match self.rest().chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Part::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.choice(true)?;
                    self.skip(true);
                    self.expect(")")?;
                    inner
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => Part::Rule(self.name()?),
                Some('<' | '!') => return self.fail("tokens in place of text are not supported"),
                Some('|' | ')' | '\n' | '\r') | None => return Ok(parts),
                Some(other) => return self.fail(&format!("{other:?} begins nothing")),
            };
            parts.push(self.repeated(part)?);
        }
    }

    fn repeated(&mut self, part: Part) -> Result<Part, String> {
        let (least, most) = match self.rest().chars().next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let Some(len) = self.rest().find('}') else { return self.fail("} is missing") };
                let inner = self.rest()[1..len].to_owned();
                let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n <= MOST_REPEATS);
                let bounds = match inner.split_once(',') {
                    None => number(&inner).map(|n| (n, Some(n))),
                    Some((least, "")) => number(least).map(|least| (least, None)),
                    Some((least, most)) => number(if least.trim().is_empty() { "0" } else { least })
                        .zip(number(most))
                        .map(|(least, most)| (least, Some(most))),
                };
                self.at += len;
                match bounds {
                    Some((least, most)) if most.is_none_or(|most| most >= least) => (least, most),
                    _ => return self.fail(&format!("{{{inner}}} is no number of repetitions")),
                }
            }
            _ => return Ok(part),
        };
        self.at += 1;
        if self.rest().starts_with(['*', '+', '?', '{']) {
            return self.fail("a repetition of a repetition needs parentheses");
        }
        Ok(Part::Repeat(Box::new(part), least, most))
    }

    fn literal(&mut self) -> Result<Part, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.rest().chars().next() {
                None | Some('\n') => return self.fail("a text has no end"),
                Some('"') => {
                    self.at += 1;
                    return Ok(Part::Literal(text));
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    fn class(&mut self) -> Result<Part, String> {
        self.at += 1;
        let mut class = String::from("[");
        if self.rest().starts_with('^') {
            self.at += 1;
            class.push('^');
        }
        let mut empty = true;
        loop {
            match self.rest().chars().next() {
                None | Some('\n') => return self.fail("a class has no end"),
                Some(']') if empty => return self.fail("a class is empty"),
                Some(']') => break,
                Some(_) => {
                    let first = self.character()?;
                    let range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
                    let _ = write!(class, "\\x{{{:x}}}", u32::from(first));
                    if range {
                        self.at += 1;
                        let last = self.character()?;
                        if last < first {
                            return self.fail("a range ends before it begins");
                        }
                        let _ = write!(class, "-\\x{{{:x}}}", u32::from(last));
                    }
                    empty = false;
                }
            }
        }
        self.at += 1;
        class.push(']');
        Ok(Part::Class(class))
    }

    /// One character, escaped or not.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.rest().chars().next() else { return self.fail("the grammar ends too early") };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(escape) = self.rest().chars().next() else { return self.fail("an escape has no end") };
        self.at += escape.len_utf8();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '.' | '/' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return self.fail(&format!("\\{other} is no escape")),
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.fail(&format!("\\{escape} needs {digits} hexadecimal digits of a character")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_become_terminals_unless_they_recur() {
        let lark = to_lark(
            "# sums\nroot ::= expr \"\\n\"\nexpr ::= term (\"+\" term)*\nterm ::= num | \"(\" expr \")\"\n\
             num ::= [0-9]+ ws\nws ::= [ \\t]{0,3}\n",
        )
        .unwrap();
        assert!(lark.starts_with("start: r"), "{lark}");
        assert!(
            lark.lines().any(|line| line.starts_with('T') && line.contains("[\\x{30}-\\x{39}]")),
            "{lark}"
        );
        assert!(lark.lines().any(|line| line.contains("{0,3}")), "{lark}");
        assert_eq!(lark.lines().count(), 6, "{lark}");
    }

    #[test]
    fn what_is_no_grammar_names_its_line() {
        for (text, message) in [
            ("root ::= \"a", "line 1 of the GBNF grammar: a text has no end"),
            ("root ::= \"a\"\nb ::= [z-a]", "line 2 of the GBNF grammar: a range ends"),
            ("a ::= \"x\"", "no rule named root"),
            ("root ::= b", "root uses b"),
            ("root ::= \"a\"{3,1}", "no number of repetitions"),
            ("root ::= \"a\"{99999999}", "no number of repetitions"),
            ("root = \"a\"", "::= is missing"),
            ("root ::= <think>", "tokens in place of text"),
            ("root ::= \"\\q\"", "no escape"),
            ("root ::= \"a\"**", "repetition of a repetition"),
        ] {
            let error = to_lark(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(999), ")".repeat(999));
        assert!(to_lark(&deep).unwrap_err().contains("too deeply"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(root|b|::=|[a-z]|\"|\\\\|\\[|\\]|-|\\(|\\)|[*+?{},0-9]|\\||\n| |#|ü|\\^){0,60}") {
            let _ = to_lark(&text);
            let _ = to_lark(&format!("root ::= {text}"));
        }
    }
}
