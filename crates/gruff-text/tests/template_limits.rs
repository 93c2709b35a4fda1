//! Hostile templates: each must end in time with an error or a result of bounded size.

use std::time::{Duration, Instant};

use gruff_text::chat::{ChatTemplate, Message, RenderInput, TemplateError};
use proptest::prelude::*;

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = [Message::user("Hi")];
    let input = RenderInput { messages: &messages, ..RenderInput::default() };
    Ok(ChatTemplate::new(source)?.render(&input)?.text)
}

/// Repeats `body` more often than any template may.
fn forever(start: &str, body: &str) -> String {
    format!(
        "{{% set ns = namespace({start}) %}}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{body}{{% endfor %}}{{% endfor %}}"
    )
}

#[test]
fn hostile_templates_are_stopped() {
    let big = "[0] * 100000";
    let cases = [
        forever("", "{{ i }}"),
        forever("", ""),
        forever("s='x'", "{% set ns.s = ns.s ~ ns.s %}"),
        forever("s='x'", "{% set ns.s = ns.s + ns.s %}"),
        forever("s='x'", "{% set ns.s = ns.s * 2 %}"),
        forever("s='x'", "{% set ns.s = ns.s.replace('x', 'xx') %}"),
        forever("s='x'", "{% set ns.s = ns.s | replace('', 'ab') %}"),
        forever("s='x'", "{% set ns.s = [ns.s, ns.s] | join %}"),
        forever("s='x'", "{% set ns.s = ns.s.join(['a', 'b', 'c']) %}"),
        forever("s='x'", "{% set ns.s = '{0}{0}'.format(ns.s) %}"),
        forever("s='x'", "{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
        forever("s='x'", "{% set ns.s = ns.s | tojson | tojson %}"),
        forever("s='\\n'", "{% set ns.s = ns.s | indent(4000, true, true) %}"),
        forever("s='<'", "{% set ns.s = ns.s | string | escape | string ~ '' %}"),
        forever("x=0", "{% set ns.x = [ns.x] %}"),
        forever("x=0", "{% set ns.x = [ns.x, ns.x] %}"),
        forever("x=0", "{% set ns.x = (ns.x,) %}"),
        forever("x=0", "{% set ns.x = {'a': ns.x} %}"),
        forever("x=0", "{% set ns.x = dict(a=ns.x) %}"),
        forever("x=0", "{% set ns.x = {'a': ns.x, 'b': ns.x}.items() | list %}"),
        forever("x=0", "{% set ns.x = [ns.x] | batch(1) | list %}"),
        forever("x=[1]", "{% set ns.x = ns.x | map('string') %}{% set ns.x = [ns.x] %}"),
        forever("x=[1]", "{% set ns.x = ns.x[:] + ns.x %}"),
        forever("x=[1]", "{% set ns.x = ns.x * 2 %}"),
        forever("x=1", "{% set ns.x = ns.x * 7 + 1 %}"),
        forever("x=2", "{% set ns.x = ns.x ** 2 %}"),
        forever("x=1", "{% set ns.x = ns %}"),
        forever("x=1", "{% set ns.x = [ns] %}"),
        forever("x=1", "{% set ns.x = namespace(y=ns.x) %}"),
        forever("x=1", "{% set ns.x = [loop] %}"),
        forever("x=1", "{% set c %}{{ i }}{% endset %}"),
        format!("{{% set x = {big} %}}{}", forever("", "{{ x == x }}")),
        format!("{{% set x = {big} %}}{}", forever("", "{{ 1 in x }}")),
        format!("{{% set x = {big} %}}{}", forever("", "{{ x | sort | length }}")),
        format!("{{% set x = {big} %}}{}", forever("", "{{ x | unique | list | length }}")),
        format!("{{% set x = {big} %}}{}", forever("", "{% set y = {'x': x} %}")),
        format!(
            "{{% set x = {big} %}}{}",
            forever("", "{% for k in {'x': x}.items() %}{% break %}{% endfor %}")
        ),
        format!("{{% set x = {big} %}}{{% set y = [x] * 1000 %}}"),
        format!("{{% set x = {big} %}}{{{{ [[x] * 1000] * 1000 }}}}"),
        format!("{{% set x = {big} %}}{{{{ ([[x] * 1000] * 1000) | tojson }}}}"),
        format!("{{% set x = {big} %}}{{{{ ([[x] * 1000] * 1000) == ([[x] * 1000] * 1000) }}}}"),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{{ s[j - 5] }}")),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{{ s[1:2] }}")),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{{ s | length }}")),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{{ s.count('x') }}")),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{% for c in s %}{% break %}{% endfor %}")),
        format!("{{% set s = 'a ' * 10000000 %}}{}", forever("", "{{ s.split() | length }}")),
        format!("{{% set s = 'é' * 10000000 %}}{}", forever("", "{{ s }}")),
        "{{ 'x' * 10 ** 12 }}".to_owned(),
        "{{ 10 ** 10 ** 10 }}".to_owned(),
        "{{ [0] * 10 ** 12 }}".to_owned(),
        "{{ range(10 ** 15) }}".to_owned(),
        "{{ 'x'.zfill(10 ** 12) }}".to_owned(),
        "{{ 'x'.center(10 ** 12) }}".to_owned(),
        "{{ '%999999999d' % 1 }}".to_owned(),
        "{{ '{:999999999}'.format(1) }}".to_owned(),
        "{{ [1] | batch(10 ** 12, 0) | list }}".to_owned(),
        "{{ [1] | slice(10 ** 12) | list }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m() %}{{ m() ~ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}".to_owned(),
        "{% block b %}{{ self.b() }}{% endblock %}".to_owned(),
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{{{{ x{} }}}}", "[0".repeat(100_000)),
        "{% if 1 %}".repeat(100_000),
        "{% for x in [1] %}".repeat(100_000),
        "\n".repeat(100_000),
    ];
    for case in cases {
        let start = Instant::now();
        let result = render(&case);
        let took = start.elapsed();
        let shown: String = case.chars().take(300).collect();
        assert!(took < Duration::from_secs(20), "{took:?}: {shown}");
        let error = match result {
            Ok(text) => panic!("{} bytes: {shown}", text.len()),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("line"), "{shown}: {error}");
    }
}

