//! The formats in which models write calls, one table each.

use super::json::JsonSyntax;
use super::literals::{LiteralSyntax, QUOTE};
use super::named::{CALL_ID, NameStyle, NamedSyntax};
use super::xml::XmlSyntax;

/// How a model writes its calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen 2.5 and 3, Granite 4).
    Hermes,
    /// `<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>` (Apriel, MiniMax-M1).
    ToolCalls,
    /// `<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>` (Nemotron Nano 2).
    Nemotron,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}, …]` (Granite 3).
    Granite,
    /// `function call<|role_sep|>{"name": …, "arguments": {…}}` or `<|function_call|>{…}` (GigaChat 3).
    GigaChat,
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}, …]<|END_ACTION|>` (Command R7B, Command A).
    Cohere,
    /// `Action:` and a JSON list in a code block (Command R and R+).
    CommandR,
    /// `functools[{"name": …, "arguments": {…}}, …]` (Firefunction).
    Functools,
    /// `[TOOL_CALLS]` and a JSON list, or a name and its arguments (Mistral).
    Mistral,
    /// `{"name": …, "parameters": {…}}` on a line of its own, perhaps after `<|python_tag|>` (Llama 3).
    Llama,
    /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` (Kimi K2).
    Kimi,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` (DeepSeek V3 and R1).
    DeepSeek,
    /// `<function=NAME>{…}</function>` (Functionary 3.1).
    Functionary,
    /// `<|channel|>commentary to=functions.NAME<|message|>{…}<|call|>` (gpt-oss).
    Channels,
    /// `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>` (Qwen3-Coder,
    /// Qwen3.5), also without the outer tag.
    Xml,
    /// The same with `<seed:tool_call>` (Seed-OSS).
    Seed,
    /// `<tool_call>NAME<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` (GLM 4.5 and later).
    ArgumentTags,
    /// `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke></minimax:tool_call>`
    /// (MiniMax-M2).
    MiniMax,
    /// The same with tags that begin with `｜DSML｜` (DeepSeek V3.2 and V4).
    Dsml,
    /// The same with tags that begin with `atem:`.
    Atem,
    /// `<|tool_call>call:NAME{key:<|"|>value<|"|>}<tool_call|>` (Gemma 4).
    Gemma,
    /// `<|tool_call_start|>[NAME(key="value")]<|tool_call_end|>` (LFM2).
    Lfm,
}

