//! Rewrites a Jinja template so that minijinja computes what Python would.
//!
//! minijinja's grammar is Jinja's, but some of its operators are not Python's: `%` does not
//! format, `~` prints floats differently, `<` compares anything, a loop over `None` is empty.
//! Those become calls of the functions in [`super::python::operators`] (`a + b` becomes
//! `__add(a, b)`), grouped by Jinja's precedence. `{% generation %}` becomes a call block. Text,
//! white space and line breaks stay, so line numbers in errors are the template's own.

mod expression;
mod literal;
mod statement;
mod tokens;

use expression::Parser;
use tokens::Lexer;

/// Templates longer than this are refused: minijinja counts lines in 16 bits.
const MAX_SOURCE: usize = 4 << 20;
const MAX_LINES: usize = 60_000;

/// minijinja recurses over every `elif`.
const MAX_ELIF: usize = 500;

/// What is wrong with a template, and on which line.
#[derive(Debug, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) line: usize,
    pub(super) message: String,
}

/// A rewritten template.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) source: String,
    /// Whether it marks what the assistant generates with `{% generation %}`.
    pub(super) marks_generation: bool,
}

/// Rewrites a whole template.
pub(super) fn lower(source: &str) -> Result<Lowered, SyntaxError> {
    // Jinja reads every kind of line break as \n.
    let source = &source.replace("\r\n", "\n").replace('\r', "\n");
    let lines = source.matches('\n').count();
    if source.len() > MAX_SOURCE || lines > MAX_LINES {
        return Err(SyntaxError {
            line: 1,
            message: format!(
                "the template has {} bytes and {lines} lines; at most {MAX_SOURCE} and {MAX_LINES} are accepted",
                source.len()
            ),
        });
    }
    if source.matches("elif").count() > MAX_ELIF {
        return Err(SyntaxError {
            line: 1,
            message: format!("the template has more than {MAX_ELIF} elif tags"),
        });
    }
    let mut out = String::with_capacity(source.len() * 2);
    let mut marks_generation = false;
    let mut rest = 0;
    while let Some(at) = find(source, rest, '{', |next| matches!(next, '{' | '%' | '#')) {
        out.push_str(slice(source, rest, at));
        let kind = slice(source, at + 1, at + 2);
        let fail = |at: usize, message: &str| error_at(source, at, message);
        match kind {
            "#" => {
                let end = source
                    .get(at + 2..)
                    .and_then(|tail| tail.find("#}"))
                    .map(|end| at + 2 + end + 2)
                    .ok_or_else(|| fail(at, "this comment has no end '#}'"))?;
                out.push_str(slice(source, at, end));
                rest = end;
            }
            "{" => {
                let (end, text) = variable(source, at)?;
                out.push_str(&text);
                rest = end;
            }
            _ => {
                if let Some(end) = raw_block(source, at)? {
                    out.push_str(slice(source, at, end));
                    rest = end;
                    continue;
                }
                let (end, text) = block(source, at, &mut marks_generation)?;
                out.push_str(&text);
                rest = end;
            }
        }
    }
    out.push_str(source.get(rest..).unwrap_or_default());
    Ok(Lowered { source: out, marks_generation })
}

/// The next `first` that is followed by a fitting character.
fn find(source: &str, from: usize, first: char, fits: impl Fn(char) -> bool) -> Option<usize> {
    let mut at = from;
    loop {
        at += source.get(at..)?.find(first)?;
        match source.get(at + 1..)?.chars().next() {
            Some(next) if fits(next) => return Some(at),
            _ => at += 1,
        }
    }
}

fn slice(source: &str, start: usize, end: usize) -> &str {
    source.get(start..end).unwrap_or_default()
}

fn error_at(source: &str, at: usize, message: &str) -> SyntaxError {
    SyntaxError { line: 1 + slice(source, 0, at).matches('\n').count(), message: message.to_owned() }
}

/// The opening delimiter with its white space sign, such as `{{-`.
fn opening(source: &str, at: usize) -> &str {
    match source.as_bytes().get(at + 2) {
        Some(b'-' | b'+') => slice(source, at, at + 3),
        _ => slice(source, at, at + 2),
    }
}

fn variable(source: &str, at: usize) -> Result<(usize, String), SyntaxError> {
    let open = opening(source, at);
    let inside = Lexer::new(source, at + open.len(), "}}").run(at)?;
    let mut parser = Parser::new(source, &inside.tokens);
    let text = parser.tuple()?;
    parser.end()?;
    Ok((inside.end, format!("{open} {text}{}{}", inside.space, inside.close)))
}

