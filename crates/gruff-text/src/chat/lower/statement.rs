//! Jinja's tags, `{% name … %}`.

use super::SyntaxError;
use super::expression::Parser;

/// Tags that hold no expression, or whose contents minijinja reads as Jinja does.
const PLAIN: [&str; 17] = [
    "autoescape",
    "block",
    "break",
    "continue",
    "else",
    "endautoescape",
    "endblock",
    "endcall",
    "endfilter",
    "endfor",
    "endgeneration",
    "endif",
    "endmacro",
    "endraw",
    "endset",
    "endwith",
    "generation",
];

/// Rewrites the inside of one tag.
pub(super) fn lower(parser: &mut Parser<'_>, marks_generation: &mut bool) -> Result<String, SyntaxError> {
    let Some(tag) = parser.peek() else {
        return Err(parser.unexpected("a tag's name"));
    };
    let text = match tag.text {
        "for" => for_loop(parser)?,
        "if" | "elif" => {
            let tag = parser.name()?;
            format!("{tag} {}", parser.tuple_without_condition()?)
        }
        "set" => set(parser)?,
        "macro" => {
            parser.name()?;
            let name = parser.name()?;
            format!("macro {name}{}", parser.arguments()?)
        }
        "call" => call(parser)?,
        "filter" => {
            parser.name()?;
            let filter = parser.filter_name()?;
            format!("filter {}", parser.filters(filter)?)
        }
        "with" => with(parser)?,
        "generation" => {
            *marks_generation = true;
            parser.name()?;
            "call __generation()".to_owned()
        }
        "endgeneration" => {
            parser.name()?;
            "endcall".to_owned()
        }
        name if PLAIN.contains(&name) => return Ok(parser.verbatim()),
        name @ ("extends" | "from" | "import" | "include") => {
            return Err(parser.error(&format!("'{name}' cannot be used: there are no other templates")));
        }
        name => return Err(parser.error(&format!("unknown tag '{name}'"))),
    };
    parser.end()?;
    Ok(text)
}

fn for_loop(parser: &mut Parser<'_>) -> Result<String, SyntaxError> {
    parser.name()?;
    let target = target(parser, "in")?;
    parser.expect("in")?;
    let mut out = format!("for {target} in __iterate({})", parser.tuple_without_condition()?);
    if let Some(space) = parser.take("if") {
        out.push_str(&format!("{space} if {}", parser.expression()?));
    }
    if let Some(space) = parser.take("recursive") {
        out.push_str(&format!("{space} recursive"));
    }
    Ok(out)
}

/// What is assigned to, up to the token `end`.
fn target(parser: &mut Parser<'_>, end: &str) -> Result<String, SyntaxError> {
    let mut out = String::new();
    while !parser.is(end) {
        let Some(token) = parser.next() else {
            return Err(parser.unexpected(&format!("'{end}'")));
        };
        if !out.is_empty() {
            out.push_str(token.space);
        }
        out.push_str(token.text);
    }
    Ok(out)
}

fn set(parser: &mut Parser<'_>) -> Result<String, SyntaxError> {
    parser.name()?;
    let mut names = match parser.take("(") {
        Some(space) => format!("{space}("),
        None => parser.name()?,
    };
    while !parser.is("=") {
        let Some(token) = parser.next() else {
            return Ok(format!("set {names}"));
        };
        if token.text == "|" {
            let filter = parser.filter_name()?;
            let filters = parser.filters(filter)?;
            return Ok(format!("set {names} | {filters}"));
        }
        names.push_str(token.space);
        names.push_str(token.text);
    }
    parser.expect("=")?;
    let store = match names.contains('.') {
        true => "__store_attribute",
        false => "__store",
    };
    Ok(format!("set {names} = {store}({})", parser.tuple()?))
}

fn call(parser: &mut Parser<'_>) -> Result<String, SyntaxError> {
    parser.name()?;
    let parameters = match parser.is("(") {
        true => parser.arguments()?,
        false => String::new(),
    };
    Ok(format!("call{parameters} {}", parser.expression()?))
}

fn with(parser: &mut Parser<'_>) -> Result<String, SyntaxError> {
    parser.name()?;
    let mut out = "with".to_owned();
    while parser.peek().is_some() {
        let target = target(parser, "=")?;
        parser.expect("=")?;
        out.push_str(&format!(" {target} = {}", parser.expression()?));
        match parser.take(",") {
            Some(space) => out.push_str(&format!("{space},")),
            None => break,
        }
    }
    Ok(out)
}
