//! Calls as models write them, well and badly, at every cut.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::chat::ParsedOutput;

/// Content and calls, each call as `name {arguments}`.
fn parse<'a>(format: ToolCallFormat, parts: impl IntoIterator<Item = &'a str>) -> (String, Vec<String>) {
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}, "b": {"type": "boolean"}}}}}),
    ];
    let mut parser = ToolCallParser::new(format, &tools);
    let (mut events, mut parsed) = (Vec::new(), ParsedOutput::default());
    parts.into_iter().for_each(|part| parser.feed(part, &mut events));
    parser.finish(&mut events);
    events.into_iter().for_each(|event| parsed.push(event));
    let calls = parsed.tool_calls();
    assert!(calls.iter().all(|call| call.arguments.is_object()), "{parsed:?}");
    let calls = calls.iter().map(|call| format!("{} {}", call.name, call.arguments)).collect();
    (parsed.content, calls)
}

const F: &str = r#"f {"n":1,"s":"x"}"#;

fn cases() -> Vec<(ToolCallFormat, &'static str, &'static str, Vec<&'static str>)> {
    use ToolCallFormat::*;
    vec![
        (Hermes, "plain <b>text</b>", "plain <b>text</b>", vec![]),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"x\"}}\n</tool_call>",
            "",
            vec![F],
        ),
        (
            Hermes,
            "I look.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}</tool_call>\nDone.",
            "I look.Done.",
            vec![F],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}</tool_call>",
            "",
            vec![F, F],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}</tool_call></tool_call>",
            "",
            vec![F],
        ),
        (Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}", "", vec![F]),
        (Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}</tool_call>", "", vec![F]),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1,\\\"s\\\":\\\"x\\\"}\"}</tool_call>",
            "",
            vec![F],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a\nb\"}}</tool_call>",
            "",
            vec![r#"f {"s":"a\nb"}"#],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\"}}</tool_call>",
            "",
            vec![r#"f {"s":"</tool_call>"}"#],
        ),
        (Hermes, "the <tool_call> tag", "the <tool_call> tag", vec![]),
        (Hermes, "<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", vec![]),
        (
            Hermes,
            "<tool_call>{\"no\":\"name\"}</tool_call>",
            "<tool_call>{\"no\":\"name\"}</tool_call>",
            vec![],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![F],
        ),
        (
            Xml,
            "Text first.\n\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
            "Text first.",
            vec![F],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</parameter>\n<parameter=s>\nx\n</parameter>\n</parameter>\n</function>\n</function>\n</tool_call>",
            "",
            vec![F],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n<parameter=s>\nx\n</function>\n</tool_call>",
            "",
            vec![F],
        ),
        (
            Xml,
            "<function=f>\n<parameter=n>1</parameter>\n<parameter=s>x</parameter>\n</function>",
            "",
            vec![F],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nx\n</parameter>\n</tool_call>",
            "",
            vec![F],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nx\n</parameter>",
            "",
            vec![F],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=s>\nline\n</parameter> not the end\nline\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![r#"f {"s":"line\n</parameter> not the end\nline"}"#],
        ),
        (
            Xml,
            "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=l>\n[1, 2]\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=z>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![r#"f {"s":"12","l":[1,2],"b":true,"z":"3"}"#],
        ),
        (Xml, "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1,\"s\":\"x\"}}</tool_call>", "", vec![F]),
        (
            Xml,
            "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
            "",
            vec!["g {}", F],
        ),
        (Xml, "a <function= b", "a <function= b", vec![]),
        (
            ArgumentTags,
            "Hm.\n<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
            "Hm.",
            vec![F],
        ),
        (ArgumentTags, "<tool_call>g</tool_call>", "", vec!["g {}"]),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"x\"}, \"id\": \"abc\"}]",
            "",
            vec![F],
        ),
        (
            Mistral,
            "[TOOL_CALLS]f[ARGS]{\"n\": 1, \"s\": \"x\"}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"n\": 1, \"s\": \"x\"}",
            "",
            vec![F, F],
        ),
        (Mistral, "Ok.[TOOL_CALLS]f{\"n\": 1, \"s\": \"x\"}", "Ok.", vec![F]),
        (Mistral, "[TOOL_CALLS] no call", "[TOOL_CALLS] no call", vec![]),
        (Llama, "{\"name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"x\"}}", "", vec![F]),
        (
            Llama,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"x\"}}",
            "",
            vec![F],
        ),
        (
            Llama,
            "{\"name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"x\"}}; {\"name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"x\"}}",
            "",
            vec![F, F],
        ),
        (Llama, "Calling:\n{\"name\": \"f\", \"parameters\": {\"n\": 1, \"s\": \"x\"}}", "Calling:", vec![F]),
        (Llama, "{\"name\": \"Ann\", \"age\": 3}", "{\"name\": \"Ann\", \"age\": 3}", vec![]),
        (Llama, "Use {\"name\": \"f\"} so.", "Use {\"name\": \"f\"} so.", vec![]),
        (
            Channels,
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\":1,\"s\":\"x\"}<|call|>",
            "",
            vec![F],
        ),
        (
            Channels,
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"n\":1,\"s\":\"x\"}<|call|>",
            "",
            vec![F],
        ),
        (
            Channels,
            " to=functions.f<|channel|>commentary json<|message|>{\"n\":1,\"s\":\"x\"}<|call|>",
            "",
            vec![F],
        ),
        (
            ToolCalls,
            "A\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}, {\"name\": \"g\", \"arguments\": {}}]</tool_calls>\nB",
            "AB",
            vec![F, "g {}"],
        ),
        (
            ToolCalls,
            "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
            "",
            vec![F, "g {}"],
        ),
        (
            Nemotron,
            "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}, {\"name\": \"g\"}]</TOOLCALL>",
            "",
            vec![F, "g {}"],
        ),
        (Granite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}] Ok", "Ok", vec![F]),
        (
            GigaChat,
            "A<|function_call|>{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}<|message_sep|>\n\n",
            "A",
            vec![F],
        ),
        (
            GigaChat,
            "A\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}<|message_sep|>\n\n",
            "A",
            vec![F],
        ),
        (
            Cohere,
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\":1,\"s\":\"x\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
            "",
            vec![F, "g {}"],
        ),
        (
            CommandR,
            "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"n\":1,\"s\":\"x\"}\n    }\n]```",
            "",
            vec![F],
        ),
        (
            Functools,
            "A functools[{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}, {\"name\": \"g\", \"arguments\": {}}]",
            "A",
            vec![F, "g {}"],
        ),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}, \"id\": \"abc\"}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"def\"}]",
            "",
            vec![F, "g {}"],
        ),
        (
            Kimi,
            "A<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\":1,\"s\":\"x\"}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>B",
            "AB",
            vec![F, "g {}"],
        ),
        (
            DeepSeek,
            "A<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\":1,\"s\":\"x\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "A",
            vec![F, "g {}"],
        ),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\":1,\"s\":\"x\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            vec![F, "g {}"],
        ),
        (
            Functionary,
            "A<function=f>{\"n\":1,\"s\":\"x\"}</function><function=g>{}</function>",
            "A",
            vec![F, "g {}"],
        ),
        (
            Seed,
            "A\n\n<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n<parameter=l>[1, 'x']</parameter>\n</function>\n</seed:tool_call>",
            "A",
            vec![r#"f {"n":1,"l":[1,"x"]}"#],
        ),
        (
            MiniMax,
            "A\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">1</parameter>\n<parameter name=\"s\">x</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
            "A",
            vec![F, "g {}"],
        ),
        (
            Dsml,
            "A\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"z\" string=\"false\">[1]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "A",
            vec![r#"f {"z":[1],"s":"x"}"#, "g {}"],
        ),
        (
            Atem,
            "<atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"n\">1</atem:parameter>\n<atem:parameter name=\"s\">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
            "",
            vec![F],
        ),
        (
            Gemma,
            "A<|tool_call>call:f{l:[1,<|\"|>}<tool_call|><|\"|>],s:<|\"|>x<|\"|>}<tool_call|><|tool_call>call:g{}<tool_call|>B",
            "AB",
            vec![r#"f {"l":[1,"}<tool_call|>"],"s":"x"}"#, "g {}"],
        ),
        (
            Lfm,
            "<|tool_call_start|>[f(n=1, s=\"x\"), g()]<|tool_call_end|>Looking.",
            "Looking.",
            vec![F, "g {}"],
        ),
        (
            Lfm,
            "<|tool_call_start|>[f(n=1, s=\"x<|tool_call_end|>",
            "<|tool_call_start|>[f(n=1, s=\"x<|tool_call_end|>",
            vec![],
        ),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"x", "", vec![F]),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1 rest</tool_call>",
            "rest</tool_call>",
            vec![r#"f {"n":1}"#],
        ),
        (
            Hermes,
            "<tool_call>{\"arguments\": {\"n\":1,\"s\":\"x\"}, \"name\": \"f\"}</tool_call>",
            "",
            vec![F],
        ),
        (
            Hermes,
            "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"n\":1,\"s\":\"x\"}}}</tool_call>",
            "",
            vec![F],
        ),
        (Xml, "<tool_call>\n<function=f>\n<parameter=s>\ncut o", "", vec![r#"f {"s":"cut o"}"#]),
        (Channels, "text", "text", vec![]),
    ]
}

#[test]
fn calls_are_found_and_nothing_is_lost() {
    for (format, text, content, calls) in cases() {
        let (found_content, found_calls) = parse(format, [text]);
        assert_eq!(found_content, content, "{format:?} {text}");
        assert_eq!(found_calls, calls, "{format:?} {text}");
    }
}

#[test]
fn every_single_cut_gives_the_same() {
    for (format, text, content, calls) in cases() {
        for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (found_content, found_calls) = parse(format, [&text[..at], &text[at..]]);
            assert_eq!(found_content, content, "{format:?} {text} at {at}");
            assert_eq!(found_calls, calls, "{format:?} {text} at {at}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let (found_content, found_calls) = parse(format, chars.iter().map(String::as_str));
        assert_eq!(
            (found_content.as_str(), found_calls),
            (content, calls.iter().map(|c| c.to_string()).collect()),
            "{format:?} {text}"
        );
    }
}

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("<tool_call>".to_owned()),
        Just("</tool_call>".to_owned()),
        Just("<function=f>".to_owned()),
        Just("</function>".to_owned()),
        Just("<parameter=n>".to_owned()),
        Just("</parameter>".to_owned()),
        Just("[TOOL_CALLS]".to_owned()),
        Just("{\"name\":\"f\",\"arguments\":{}}".to_owned()),
        Just("{\"name\":".to_owned()),
        Just("<arg_key>".to_owned()),
        Just("<|python_tag|>".to_owned()),
        Just("<|tool_call>call:f{".to_owned()),
        Just("<tool_call|>".to_owned()),
        Just("<|tool_call_start|>[f(".to_owned()),
        Just("<tool_calls>[".to_owned()),
        Just("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{".to_owned()),
        Just("<invoke name=\"f\">".to_owned()),
        Just("<parameter name=\"s\">".to_owned()),
        Just("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{".to_owned()),
        Just("<|channel|>commentary to=functions.f<|message|>".to_owned()),
        Just("\n".to_owned()),
        "[a-b{}\"<>\\[ \u{e9}]{0,4}",
    ];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

#[test]
fn a_long_header_is_text_whole_and_cut() {
    let lines = "<function=f>\n\n\n<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{".to_owned();
    let name = format!("<function={}>{{}}", "f".repeat(600));
    for text in [lines, name] {
        let whole = parse(ToolCallFormat::Functionary, [text.as_str()]);
        assert_eq!(whole, (text.clone(), Vec::new()));
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(parse(ToolCallFormat::Functionary, chars.iter().map(String::as_str)), whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_returns(text in text()) {
        for format in ToolCallFormat::ALL {
            let (content, calls) = parse(format, [text.as_str()]);
            // Without a call, every character comes through.
            if calls.is_empty() {
                prop_assert_eq!(&content, &text);
            }
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let cut = parse(format, chars.iter().map(String::as_str));
            prop_assert_eq!(&cut, &(content, calls), "{:?}", format);
        }
    }
}
