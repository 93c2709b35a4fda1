//! What the templates of real models make of reasoning, content and calls is parsed back: whole, character by
//! character, and cut at every place. The templates are those of `../shared/data/templates` beside the
//! workspace, where they are at hand.

use std::path::Path;

use gruff_text::chat::{
    ChatTemplate, Message, OutputFormat, OutputParser, ParsedOutput, ReasoningFormat, ReasoningMode,
    RenderInput, ToolCall, ToolCallFormat,
};
use serde_json::{Map, Value, json};

const REASONING: &str = "First I weigh \"both\" <sides>.";
const CONTENT: &str = "I look it up: é, {x}.";

/// Templates that leave calls out, or refuse them in every form.
const WITHOUT_CALLS: [&str; 9] = [
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
];

fn calls() -> [ToolCall; 2] {
    let call = |id: &str, name: &str, arguments| ToolCall { id: id.into(), name: name.into(), arguments };
    [
        call(
            "call0abcd",
            "alpha",
            json!({"text": "a \"b\"\nc <d> é", "count": 2, "list": [1, "x"], "flag": true, "digits": "12"}),
        ),
        call("call1abcd", "beta", json!({"text": "y"})),
    ]
}

fn tools() -> [Value; 2] {
    ["alpha", "beta"].map(|name| {
        let property = |kind: &str| json!({"type": kind, "description": "d"});
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": {
            "type": "object", "required": [], "properties": {
                "text": property("string"), "count": property("integer"), "list": property("array"),
                "flag": property("boolean"), "digits": property("string"),
        }}}})
    })
}

fn render(
    template: &ChatTemplate,
    answer: Option<&Message>,
    prompt: bool,
    mode: ReasoningMode,
) -> Option<String> {
    let mut messages = vec![Message::user("Q")];
    messages.extend(answer.cloned());
    let tools = tools();
    // Some templates cannot render tools; some take them as text of their own.
    let texts = [("functions", Value::from("[]")), ("datetime", Value::from("now"))];
    [Some(&tools[..]), None].into_iter().find_map(|tools| {
        let mut variables: Map<String, Value> = mode.variables();
        variables.extend(texts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let input = RenderInput {
            messages: &messages,
            tools,
            add_generation_prompt: prompt,
            bos_token: Some("<s>"),
            eos_token: Some("</s>"),
            variables,
            ..RenderInput::default()
        };
        template.render(&input).ok().map(|rendered| rendered.text)
    })
}

fn common(a: &str, b: &str) -> usize {
    a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b).map_or(a.len().min(b.len()), |((at, _), _)| at)
}

/// The prompt, and what a model would have to say for the template's rendering of the answer.
fn output(template: &ChatTemplate, answer: &Message, mode: ReasoningMode) -> Option<(String, String)> {
    let prompt = render(template, None, true, mode)?;
    let full = render(template, Some(answer), false, mode)?;
    let mut at = common(&full, &prompt);
    // A tag that prompt and answer begin alike belongs to the answer as a whole.
    if let Some(open) = full[..at].rfind('<').filter(|open| !full[*open..at].contains('>')) {
        at = open;
    }
    let mut said = full.get(at..)?.to_owned();
    let plain = render(template, Some(&Message::assistant("PLAIN")), false, mode).unwrap_or_default();
    let end = plain.rsplit_once("PLAIN").map_or("", |(_, end)| end);
    said.truncate(said.len() - if said.ends_with(end) { end.len() } else { 0 });
    // Command R+ has its instructions between question and answer; they are not the model's words.
    let instructs = template.name().contains("command-r-plus");
    if let Some((_, answer)) = said.split_once("CHATBOT_TOKEN|>").filter(|_| instructs) {
        said = answer.split("<|START_OF_TURN_TOKEN|>").next().unwrap_or_default().to_owned();
    }
    // Special tokens that no format uses do not reach a parser.
    for token in [
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
        "<SPECIAL_12>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_THINKING|><|END_THINKING|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|CHATBOT_TOKEN|>",
    ] {
        said = said.replace(token, "");
    }
    // Where the history is written without what the prompt begins, the model goes on behind that.
    let reasoning = template.reasoning().format;
    let opened = reasoning.is_some_and(|format| format.is_opened_by(&prompt));
    let begins = said.starts_with(REASONING);
    let prompt = if opened && begins { prompt } else { full[..at].to_owned() };
    Some((prompt, said))
}

fn parse<'a>(format: OutputFormat, prompt: &str, parts: impl IntoIterator<Item = &'a str>) -> ParsedOutput {
    let mut parser = OutputParser::new(format.reasoning, format.tool_calls, prompt, &tools());
    let mut parsed = ParsedOutput::default();
    for part in parts {
        parser.feed(part).into_iter().for_each(|event| parsed.push(event));
    }
    parser.finish().into_iter().for_each(|event| parsed.push(event));
    parsed
}

fn answers() -> Vec<Message> {
    let mut answers = Vec::new();
    for (content, reasoning) in [(CONTENT, true), (CONTENT, false), ("", true), ("", false)] {
        for count in [2, 1] {
            let message = Message::assistant(content).with_tool_calls(&calls()[..count]);
            answers.push(if reasoning { message.with_reasoning(REASONING) } else { message });
        }
    }
    answers
}