fn block(source: &str, at: usize, marks_generation: &mut bool) -> Result<(usize, String), SyntaxError> {
    let open = opening(source, at);
    let inside = Lexer::new(source, at + open.len(), "%}").run(at)?;
    let mut parser = Parser::new(source, &inside.tokens);
    let text = statement::lower(&mut parser, marks_generation)
        .map_err(|error| SyntaxError { line: error.line.max(error_at(source, at, "").line), ..error })?;
    Ok((inside.end, format!("{open} {text}{}{}", inside.space, inside.close)))
}

/// The end of the `{% raw %}…{% endraw %}` that starts here, if one does.
fn raw_block(source: &str, at: usize) -> Result<Option<usize>, SyntaxError> {
    let Some(mut end) = tag_end(source, at, "raw") else {
        return Ok(None);
    };
    while let Some(next) = find(source, end, '{', |next| next == '%') {
        if let Some(after) = tag_end(source, next, "endraw") {
            return Ok(Some(after));
        }
        end = next + 1;
    }
    Err(error_at(source, at, "this {% raw %} has no {% endraw %}"))
}

/// The end of the tag at `at`, if it consists of `name` alone.
fn tag_end(source: &str, at: usize, name: &str) -> Option<usize> {
    let inside = source.get(at + opening(source, at).len()..)?;
    let after = inside.trim_start().strip_prefix(name)?.trim_start();
    let after = after.strip_prefix(['-', '+']).unwrap_or(after);
    Some(source.len() - after.strip_prefix("%}")?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowered(source: &str) -> String {
        lower(source).unwrap().source
    }

    #[test]
    fn operators_become_calls_by_jinjas_precedence() {
        for (source, expected) in [
            ("a {{ x }} b", "a {{ x }} b"),
            ("{{- 1 + 2 * 3 -}}", "{{- __add(1, __multiply(2, 3)) -}}"),
            ("{{ a ~ b + c }}", "{{ __add(__concat(a, b), c) }}"),
            ("{{ '%s' % x }}", "{{ __modulo('%s', x) }}"),
            ("{{ a < b }}", "{{ __compare(a, '<', b) }}"),
            ("{{ a not in b }}", "{{ __compare(a, 'not in', b) }}"),
            ("{{ not a in b }}", "{{ not __compare(a, 'in', b) }}"),
            ("{{ x[1:] }}", "{{ __slice(x, 1, none, none) }}"),
            ("{{ x[::-1] }}", "{{ __slice(x, none, none, (-1)) }}"),
            ("{{ a.b['c'](d, e=1) | f(2) }}", "{{ a.b['c'](d, e=1) | f(2) }}"),
            ("{{ {'a': 1} }}", "{{ __dict({'a': 1}) }}"),
            ("{{ 'a' 'b' }}", "{{ 'ab' }}"),
            ("{{ (1, 2) }}", "{{ (1, 2) }}"),
            ("{{ a and ((not b) or c) }}", "{{ a and ((not b) or c) }}"),
        ] {
            assert_eq!(lowered(source), expected, "{source}");
        }
    }

    #[test]
    fn statements_keep_their_shape() {
        for (source, expected) in [
            ("{% for m in messages if m.x %}", "{% for m in __iterate(messages) if m.x %}"),
            ("{%- for k, v in d|items -%}", "{%- for k, v in __iterate(d|items) -%}"),
            ("{% set x = 1, 2 %}", "{% set x = __store((1, 2)) %}"),
            ("{% set ns.a = b + c %}", "{% set ns.a = __store_attribute(__add(b, c)) %}"),
            ("{% set x %}", "{% set x %}"),
            ("{% generation %}a{%- endgeneration %}", "{% call __generation() %}a{%- endcall %}"),
            ("{% macro f(a, b=1+1) %}", "{% macro f(a, b=__add(1, 1)) %}"),
            ("{% raw %}{{ 1 + 1 }}{% endraw %}", "{% raw %}{{ 1 + 1 }}{% endraw %}"),
            ("{# {{ 1 + 1 }} #}", "{# {{ 1 + 1 }} #}"),
        ] {
            assert_eq!(lowered(source), expected, "{source}");
        }
    }

    #[test]
    fn faults_name_their_line() {
        for (source, line) in [
            ("a\n{{ x", 2),
            ("\n\n{# open", 3),
            ("{% if x %}\n{% unknown %}", 2),
            ("{{ 'open }}", 1),
            ("\n{{ 1 + }}", 2),
            ("{% do x %}", 1),
        ] {
            assert_eq!(lower(source).unwrap_err().line, line, "{source}");
        }
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
        assert!(lower(&deep).is_err());
    }
}
