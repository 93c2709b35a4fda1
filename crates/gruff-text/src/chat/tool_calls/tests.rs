//! Calls as models write them, well and badly, at every cut.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Content and calls, each call as `name {arguments}`.
fn parse<'a>(format: ToolCallFormat, parts: impl IntoIterator<Item = &'a str>) -> (String, Vec<String>) {
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}, "b": {"type": "boolean"}}}}}),
    ];
    let mut parser = ToolCallParser::new(format, &tools);
    let mut pieces: Vec<AnswerPiece> = parts.into_iter().flat_map(|part| parser.feed(part)).collect();
    pieces.extend(parser.finish());
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            AnswerPiece::Content(text) => content.push_str(&text),
            AnswerPiece::Call(call) => calls.push(format!("{} {}", call.name, call.arguments)),
        }
    }
    (content, calls)
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
        Just("<|channel|>commentary to=functions.f<|message|>".to_owned()),
        Just("\n".to_owned()),
        "[a-b{}\"<>\\[ \u{e9}]{0,4}",
    ];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_returns(text in text()) {
        use ToolCallFormat::*;
        for format in [Hermes, Xml, ArgumentTags, Mistral, Llama, Channels] {
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