fn check(name: &str, template: &ChatTemplate, answer: &Message, mode: ReasoningMode) -> Option<usize> {
    let format = OutputFormat::of(template);
    // This template writes the content before calls as reasoning.
    if name.starts_with("openai-gpt-oss") && !answer.text().is_empty() && !answer.tool_calls().is_empty() {
        return None;
    }
    let (prompt, said) = output(template, answer, mode)?;
    let expected: Vec<(String, Value)> = calls()
        .into_iter()
        .filter(|call| said.contains(&call.name) && !answer.tool_calls().is_empty())
        .take(answer.tool_calls().len())
        .map(|call| (call.name, call.arguments))
        .collect();
    let parsed = parse(format, &prompt, [said.as_str()]);
    let found: Vec<(String, Value)> =
        parsed.tool_calls().into_iter().map(|call| (call.name, call.arguments)).collect();
    assert_eq!(found, expected, "{name} {format:?} {said}");
    let text = |text: &'static str| if said.contains(text) { text } else { "" };
    assert_eq!(parsed.content.trim(), text(CONTENT), "{name} {format:?} {said}");
    assert_eq!(parsed.reasoning.trim(), text(REASONING), "{name} {format:?} {prompt} {said}");
    let chars: Vec<String> = said.chars().map(String::from).collect();
    assert_eq!(parse(format, &prompt, chars.iter().map(String::as_str)), parsed, "{name}");
    for at in (0..said.len()).filter(|at| said.is_char_boundary(*at)) {
        assert_eq!(parse(format, &prompt, [&said[..at], &said[at..]]), parsed, "{name} at {at}");
        // A text that ends anywhere gives arguments that are JSON all the same.
        for call in parse(format, &prompt, [&said[..at]]).calls {
            let arguments: Result<Value, _> = serde_json::from_str(&call.arguments);
            assert!(arguments.is_ok(), "{name} at {at}: {}", call.arguments);
        }
    }
    Some(expected.len())
}

/// Calls behind reasoning that is not closed are calls, those within reasoning that is closed are not.
fn check_unclosed(name: &str, template: &ChatTemplate) -> bool {
    let format = OutputFormat::of(template);
    let Some(ReasoningFormat::Tags { start, end }) = format.reasoning else { return false };
    let answer = Message::assistant("").with_tool_calls(&calls());
    let Some((_, said)) = output(template, &answer, ReasoningMode::Off) else { return false };
    let said = said.trim_start().trim_start_matches(start).trim_start().trim_start_matches(end).trim_start();
    let plain = parse(OutputFormat { reasoning: None, ..format }, "", [said]);
    if plain.calls.is_empty()
        || !plain.content.trim().is_empty()
        || format.tool_calls == Some(ToolCallFormat::Llama)
    {
        return false;
    }
    let prompt = format!("{start}\n");
    let text = format!("{REASONING}\n\n{said}");
    let parsed = parse(format, &prompt, [text.as_str()]);
    assert_eq!(parsed.tool_calls(), plain.tool_calls(), "{name} {text}");
    assert_eq!((parsed.reasoning.as_str(), parsed.content.trim()), (REASONING, ""), "{name} {text}");
    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
        assert_eq!(parse(format, &prompt, [&text[..at], &text[at..]]), parsed, "{name} at {at}");
    }
    let closed = format!("{text}\n{end}\n\n{CONTENT}");
    let parsed = parse(format, &prompt, [closed.as_str()]);
    assert_eq!((parsed.calls.len(), parsed.content.as_str()), (0, CONTENT), "{name} {closed}");
    assert_eq!(parsed.reasoning, text.trim_end(), "{name} {closed}");
    for at in (0..closed.len()).filter(|at| closed.is_char_boundary(*at)) {
        assert_eq!(parse(format, &prompt, [&closed[..at], &closed[at..]]), parsed, "{name} at {at}");
    }
    true
}

#[test]
fn what_templates_write_is_read_back() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/templates");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        eprintln!("{} is absent: nothing compared", folder.display());
        return;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let (mut without, mut unclosed) = (Vec::new(), 0);
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let template = ChatTemplate::named(&name, &std::fs::read_to_string(&path).unwrap()).unwrap();
        // This template ends its turn between content and calls, with the content where reasoning is.
        let one_thing_at_a_time = name == "NVIDIA-Nemotron-Nano-v2";
        let modes = if one_thing_at_a_time {
            [ReasoningMode::Off; 2]
        } else {
            [ReasoningMode::On, ReasoningMode::Off]
        };
        unclosed += usize::from(check_unclosed(&name, &template));
        let mut most = 0;
        for mode in modes {
            for answer in answers() {
                if one_thing_at_a_time && !answer.text().is_empty() {
                    continue;
                }
                most = most.max(check(&name, &template, &answer, mode).unwrap_or(0));
            }
            for answer in [Message::assistant(CONTENT), Message::assistant(CONTENT).with_reasoning(REASONING)]
            {
                if !one_thing_at_a_time {
                    check(&name, &template, &answer, mode);
                }
            }
        }
        if most == 0 {
            without.push(name);
        }
    }
    assert_eq!(without, WITHOUT_CALLS);
    assert!(unclosed >= 8, "{unclosed} templates with reasoning and calls");
}