/// A format's grammar.
#[derive(Debug, Clone, Copy)]
pub(in crate::chat) enum Syntax {
    Json(&'static JsonSyntax),
    Named(&'static NamedSyntax),
    Xml(&'static XmlSyntax),
    Literal(&'static LiteralSyntax),
}

/// One tag around JSON.
macro_rules! json {
    ($($name:ident $open:literal $close:literal;)*) => {
        $(pub(super) static $name: JsonSyntax = JsonSyntax { open: $open, close: $close };)*
    };
}

json! {
    HERMES "<tool_call>" "</tool_call>";
    TOOL_CALLS "<tool_calls>" "</tool_calls>";
    NEMOTRON "<TOOLCALL>" "</TOOLCALL>";
    GRANITE "<|tool_call|>" "";
    GIGA_CHAT "<|function_call|>" "";
    GIGA_CHAT_ROLE "function call<|role_sep|>" "<|message_sep|>";
    GIGA_CHAT_NEXT "<|message_sep|>\n\nfunction call<|role_sep|>" "<|message_sep|>";
    COHERE "<|START_ACTION|>" "<|END_ACTION|>";
    COMMAND_R "Action:\n```json" "```";
    COMMAND_R_INLINE "Action: ```json" "```";
    FUNCTOOLS "functools" "";
    MISTRAL_LIST "[TOOL_CALLS]" "";
    PYTHON_TAG "<|python_tag|>" "";
    BARE "" "";
}

static MISTRAL: NamedSyntax = NamedSyntax {
    section: ("", ""),
    open: ("[TOOL_CALLS]", ""),
    between: &["[ARGS]"],
    close: &[],
    name: NameStyle::WithId,
};

static KIMI: NamedSyntax = NamedSyntax {
    section: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    open: ("<|tool_call_begin|>", ""),
    between: &["<|tool_call_argument_begin|>"],
    close: &["<|tool_call_end|>"],
    name: NameStyle::Indexed,
};

static DEEP_SEEK: NamedSyntax = NamedSyntax {
    section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    open: ("<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>"),
    between: &["<｜tool▁sep｜>", "\n```json"],
    close: &["```", "<｜tool▁call▁end｜>"],
    name: NameStyle::Plain,
};

static FUNCTIONARY: NamedSyntax = NamedSyntax {
    section: ("", ""),
    open: ("<function=", ""),
    between: &[">"],
    close: &["</function>"],
    name: NameStyle::Plain,
};

static CHANNELS: NamedSyntax = NamedSyntax {
    section: ("", ""),
    open: ("", ""),
    between: &[],
    close: &["<|call|>", "<|end|>"],
    name: NameStyle::Recipient,
};

static XML: XmlSyntax = XmlSyntax {
    outer: ("<tool_call>", "</tool_call>"),
    function: "<function=",
    name_end: ">",
    function_end: "</function>",
    parameter: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
};

static SEED: XmlSyntax = XmlSyntax { outer: ("<seed:tool_call>", "</seed:tool_call>"), ..XML };

static ARGUMENT_TAGS: XmlSyntax = XmlSyntax {
    outer: ("", ""),
    function: "<tool_call>",
    name_end: "",
    function_end: "</tool_call>",
    parameter: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
};

/// `invoke` and `parameter` with names as attributes, all tags beginning alike.
macro_rules! invoke {
    ($prefix:literal, $outer:literal) => {
        XmlSyntax {
            outer: (concat!("<", $outer, ">"), concat!("</", $outer, ">")),
            function: concat!("<", $prefix, "invoke name="),
            name_end: ">",
            function_end: concat!("</", $prefix, "invoke>"),
            parameter: concat!("<", $prefix, "parameter name="),
            key_end: ">",
            value: "",
            value_end: concat!("</", $prefix, "parameter>"),
        }
    };
}

static MINI_MAX: XmlSyntax = invoke!("", "minimax:tool_call");
static DSML: XmlSyntax = invoke!("｜DSML｜", "｜DSML｜tool_calls");
static DSML_FUNCTIONS: XmlSyntax = invoke!("｜DSML｜", "｜DSML｜function_calls");
static ATEM: XmlSyntax = invoke!("atem:", "atem:function_calls");

static GEMMA: LiteralSyntax =
    LiteralSyntax { open: "<|tool_call>", close: "<tool_call|>", name: "call:", arguments: ('{', ':', '}') };

static LFM: LiteralSyntax = LiteralSyntax {
    open: "<|tool_call_start|>",
    close: "<|tool_call_end|>",
    name: "",
    arguments: ('(', '=', ')'),
};

impl ToolCallFormat {
    /// All of them; where two could read the same text, the more particular one is first.
    pub(super) const ALL: [ToolCallFormat; 22] = [
        ToolCallFormat::Channels,
        ToolCallFormat::Atem,
        ToolCallFormat::Mistral,
        ToolCallFormat::Kimi,
        ToolCallFormat::DeepSeek,
        ToolCallFormat::Dsml,
        ToolCallFormat::MiniMax,
        ToolCallFormat::Hermes,
        ToolCallFormat::Seed,
        ToolCallFormat::Xml,
        ToolCallFormat::Functionary,
        ToolCallFormat::ArgumentTags,
        ToolCallFormat::Cohere,
        ToolCallFormat::CommandR,
        ToolCallFormat::Nemotron,
        ToolCallFormat::ToolCalls,
        ToolCallFormat::GigaChat,
        ToolCallFormat::Gemma,
        ToolCallFormat::Lfm,
        ToolCallFormat::Granite,
        ToolCallFormat::Functools,
        ToolCallFormat::Llama,
    ];

    /// What may begin a call.
    pub(in crate::chat) fn starts(self) -> &'static [&'static str] {
        match self {
            ToolCallFormat::Hermes | ToolCallFormat::ArgumentTags => &["<tool_call>"],
            ToolCallFormat::ToolCalls => &["<tool_calls>"],
            ToolCallFormat::Nemotron => &["<TOOLCALL>"],
            ToolCallFormat::Granite => &["<|tool_call|>"],
            ToolCallFormat::GigaChat => &[
                "<|function_call|>",
                "<|message_sep|>\n\nfunction call<|role_sep|>",
                "function call<|role_sep|>",
            ],
            ToolCallFormat::Cohere => &["<|START_ACTION|>"],
            ToolCallFormat::CommandR => &["Action:\n```json", "Action: ```json"],
            ToolCallFormat::Functools => &["functools["],
            ToolCallFormat::Mistral => &["[TOOL_CALLS]"],
            ToolCallFormat::Llama => &["<|python_tag|>", "{\"name\"", "{ \"name\"", "{\"type\"", "{\n"],
            ToolCallFormat::Kimi => &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
            ToolCallFormat::DeepSeek => &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
            ToolCallFormat::Functionary => &["<function="],
            ToolCallFormat::Channels => &["<|start|>", "<|channel|>", " to=functions."],
            ToolCallFormat::Xml => &["<tool_call>", "<function="],
            ToolCallFormat::Seed => &["<seed:tool_call>", "<function="],
            ToolCallFormat::MiniMax => &["<minimax:tool_call>", "<invoke name="],
            ToolCallFormat::Dsml => {
                &["<｜DSML｜tool_calls>", "<｜DSML｜function_calls>", "<｜DSML｜invoke name="]
            }
            ToolCallFormat::Atem => &["<atem:function_calls>", "<atem:invoke name="],
            ToolCallFormat::Gemma => &["<|tool_call>"],
            ToolCallFormat::Lfm => &["<|tool_call_start|>"],
        }
    }

    /// What may follow a call and belongs to it, once or more often.
    pub(super) fn ends(self) -> &'static [&'static str] {
        match self {
            ToolCallFormat::Hermes | ToolCallFormat::ArgumentTags => &["</tool_call>"],
            ToolCallFormat::Xml => &["</tool_call>", "</function>", "</parameter>"],
            ToolCallFormat::Seed => &["</seed:tool_call>", "</function>", "</parameter>"],
            ToolCallFormat::Llama => &[";", "<|eom_id|>", "<|eot_id|>"],
            ToolCallFormat::Channels => &["<|call|>", "<|end|>"],
            ToolCallFormat::GigaChat => &["<|message_sep|>"],
            ToolCallFormat::Functionary => &["<|eom_id|>"],
            _ => &[],
        }
    }

    /// The grammar of the call that a text begins with, its opening included; `None` while that
    /// cannot be told.
    pub(in crate::chat) fn syntax(self, text: &str) -> Option<Syntax> {
        // Some models fall back to JSON where others write a name.
        let json_follows = |open: &str| {
            let inside = text.get(open.len()..).unwrap_or_default().trim_start();
            inside.chars().next().map(|c| c == '{' || c == '[')
        };
        Some(match self {
            ToolCallFormat::Hermes => Syntax::Json(&HERMES),
            ToolCallFormat::ToolCalls => Syntax::Json(&TOOL_CALLS),
            ToolCallFormat::Nemotron => Syntax::Json(&NEMOTRON),
            ToolCallFormat::Granite => Syntax::Json(&GRANITE),
            ToolCallFormat::GigaChat if text.starts_with("<|message_sep|>") => Syntax::Json(&GIGA_CHAT_NEXT),
            ToolCallFormat::GigaChat if text.starts_with('<') => Syntax::Json(&GIGA_CHAT),
            ToolCallFormat::GigaChat => Syntax::Json(&GIGA_CHAT_ROLE),
            ToolCallFormat::Cohere => Syntax::Json(&COHERE),
            ToolCallFormat::CommandR if text.starts_with("Action: ") => Syntax::Json(&COMMAND_R_INLINE),
            ToolCallFormat::CommandR => Syntax::Json(&COMMAND_R),
            ToolCallFormat::Functools => Syntax::Json(&FUNCTOOLS),
            ToolCallFormat::Llama if text.starts_with('<') => Syntax::Json(&PYTHON_TAG),
            ToolCallFormat::Llama => Syntax::Json(&BARE),
            ToolCallFormat::Mistral if json_follows("[TOOL_CALLS]")? => Syntax::Json(&MISTRAL_LIST),
            ToolCallFormat::Mistral => Syntax::Named(&MISTRAL),
            ToolCallFormat::Kimi => Syntax::Named(&KIMI),
            ToolCallFormat::DeepSeek => Syntax::Named(&DEEP_SEEK),
            ToolCallFormat::Functionary => Syntax::Named(&FUNCTIONARY),
            ToolCallFormat::Channels => Syntax::Named(&CHANNELS),
            ToolCallFormat::Xml if text.starts_with("<tool_call>") && json_follows("<tool_call>")? => {
                Syntax::Json(&HERMES)
            }
            ToolCallFormat::Xml => Syntax::Xml(&XML),
            ToolCallFormat::Seed => Syntax::Xml(&SEED),
            ToolCallFormat::ArgumentTags if json_follows("<tool_call>")? => Syntax::Json(&HERMES),
            ToolCallFormat::ArgumentTags => Syntax::Xml(&ARGUMENT_TAGS),
            ToolCallFormat::MiniMax => Syntax::Xml(&MINI_MAX),
            ToolCallFormat::Dsml if text.starts_with(DSML_FUNCTIONS.outer.0) => Syntax::Xml(&DSML_FUNCTIONS),
            ToolCallFormat::Dsml => Syntax::Xml(&DSML),
            ToolCallFormat::Atem => Syntax::Xml(&ATEM),
            ToolCallFormat::Gemma => Syntax::Literal(&GEMMA),
            ToolCallFormat::Lfm => Syntax::Literal(&LFM),
        })
    }

    /// Every text by which this format frames calls.
    pub(super) fn marks(self) -> Vec<&'static str> {
        let mut marks = [self.starts(), self.ends()].concat();
        for start in self.starts() {
            // What follows the opening decides between grammars, so both kinds are looked at.
            for follows in ["", "{", "f"] {
                match self.syntax(&format!("{start}{follows}")) {
                    Some(Syntax::Json(json)) => marks.extend([json.open, json.close]),
                    Some(Syntax::Named(named)) => {
                        marks.extend([named.section.0, named.section.1, named.open.0, named.open.1]);
                        marks.extend(named.between.iter().chain(named.close));
                    }
                    Some(Syntax::Xml(xml)) => marks.extend([
                        xml.outer.0,
                        xml.outer.1,
                        xml.function,
                        xml.function_end,
                        xml.parameter,
                        xml.key_end,
                        xml.value,
                        xml.value_end,
                    ]),
                    Some(Syntax::Literal(literal)) => marks.extend([literal.open, literal.close, QUOTE]),
                    None => {}
                }
            }
        }
        if self == ToolCallFormat::Mistral {
            marks.push(CALL_ID);
        }
        if self == ToolCallFormat::Channels {
            marks.extend(["<|message|>", "<|constrain|>"]);
        }
        marks
    }
}
