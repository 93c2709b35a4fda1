//! Jinja's expression grammar, read and written back with calls for operators.

use super::literal::unescape;
use super::tokens::{Kind, Token};
use super::{SyntaxError, error_at};

/// How deep expressions may be nested, as minijinja limits them.
const MAX_DEPTH: usize = 120;

/// How many operations one tag may chain: minijinja recurses over them.
const MAX_LINKS: usize = 1000;

type Text = Result<String, SyntaxError>;

/// Reads tokens of one tag. Every method returns what it read, rewritten, without the white space
/// before it unless that has a line break.
pub(super) struct Parser<'a> {
    source: &'a str,
    tokens: &'a [Token<'a>],
    at: usize,
    depth: usize,
    links: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(source: &'a str, tokens: &'a [Token<'a>]) -> Parser<'a> {
        Parser { source, tokens, at: 0, depth: 0, links: 0 }
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    /// Whether the next token is this operator or name.
    pub(super) fn is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.text == text && token.kind != Kind::String)
    }

    /// Takes the next token if it is this operator or name, and gives its line breaks.
    pub(super) fn take(&mut self, text: &str) -> Option<String> {
        if !self.is(text) {
            return None;
        }
        self.next().map(|token| breaks(token.space))
    }

    pub(super) fn expect(&mut self, text: &str) -> Text {
        match self.take(text) {
            Some(space) => Ok(space),
            None => Err(self.unexpected(&format!("'{text}'"))),
        }
    }

    /// Any name, with its line breaks.
    pub(super) fn name(&mut self) -> Text {
        match self.peek() {
            Some(token) if token.kind == Kind::Name => {
                self.at += 1;
                Ok(format!("{}{}", breaks(token.space), token.text))
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn end(&self) -> Result<(), SyntaxError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end of the tag")),
        }
    }

    pub(super) fn unexpected(&self, expected: &str) -> SyntaxError {
        match self.peek() {
            Some(token) => self.error(&format!("unexpected '{}', expected {expected}", token.text)),
            None => self.error(&format!("the tag ends where {expected} is expected")),
        }
    }

    pub(super) fn error(&self, message: &str) -> SyntaxError {
        let token = self.peek().or_else(|| self.tokens.last().copied());
        error_at(self.source, token.map_or(0, |token| token.offset), message)
    }

    /// What is left, as it stands.
    pub(super) fn verbatim(&mut self) -> String {
        let mut out = String::new();
        while let Some(token) = self.next() {
            out.push_str(if out.is_empty() { "" } else { token.space });
            out.push_str(token.text);
        }
        out
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Text) -> Text {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(&format!("expressions nested more than {MAX_DEPTH} deep")));
        }
        let text = parse(self);
        self.depth -= 1;
        text
    }

    /// Counts a link of a chain such as `a.b.c` or `a or b or c`, which makes a tree as high as it is long.
    fn link(&mut self) -> Result<(), SyntaxError> {
        self.links += 1;
        match self.links > MAX_LINKS {
            true => Err(self.error(&format!("a tag with more than {MAX_LINKS} operations"))),
            false => Ok(()),
        }
    }

    /// One expression, or several as a tuple: `a, b`.
    pub(super) fn tuple(&mut self) -> Text {
        let first = self.expression()?;
        self.tuple_after(first, Self::expression)
    }

    /// [`Parser::tuple`] where a following `if` belongs to the tag (loops).
    pub(super) fn tuple_without_condition(&mut self) -> Text {
        let first = self.disjunction()?;
        self.tuple_after(first, Self::disjunction)
    }

    fn tuple_after(&mut self, first: String, item: fn(&mut Self) -> Text) -> Text {
        if !self.is(",") {
            return Ok(first);
        }
        let mut out = format!("({first}");
        while let Some(space) = self.take(",") {
            out.push_str(&format!("{space},"));
            if self.peek().is_none() || self.is(")") || self.is("=") || self.is("recursive") {
                break;
            }
            out.push_str(&format!(" {}", item(self)?));
        }
        out.push(')');
        Ok(out)
    }

    /// `a if b else c`.
    pub(super) fn expression(&mut self) -> Text {
        self.nested(|this| {
            let mut out = this.disjunction()?;
            while let Some(space) = this.take("if") {
                let condition = this.disjunction()?;
                out = format!("{out}{space} if {condition}");
                if let Some(space) = this.take("else") {
                    out = format!("{out}{space} else {}", this.expression()?);
                }
                out = format!("({out})");
            }
            Ok(out)
        })
    }

    fn disjunction(&mut self) -> Text {
        let mut out = self.conjunction()?;
        while let Some(space) = self.take("or") {
            self.link()?;
            out = format!("{out}{space} or {}", self.conjunction()?);
        }
        Ok(out)
    }

    fn conjunction(&mut self) -> Text {
        let mut out = self.negation()?;
        while let Some(space) = self.take("and") {
            self.link()?;
            out = format!("{out}{space} and {}", self.negation()?);
        }
        Ok(out)
    }

    fn negation(&mut self) -> Text {
        match self.take("not") {
            Some(space) => self.nested(|this| Ok(format!("{space}not {}", this.negation()?))),
            None => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Text {
        let first = self.sum()?;
        let mut out = first.clone();
        let mut compared = false;
        loop {
            let operator = match self.peek() {
                Some(token) if matches!(token.text, "==" | "!=" | "<" | "<=" | ">" | ">=" | "in") => {
                    token.text
                }
                Some(token) if token.text == "not" && self.peek_at(1).is_some_and(|t| t.text == "in") => {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            let space = self.next().map(|token| breaks(token.space)).unwrap_or_default();
            out = format!("{out}{space}, '{operator}', {}", self.sum()?);
            compared = true;
        }
        Ok(if compared { format!("__compare({out})") } else { first })
    }

    fn sum(&mut self) -> Text {
        let mut out = self.concatenation()?;
        loop {
            if self.is("+") {
                out = format!("__add({out}");
                while let Some(space) = self.take("+") {
                    out.push_str(&format!("{space}, {}", self.concatenation()?));
                }
                out.push(')');
            } else if let Some(space) = self.take("-") {
                self.link()?;
                out = format!("({out}{space} - {})", self.concatenation()?);
            } else {
                return Ok(out);
            }
        }
    }

    fn concatenation(&mut self) -> Text {
        let first = self.product()?;
        if !self.is("~") {
            return Ok(first);
        }
        let mut out = format!("__concat({first}");
        while let Some(space) = self.take("~") {
            out = format!("{out}{space}, {}", self.product()?);
        }
        out.push(')');
        Ok(out)
    }

    fn product(&mut self) -> Text {
        let mut out = self.power()?;
        loop {
            let Some(operator) = self.peek().map(|token| token.text) else {
                return Ok(out);
            };
            let function = match operator {
                "*" => "__multiply",
                "%" => "__modulo",
                "/" | "//" => "",
                _ => return Ok(out),
            };
            self.link()?;
            let space = self.expect(operator)?;
            let right = self.power()?;
            out = match function {
                "" => format!("({out}{space} {operator} {right})"),
                function => format!("{function}({out}{space}, {right})"),
            };
        }
    }

    fn power(&mut self) -> Text {
        let mut out = self.unary(true)?;
        while let Some(space) = self.take("**") {
            self.link()?;
            out = format!("({out}{space} ** {})", self.unary(true)?);
        }
        Ok(out)
    }

    fn unary(&mut self, with_filters: bool) -> Text {
        let mut out = if let Some(space) = self.take("-") {
            self.nested(|this| Ok(format!("{space}{}", negated(&this.unary(false)?))))?
        } else if let Some(space) = self.take("+") {
            self.nested(|this| Ok(format!("{space}{}", this.unary(false)?)))?
        } else {
            self.primary()?
        };
        out = self.postfix(out)?;
        if with_filters {
            out = self.filters(out)?;
        }
        Ok(out)
    }

    fn primary(&mut self) -> Text {
        let Some(token) = self.peek() else {
            return Err(self.unexpected("an expression"));
        };
        let space = breaks(token.space);
        match (token.kind, token.text) {
            (Kind::Name | Kind::Integer | Kind::Float, text) => {
                self.at += 1;
                Ok(format!("{space}{text}"))
            }
            (Kind::String, _) => Ok(self.strings()),
            (_, "(") => self.nested(Self::parentheses),
            (_, "[") => {
                let inside = self.nested(|this| this.list("[", "]"))?;
                Ok(format!("{space}[{inside}]"))
            }
            (_, "{") => self.nested(Self::dict),
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// One string, or several that stand next to each other, written with escapes that minijinja
    /// has.
    fn strings(&mut self) -> String {
        let mut out = String::new();
        while let Some(token) = self.peek().filter(|token| token.kind == Kind::String) {
            self.at += 1;
            if out.is_empty() {
                out.push_str(&breaks(token.space));
                out.push('\'');
            }
            let inside = token.text.get(1..token.text.len() - 1).unwrap_or_default();
            for c in unescape(inside).chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\'' => out.push_str("\\'"),
                    c => out.push(c),
                }
            }
        }
        out.push('\'');
        out
    }

    fn parentheses(&mut self) -> Text {
        let space = self.expect("(")?;
        if self.is(")") {
            let close = self.expect(")")?;
            return Ok(format!("{space}({close})"));
        }
        let first = self.expression()?;
        let inside = match self.is(",") {
            true => self.tuple_after(first, Self::expression)?,
            false => format!("({first})"),
        };
        let close = self.expect(")")?;
        Ok(format!("{space}{inside}{close}"))
    }

    /// Comma-separated expressions between brackets.
    fn list(&mut self, open: &str, close: &str) -> Text {
        let mut out = self.expect(open)?;
        while !self.is(close) {
            out.push_str(&self.expression()?);
            match self.take(",") {
                Some(space) => out.push_str(&format!("{space}, ")),
                None => break,
            }
        }
        let end = self.expect(close)?;
        Ok(out.trim_end_matches(' ').trim_end_matches(',').to_owned() + &end)
    }

    fn dict(&mut self) -> Text {
        let mut out = self.expect("{")?;
        out.push_str("__dict({");
        while !self.is("}") {
            let key = self.expression()?;
            let space = self.expect(":")?;
            out.push_str(&format!("{key}{space}: {}", self.expression()?));
            match self.take(",") {
                Some(space) if !self.is("}") => out.push_str(&format!("{space}, ")),
                Some(space) => out.push_str(&space),
                None => break,
            }
        }
        let close = self.expect("}")?;
        Ok(format!("{out}{close}}})"))
    }

    fn postfix(&mut self, mut out: String) -> Text {
        while self.is(".") || self.is("[") || self.is("(") {
            self.link()?;
            if let Some(space) = self.take(".") {
                let Some(token) = self.next() else {
                    return Err(self.unexpected("a name"));
                };
                match token.kind {
                    Kind::Name => out.push_str(&format!("{space}.{}", token.text)),
                    Kind::Integer => out.push_str(&format!("{space}[{}]", token.text)),
                    _ => {
                        self.at -= 1;
                        return Err(self.unexpected("a name"));
                    }
                }
            } else if self.is("[") {
                out = self.nested(|this| this.subscript(&out))?;
            } else {
                let arguments = self.nested(Self::arguments)?;
                out.push_str(&arguments);
            }
        }
        Ok(out)
    }

    fn subscript(&mut self, value: &str) -> Text {
        let mut space = self.expect("[")?;
        let mut bounds: Vec<String> = Vec::new();
        let mut current = None;
        loop {
            if let Some(more) = self.take(":") {
                space.push_str(&more);
                bounds.push(current.take().unwrap_or("none".to_owned()));
            } else if self.is("]") {
                break;
            } else if current.is_none() {
                current = Some(self.expression()?);
            } else {
                return Err(self.unexpected("']'"));
            }
        }
        space.push_str(&self.expect("]")?);
        match (bounds.len(), current) {
            (0, Some(index)) if space.is_empty() && is_short_literal(&index) => {
                Ok(format!("{value}[{index}]"))
            }
            (0, Some(index)) => Ok(format!("__item({value}, {index}{space})")),
            (0, None) => Err(self.error("expected a subscript")),
            (1 | 2, last) => {
                bounds.push(last.unwrap_or("none".to_owned()));
                bounds.resize(3, "none".to_owned());
                Ok(format!("__slice({value}, {}{space})", bounds.join(", ")))
            }
            _ => Err(self.error("a slice has at most three bounds")),
        }
    }

    /// `(a, *b, c=d, **e)`.
    pub(super) fn arguments(&mut self) -> Text {
        let mut out = self.expect("(")?;
        out.push('(');
        while !self.is(")") {
            if let Some(space) = self.take("**") {
                out.push_str(&format!("{space}**"));
            } else if let Some(space) = self.take("*") {
                out.push_str(&format!("{space}*"));
            } else if self.peek().is_some_and(|token| token.kind == Kind::Name)
                && self.peek_at(1).is_some_and(|token| token.text == "=")
            {
                let name = self.name()?;
                let space = self.expect("=")?;
                out.push_str(&format!("{name}{space}="));
            }
            out.push_str(&self.expression()?);
            match self.take(",") {
                Some(space) if !self.is(")") => out.push_str(&format!("{space}, ")),
                Some(space) => out.push_str(&space),
                None => break,
            }
        }
        let close = self.expect(")")?;
        Ok(format!("{out}{close})"))
    }

    /// Filters, tests and calls behind a value.
    pub(super) fn filters(&mut self, mut out: String) -> Text {
        while self.is("|") || self.is("is") || self.is("(") {
            self.link()?;
            if self.is("|") {
                let filter = self.filter()?;
                out.push_str(&filter);
            } else if let Some(space) = self.take("is") {
                out = format!("({out}{space} is {})", self.test()?);
            } else {
                let arguments = self.nested(Self::arguments)?;
                out.push_str(&arguments);
            }
        }
        Ok(out)
    }

    /// `| name(arguments)`.
    fn filter(&mut self) -> Text {
        let before = self.peek().map(|token| token.space).unwrap_or_default();
        self.expect("|")?;
        let after = self.peek().map(|token| token.space).unwrap_or_default();
        let name = self.filter_name()?;
        Ok(format!("{before}|{after}{name}"))
    }

    /// A filter's name and arguments.
    pub(super) fn filter_name(&mut self) -> Text {
        let name = self.name()?;
        let mut out = name.trim_start().to_owned();
        if self.is("(") {
            let arguments = self.nested(Self::arguments)?;
            out.push_str(&arguments);
        }
        Ok(out)
    }

    /// What follows `is`: a test's name and perhaps its argument.
    fn test(&mut self) -> Text {
        let mut out = String::new();
        if let Some(space) = self.take("not") {
            out = format!("{space}not ");
        }
        out.push_str(&self.name()?);
        let Some(token) = self.peek() else {
            return Ok(out);
        };
        if token.text == "is" {
            return Err(self.error("tests cannot be chained with 'is'"));
        }
        let argument = match (token.kind, token.text) {
            (Kind::Operator, "(") => {
                let arguments = self.nested(Self::arguments)?;
                return Ok(out + &arguments);
            }
            (Kind::Operator, text) => matches!(text, "[" | "{"),
            (Kind::Name, text) => {
                !matches!(text, "else" | "or" | "and" | "is" | "if" | "in" | "not" | "recursive")
            }
            _ => true,
        };
        if argument {
            let value = self.primary()?;
            let value = self.postfix(value)?;
            out.push_str(&format!("({value})"));
        }
        Ok(out)
    }
}

/// `-value`, of a literal as such.
fn negated(value: &str) -> String {
    match value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("(-{value})"),
        false => format!("__negate({value})"),
    }
}

/// A string or a small number: minijinja looks these up at no cost that would have to be paid for,
/// and its errors name the expression.
fn is_short_literal(index: &str) -> bool {
    index.starts_with('\'') || (index.len() < 4 && index.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The line breaks of white space: what must be kept for line numbers to stay right.
fn breaks(space: &str) -> String {
    space.matches('\n').collect()
}
