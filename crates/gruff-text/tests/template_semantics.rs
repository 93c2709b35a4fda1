//! Every construct of the template language, against what transformers renders.
//! `tools/fixtures/templates.py` recorded the expectations.

use gruff_text::chat::{ChatTemplate, Message, RenderInput};
use serde_json::{Map, Value};

#[derive(serde::Deserialize)]
struct Context {
    messages: Vec<Message>,
    tools: Vec<Value>,
    kwargs: Map<String, Value>,
}

#[derive(serde::Deserialize)]
struct Expected {
    template: String,
    text: Option<String>,
    error: Option<String>,
}

fn read(name: &str) -> String {
    let path = format!("{}/tests/templates/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn templates_mean_what_they_mean_to_python() {
    let context: Context = serde_json::from_str(&read("context.json")).unwrap();
    let expected: Vec<Expected> = serde_json::from_str(&read("expected.json")).unwrap();
    let recorded = expected.iter().filter(|case| !case.template.ends_with(".jinja"));
    assert!(
        recorded.map(|case| case.template.as_str()).eq(read("expressions.txt").lines()),
        "expected.json does not belong to expressions.txt: run tools/fixtures/templates.py"
    );
    let input = RenderInput {
        messages: &context.messages,
        tools: Some(&context.tools),
        variables: context.kwargs,
        add_generation_prompt: true,
        now: "2026-03-07T09:05:03.000042".parse().ok(),
        ..RenderInput::default()
    };
    let mut wrong = Vec::new();
    for case in expected {
        let source = match case.template.strip_suffix(".jinja") {
            Some(_) => read(&case.template),
            None => case.template.clone(),
        };
        let rendered = ChatTemplate::new(&source).and_then(|template| template.render(&input));
        match (rendered, case.text, case.error) {
            (Ok(rendered), Some(text), _) if rendered.text == text => {}
            (Err(_), None, Some(_)) => {}
            (rendered, text, error) => wrong.push(format!(
                "{}\n  python {:?}\n  gruff  {:?}",
                case.template,
                text.or(error).unwrap_or_default(),
                rendered.map(|rendered| rendered.text).map_err(|error| error.to_string()),
            )),
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