#[test]
fn long_expressions_are_no_crime() {
    for source in [
        format!("{{{{ 1{} }}}}", " + 1".repeat(20_000)),
        format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(20_000)),
        format!("{{{{ 1{} }}}}", " | string".repeat(5_000)),
        format!("{{{{ x{} }}}}", " or x".repeat(20_000)),
        format!("{{{{ x{} is defined }}}}", ".a".repeat(20_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(10_000)),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(500)),
        format!("{{{{ 1{} }}}}", " - 1".repeat(900)),
        format!("{{{{ x{} }}}}", " or x".repeat(900)),
        format!("{{{{ x{} is defined }}}}", ".a".repeat(900)),
        format!("{{{{ {}x{} }}}}", "(".repeat(70), " | string)".repeat(70)),
        "{{ [] * 10 ** 12 }}{{ () * 10 ** 12 }}{{ '' * 10 ** 12 }}".to_owned(),
        format!("{{{{ [{}] }}}}", "x, ".repeat(100_000)),
        format!("{{{{ {{{}}} }}}}", "1: x, ".repeat(50_000)),
    ] {
        // Whether they render or are refused, they must come back.
        let _ = render(&source);
    }
}

#[test]
fn a_long_conversation_is_within_the_limits() {
    let messages: Vec<Message> =
        (0..4000).map(|at| Message::new(["user", "assistant"][at % 2], format!("message {at}"))).collect();
    let source = "{% for m in messages %}{% if not (loop.index0 % 2 == 0) == (m.role == 'user') %}{% for other in messages %}{% if other.role == 'tool' %}x{% endif %}{% endfor %}{% endif %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}";
    let input = RenderInput { messages: &messages, ..RenderInput::default() };
    let text = ChatTemplate::new(source).unwrap().render(&input).unwrap().text;
    assert!(text.ends_with("<assistant>message 3999\n"));
}

/// Pieces that templates are made of, so that random ones get past the parser often enough.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{{ ".to_owned()),
        Just(" }}".to_owned()),
        Just("{% ".to_owned()),
        Just(" %}".to_owned()),
        Just("{#".to_owned()),
        Just("#}".to_owned()),
        Just("-%}".to_owned()),
        "(if|else|elif|endif|for|in|endfor|set|endset|macro|endmacro|call|filter|raw|endraw|generation|endgeneration) ",
        "(messages|x|ns|loop|namespace|none|true|'a'|\"b\"|1|2.5|range|dict|i) ?",
        "(\\.role|\\.content|\\[0\\]|\\[1:\\]|\\[::-1\\]|\\(|\\)|\\[|\\]|\\{|\\}|,|:|=) ?",
        "(\\+|-|\\*|/|//|%|~|<|>|==|!=|<=|\\||is|not|and|or|\\*\\*) ?",
        "(upper|trim|length|tojson|join|list|first|map|select|sort|default|defined|string|mapping) ?",
        "[ -~\n\t\u{e9}\u{1f600}]{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_template_returns(pieces in prop::collection::vec(piece(), 0..40)) {
        let _ = render(&pieces.concat());
    }

    #[test]
    fn any_expression_returns(pieces in prop::collection::vec(piece(), 0..16)) {
        let _ = render(&format!("{{{{ {} }}}}", pieces.concat()));
    }

    #[test]
    fn any_string_goes_through_json_and_back(text in "\\PC*", key in "\\PC*") {
        let mut message = Message::user(text.clone());
        message.set(&key, text.clone());
        let messages = [message];
        let input = RenderInput { messages: &messages, ..RenderInput::default() };
        let rendered = ChatTemplate::new("{{ messages[0] | tojson }}").unwrap().render(&input).unwrap().text;
        let expected: serde_json::Map<_, _> =
            messages[0].fields().iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let read: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&rendered).unwrap();
        for (key, value) in expected {
            prop_assert_eq!(read.get(&key), Some(&value));
        }
    }
}
