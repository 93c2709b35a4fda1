//! Finding out how a model writes its calls.

use serde_json::{Value, json};

use super::ToolCallFormat;
use crate::chat::{ChatTemplate, Message, OutputParser, ParsedOutput, RenderInput, ToolCall};

impl ToolCallFormat {
    /// The format of the model that a template belongs to: the one that reads a call back out of
    /// what the template makes of it, else the one that the template's text speaks of.
    pub fn of(template: &ChatTemplate) -> Option<ToolCallFormat> {
        let rendered = render_call(template).unwrap_or_default();
        // What frames a call begins first: of several formats that read it, the one that takes most of the text;
        // one without any frame is the last to be considered.
        let starts =
            |format: &ToolCallFormat| format.starts().iter().filter_map(|start| rendered.rfind(start)).min();
        let candidates =
            ToolCallFormat::ALL.into_iter().filter_map(|format| Some((starts(&format)?, format)));
        let read_back =
            candidates.filter(|(start, format)| format.reads(rendered.get(*start..).unwrap_or_default()));
        read_back
            .min_by_key(|(start, format)| (*format == ToolCallFormat::Llama, *start))
            .map(|(_, format)| format)
            .or_else(|| ToolCallFormat::spoken_of(template.source()))
    }

    /// Whether the probe's call is read out of a text.
    fn reads(self, text: &str) -> bool {
        let mut parser = OutputParser::new(None, Some(self), "", &[tool()]);
        let mut parsed = ParsedOutput::default();
        let events = parser.feed(text).into_iter().chain(parser.finish());
        events.for_each(|event| parsed.push(event));
        let calls = parsed.tool_calls();
        calls.iter().map(|call| (call.name.as_str(), &call.arguments)).eq([(NAME, &arguments())])
    }

    fn spoken_of(source: &str) -> Option<ToolCallFormat> {
        let has = |text: &str| source.contains(text);
        let said = |format: ToolCallFormat, yes: bool| yes.then_some(format);
        said(ToolCallFormat::Channels, has("<|channel|>") && has("commentary"))
            .or(said(ToolCallFormat::Mistral, has("[TOOL_CALLS]")))
            .or(said(ToolCallFormat::Xml, has("<function=") && has("<parameter=")))
            .or(said(ToolCallFormat::ArgumentTags, has("<arg_key>")))
            .or(said(ToolCallFormat::Hermes, has("<tool_call>") || has("xml_tools")))
            .or(said(ToolCallFormat::Cohere, has("<|START_ACTION|>")))
            .or(said(ToolCallFormat::CommandR, has("Action:") && has("```json")))
            .or(said(ToolCallFormat::Functools, has("functools")))
            .or(said(ToolCallFormat::DeepSeek, has("<｜tool▁call▁begin｜>") || has("<｜tool▁calls▁begin｜>")))
            .or(said(ToolCallFormat::Granite, has("<|tool_call|>")))
            .or(said(ToolCallFormat::Kimi, has("<|tool_call_begin|>")))
            .or(said(ToolCallFormat::Nemotron, has("<TOOLCALL>")))
            .or(said(ToolCallFormat::ToolCalls, has("<tool_calls>")))
            .or(said(ToolCallFormat::MiniMax, has("<minimax:tool_call>")))
            .or(said(ToolCallFormat::Dsml, has("｜DSML｜")))
            .or(said(ToolCallFormat::Gemma, has("<|tool_call>")))
            .or(said(ToolCallFormat::Lfm, has("<|tool_list_start|>") || has("List of tools: [")))
            .or(said(ToolCallFormat::Llama, has("<|start_header_id|>") && has("\"parameters\":")))
    }
}

const NAME: &str = "gruff_probe";

fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": NAME, "description": "A probe.",
        "parameters": {"type": "object", "required": ["word"], "properties": {
            "word": {"type": "string", "description": "A word."},
        }},
    }})
}

fn arguments() -> Value {
    json!({"word": "probe"})
}

/// What the template makes of a call, in whichever of the ways to say it that it accepts.
fn render_call(template: &ChatTemplate) -> Option<String> {
    let question = Message::user("Hi");
    let call = ToolCall { id: "probe0000".to_owned(), name: NAME.to_owned(), arguments: arguments() };
    let answers =
        ["", "Well."].map(|text| Message::assistant(text).with_tool_calls(std::slice::from_ref(&call)));
    let tools = [tool()];
    let mut rendered = answers.into_iter().filter_map(|answer| {
        let messages = [question.clone(), answer];
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            bos_token: Some(""),
            eos_token: Some(""),
            ..RenderInput::default()
        };
        template.render(&input).ok().map(|rendered| rendered.text)
    });
    rendered.find(|text| text.contains(NAME))
}
