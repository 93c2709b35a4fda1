//! Calls of tools, in each format as models write it.

use super::GrammarError;
use super::lark::{Lark, quoted};
use super::parameters::{Function, Kind, Parameter};
use crate::chat::ToolCallFormat;
use crate::chat::tool_calls::format::Syntax;
use crate::chat::tool_calls::literals::{LiteralSyntax, QUOTE};
use crate::chat::tool_calls::xml::XmlSyntax;

/// A way to write calls: what begins them, and what follows it.
struct Block {
    open: &'static str,
    rest: String,
    /// Whether it holds all calls there are, so that another one does not follow.
    all: bool,
}

/// Calls and nothing else.
pub(super) fn required(
    lark: &mut Lark<'_>,
    format: ToolCallFormat,
    tools: &[serde_json::Value],
    many: bool,
) -> Result<String, GrammarError> {
    let blocks = blocks(lark, format, tools, many)?;
    let each: Vec<String> = blocks
        .iter()
        .map(|block| {
            let once = lark.named(&format!("{} {}", lark.text(block.open), block.rest));
            if many && !block.all { format!("{once} (NL? {once})*") } else { once }
        })
        .collect();
    Ok(format!("({})", each.join(" | ")))
}

/// Any text, with calls in it that follow their schemas.
pub(super) fn possible(
    lark: &mut Lark<'_>,
    format: ToolCallFormat,
    tools: &[serde_json::Value],
    many: bool,
) -> Result<String, GrammarError> {
    if matches!(format, ToolCallFormat::Llama | ToolCallFormat::Channels) {
        return Err(GrammarError::format(
            "in this model's format nothing tells a call from text before it is there, so a call follows its schema \
             only where `tool_choice` asks for one",
        ));
    }
    let blocks = blocks(lark, format, tools, many)?;
    let each: Vec<String> = blocks
        .iter()
        .map(|block| {
            let begins = lark.until(block.open, None);
            lark.named(&format!("{begins} {}", block.rest))
        })
        .collect();
    let often = if many { "*" } else { "?" };
    Ok(format!("({}){often} TEXT?", each.join(" | ")))
}

fn blocks(
    lark: &mut Lark<'_>,
    format: ToolCallFormat,
    tools: &[serde_json::Value],
    many: bool,
) -> Result<Vec<Block>, GrammarError> {
    let functions = Function::all(tools)?;
    let mut writer = Writer { lark, functions, many };
    let plain = ("name", "arguments");
    Ok(match format {
        ToolCallFormat::Hermes => {
            let object = writer.objects(plain, "", "");
            vec![writer.block("<tool_call>", &format!("NL? {object} NL?"), "</tool_call>", false)]
        }
        ToolCallFormat::ToolCalls => {
            let object = writer.objects(plain, "", "");
            let list = writer.list(&object);
            let lines = if many { format!("{object} (NL {object})*") } else { object };
            vec![writer.block("<tool_calls>", &format!("NL? ({list} | {lines}) NL?"), "</tool_calls>", true)]
        }
        ToolCallFormat::Nemotron => {
            let object = writer.objects(plain, "", "");
            let list = writer.list(&object);
            vec![writer.block("<TOOLCALL>", &list, "</TOOLCALL>", true)]
        }
        ToolCallFormat::Granite => {
            let object = writer.objects(plain, "", "");
            let list = format!("SPACE? {}", writer.list(&object));
            vec![writer.block("<|tool_call|>", &list, "", true)]
        }
        ToolCallFormat::Functools => {
            let object = writer.objects(plain, "", "");
            let rest = writer.list(&object);
            vec![writer.block("functools", &rest, "", true)]
        }
        ToolCallFormat::GigaChat => {
            let open = if writer.lark.is_token("<|function_call|>") {
                "<|function_call|>"
            } else {
                "function call<|role_sep|>"
            };
            let object = writer.objects(plain, "", "");
            vec![writer.block(open, &format!("NL? {object}"), "", true)]
        }
        ToolCallFormat::Cohere => {
            let object = writer.objects(
                ("tool_name", "parameters"),
                r#"("\"tool_call_id\": \"" /[0-9]{1,3}/ "\", ")?"#,
                "",
            );
            let list = writer.list(&object);
            vec![writer.block("<|START_ACTION|>", &format!("NL? {list} NL?"), "<|END_ACTION|>", true)]
        }
        ToolCallFormat::CommandR => {
            let object = writer.objects(("tool_name", "parameters"), "", "");
            let list = writer.list(&object);
            vec![writer.block("Action:\n```json", &format!("NL? {list} NL?"), "```", true)]
        }
        ToolCallFormat::Llama => {
            let object = writer.objects(("name", "parameters"), "", "");
            vec![Block { open: "", rest: object, all: true }]
        }
        ToolCallFormat::Mistral => {
            let mut rests = Vec::new();
            if writer.lark.is_token("[ARGS]") {
                let id = format!("({} /[a-zA-Z0-9]{{9}}/)?", writer.lark.text("[CALL_ID]"));
                let between = format!("{id} {}", writer.lark.text("[ARGS]"));
                rests.push(writer.named("", &between, ""));
            } else {
                let object = writer.objects(plain, "", r#"(", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"")?"#);
                rests.push(format!("SPACE? {}", writer.list(&object)));
            }
            let all = !writer.lark.is_token("[ARGS]");
            rests.into_iter().map(|rest| writer.block("[TOOL_CALLS]", &rest, "", all)).collect()
        }
        ToolCallFormat::Kimi => {
            let between =
                format!("\":\" /[0-9]{{1,3}}/ {}", writer.lark.text("<|tool_call_argument_begin|>"));
            let open = format!("{} \"functions.\"", writer.lark.text("<|tool_call_begin|>"));
            let close = writer.lark.text("<|tool_call_end|>");
            let call = writer.named(&open, &between, &close);
            let calls = writer.repeated(&call);
            vec![writer.block("<|tool_calls_section_begin|>", &calls, "<|tool_calls_section_end|>", true)]
        }
        ToolCallFormat::DeepSeek => {
            let open = writer.lark.text("<｜tool▁call▁begin｜>");
            let (sep, close) = (writer.lark.text("<｜tool▁sep｜>"), writer.lark.text("<｜tool▁call▁end｜>"));
            let new = writer.named(&open, &sep, &close);
            let old = writer.named(
                &format!("{open} \"function\" {sep}"),
                "\"\\n```json\\n\"",
                &format!("\"\\n```\" {close}"),
            );
            let call = format!("({new} | {old})");
            let calls = writer.repeated(&call);
            vec![writer.block("<｜tool▁calls▁begin｜>", &calls, "<｜tool▁calls▁end｜>", true)]
        }
        ToolCallFormat::Functionary => {
            let rest = writer.named("", "\">\"", "");
            vec![writer.block("<function=", &rest, "</function>", false)]
        }
        ToolCallFormat::Channels => {
            // The token that ends the call ends the answer.
            let between = format!(
                " {} \"json\" {}",
                writer.lark.text(" <|constrain|>"),
                writer.lark.text("<|message|>")
            );
            let rest = writer.named("", &between, "");
            vec![writer.block("<|channel|>commentary to=functions.", &rest, "", true)]
        }
        ToolCallFormat::Gemma | ToolCallFormat::Lfm => writer.literal(format)?,
        _ => writer.xml(format)?,
    })
}

struct Writer<'l, 't> {
    lark: &'l mut Lark<'t>,
    functions: Vec<Function>,
    many: bool,
}

impl Writer<'_, '_> {
    fn block(&self, open: &'static str, inside: &str, close: &str, all: bool) -> Block {
        Block { open, rest: format!("{inside} {}", self.lark.text(close)), all }
    }

    /// One of the functions, as `write` writes each.
    fn one_of(
        &mut self,
        mut write: impl FnMut(&mut Self, &Function) -> Result<String, GrammarError>,
    ) -> Result<String, GrammarError> {
        let functions = std::mem::take(&mut self.functions);
        let mut each = Vec::with_capacity(functions.len());
        for function in &functions {
            let body = write(self, function)?;
            each.push(self.lark.named(&body));
        }
        self.functions = functions;
        Ok(self.lark.named(&each.join(" | ")))
    }

    /// A call as a JSON object, with what may stand before its name and behind its arguments.
    fn objects(&mut self, (name, arguments): (&str, &str), before: &str, behind: &str) -> String {
        let call = self.one_of(|writer, function| {
            let json = writer.lark.json(&function.parameters);
            let head = format!("\"{name}\": \"{}\", \"{arguments}\": ", function.name);
            Ok(format!("\"{{\" {before} {} {json} {behind} \"}}\"", quoted(&head)))
        });
        call.unwrap_or_default()
    }

    /// A name and its arguments as JSON, with what stands around both.
    fn named(&mut self, open: &str, between: &str, close: &str) -> String {
        let call = self.one_of(|writer, function| {
            let json = writer.lark.json(&function.parameters);
            Ok(format!("{open} {} {between} {json} {close}", quoted(&function.name)))
        });
        call.unwrap_or_default()
    }

    fn list(&mut self, object: &str) -> String {
        let more = if self.many { format!("(\",\" SPACE? {object})*") } else { String::new() };
        self.lark.named(&format!("\"[\" NL? {object} {more} NL? \"]\""))
    }

    fn repeated(&mut self, call: &str) -> String {
        if self.many { format!("{call} (NL? {call})*") } else { call.to_owned() }
    }

    fn xml(&mut self, format: ToolCallFormat) -> Result<Vec<Block>, GrammarError> {
        let start = format.starts().first().copied().unwrap_or_default();
        // A name follows the tag, and not JSON.
        let Some(Syntax::Xml(syntax)) = format.syntax(&format!("{start}f")) else {
            return Err(GrammarError::format("gruff has no grammar for this model's calls"));
        };
        let typed = format == ToolCallFormat::Dsml;
        let function = self.one_of(|writer, function| writer.function(syntax, function, typed))?;
        let close = syntax.function_end;
        let inner = format!("{function} {}", self.lark.text(close));
        if syntax.outer.0.is_empty() {
            return Ok(vec![Block { open: syntax.function, rest: inner, all: false }]);
        }
        let opened = format!("{} {inner}", self.lark.text(syntax.function));
        let calls = self.repeated(&opened);
        let outer = self.block(syntax.outer.0, &format!("NL? {calls} NL?"), syntax.outer.1, false);
        // The same without the outer tags is read too.
        Ok(vec![outer, Block { open: syntax.function, rest: inner, all: false }])
    }

    /// A function from its name to its last parameter.
    fn function(
        &mut self,
        syntax: &XmlSyntax,
        function: &Function,
        typed: bool,
    ) -> Result<String, GrammarError> {
        let mut body = format!(
            "{} {} NL?",
            quoted(&name_in(syntax.function, &function.name)),
            self.lark.text(syntax.name_end)
        );
        for parameter in function.each()? {
            let key = name_in(syntax.parameter, parameter.name);
            let kind = parameter.kind(function);
            let attribute = match (typed, &kind) {
                (false, _) => "",
                (true, Kind::Json) => " string=\"false\"",
                (true, _) => " string=\"true\"",
            };
            let head = self.lark.text(&format!("{}{key}{attribute}{}", syntax.parameter, syntax.key_end));
            let between = match syntax.value {
                "" => String::new(),
                value => format!("NL? {}", self.lark.text(value)),
            };
            let value = self.value(&parameter, kind, syntax.value_end);
            let whole = self.lark.named(&format!("{head} {between} {value} NL?"));
            body.push_str(&format!(" {whole}{}", if parameter.required { "" } else { "?" }));
        }
        Ok(body)
    }

    /// A value up to and with what ends it.
    fn value(&mut self, parameter: &Parameter<'_>, kind: Kind, end: &str) -> String {
        match kind {
            Kind::Text(None) => self.lark.until(end, None),
            // A line break around a text is none of it.
            Kind::Text(Some(pattern)) => self.lark.until(end, Some(&format!("\\n?{pattern}\\n?"))),
            Kind::OneOf(texts) => {
                // Where a text has a line break of its own at an end, there is one more that is none of it.
                let (broken, plain): (Vec<String>, Vec<String>) =
                    texts.into_iter().partition(|text| text.starts_with('\n') || text.ends_with('\n'));
                let plain: Vec<String> = plain.iter().map(|text| quoted(text)).collect();
                let mut each: Vec<String> =
                    broken.iter().map(|text| quoted(&format!("\n{text}\n"))).collect();
                if !plain.is_empty() {
                    each.push(format!("NL? ({}) NL?", plain.join(" | ")));
                }
                format!("({}) {}", each.join(" | "), self.lark.text(end))
            }
            Kind::Json => format!("NL? {} NL? {}", self.lark.json(&parameter.schema), self.lark.text(end)),
        }
    }

    fn literal(&mut self, format: ToolCallFormat) -> Result<Vec<Block>, GrammarError> {
        let start = format.starts().first().copied().unwrap_or_default();
        let Some(Syntax::Literal(syntax)) = format.syntax(start) else {
            return Err(GrammarError::format("gruff has no grammar for this model's calls"));
        };
        let quotes = format == ToolCallFormat::Gemma;
        let call = self.one_of(|writer, function| writer.literal_call(syntax, function, quotes))?;
        if quotes {
            return Ok(vec![self.block(syntax.open, &call, syntax.close, false)]);
        }
        let more = if self.many { format!("(\", \" {call})*") } else { String::new() };
        Ok(vec![self.block(syntax.open, &format!("\"[\" {call} {more} \"]\""), syntax.close, true)])
    }

    fn literal_call(
        &mut self,
        syntax: &LiteralSyntax,
        function: &Function,
        quotes: bool,
    ) -> Result<String, GrammarError> {
        let (open, sign, close) = syntax.arguments;
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        for parameter in function.each()? {
            let value = match parameter.kind(function) {
                Kind::Text(pattern) if quotes => {
                    let text = self.lark.until(QUOTE, pattern.as_deref());
                    format!("{} {text}", self.lark.text(QUOTE))
                }
                Kind::OneOf(texts) if quotes => {
                    let texts: Vec<String> =
                        texts.iter().map(|text| self.lark.text(&format!("{QUOTE}{text}{QUOTE}"))).collect();
                    format!("({})", texts.join(" | "))
                }
                _ => self.lark.json(&parameter.schema),
            };
            let member =
                self.lark.named(&format!("{} {value}", quoted(&format!("{}{sign}", parameter.name))));
            if parameter.required { required.push(member) } else { optional.push(member) }
        }
        let members = self.members(&required, &optional, if quotes { "," } else { ", " });
        let head = quoted(&format!("{}{}{open}", syntax.name, function.name));
        Ok(format!("{head} {members} {}", quoted(&close.to_string())))
    }

    /// Members with signs between them: those that are required, then any of the others, each in its order.
    fn members(&mut self, required: &[String], optional: &[String], sign: &str) -> String {
        let sign = quoted(sign);
        let behind = |members: &[String]| -> String {
            members.iter().map(|member| format!(" ({sign} {member})?")).collect()
        };
        if !required.is_empty() {
            return format!("{}{}", required.join(&format!(" {sign} ")), behind(optional));
        }
        // Any of them may be the first, and any of those behind it the next.
        let (mut first, mut next): (Option<String>, Option<String>) = (None, None);
        for member in optional.iter().rev() {
            let from = self.lark.named(&format!("{member} {}", next.as_deref().unwrap_or_default()));
            next = Some(match next {
                Some(next) => self.lark.named(&format!("{sign} {from} | {next}")),
                None => self.lark.named(&format!("({sign} {from})?")),
            });
            first = Some(match first {
                Some(first) => self.lark.named(&format!("{from} | {first}")),
                None => from,
            });
        }
        first.map_or_else(String::new, |first| format!("({first})?"))
    }
}

/// A name as it stands in a tag: in quotation marks where it is an attribute.
fn name_in(tag: &str, name: &str) -> String {
    if tag.ends_with("name=") { format!("\"{name}\"") } else { name.to_owned() }
}
