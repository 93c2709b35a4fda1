//! Chat templates as users meet them: whole templates, errors, limits.

use gruff_gguf::Metadata;
use gruff_text::chat::{ChatTemplate, Continuation, Message, RenderInput, TemplateError};
use serde_json::json;

const CHATML: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn render(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    let input = RenderInput { messages, add_generation_prompt: true, ..RenderInput::default() };
    Ok(ChatTemplate::new(source)?.render(&input)?.text)
}

#[test]
fn chatml_renders() {
    assert_eq!(
        render(CHATML, &[Message::user("Hi <b>&")]).unwrap(),
        "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\nHi <b>&<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn templates_come_from_metadata() {
    let mut metadata = Metadata::new();
    let error = ChatTemplate::from_metadata(&metadata).unwrap_err();
    assert!(error.to_string().contains("tokenizer.chat_template"), "{error}");
    metadata.insert("tokenizer.chat_template", "default");
    metadata.insert("tokenizer.chat_template.tool_use", "with tools");
    let render = |template: ChatTemplate| template.render(&RenderInput::default()).unwrap().text;
    assert_eq!(render(ChatTemplate::from_metadata(&metadata).unwrap()), "default");
    assert_eq!(render(ChatTemplate::from_metadata_named(&metadata, "tool_use").unwrap()), "with tools");
    let error = ChatTemplate::from_metadata_named(&metadata, "rag").unwrap_err();
    assert!(error.to_string().contains("tool_use"), "{error}");
}

#[test]
fn assistant_spans_are_byte_ranges() {
    let template = ChatTemplate::new(
        "{% for m in messages %}{% if m.role == 'assistant' %}é{% generation %}{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}|{% endfor %}",
    )
    .unwrap();
    let messages =
        [Message::user("ü"), Message::assistant("ja"), Message::user("?"), Message::assistant("ö")];
    let mut input = RenderInput { messages: &messages, assistant_spans: true, ..RenderInput::default() };
    let rendered = template.render(&input).unwrap();
    assert_eq!(rendered.text, "ü|éja!|?|éö!|");
    let spans: Vec<&str> = rendered.assistant_spans.iter().map(|span| &rendered.text[span.clone()]).collect();
    assert_eq!(spans, ["ja!", "ö!"]);
    input.assistant_spans = false;
    let plain = template.render(&input).unwrap();
    assert_eq!(plain.text, rendered.text);
    assert!(plain.assistant_spans.is_empty());
}

#[test]
fn a_final_message_is_left_open() {
    let messages = [Message::user("Finish."), Message::assistant("It is ")];
    let render = |source: &str, messages: &[Message], add_generation_prompt| {
        ChatTemplate::new(source).unwrap().render(&RenderInput {
            messages,
            add_generation_prompt,
            continue_final_message: Continuation::Field("content"),
            ..RenderInput::default()
        })
    };
    let text = render(CHATML, &messages, false).unwrap().text;
    assert!(text.ends_with("<|im_start|>assistant\nIt is "), "{text:?}");
    let stripping = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    assert_eq!(render(stripping, &messages, false).unwrap().text, "[Finish.][It is");
    for (source, messages, prompt) in [
        (CHATML, &messages[..], true),
        (CHATML, &[], false),
        ("{{ messages[0].content }}", &messages[..], false),
        ("nothing", &messages[..], false),
    ] {
        let error = render(source, messages, prompt).unwrap_err();
        assert!(error.to_string().starts_with("continue_final_message"), "{error}");
    }
}

#[test]
fn errors_name_the_line_and_the_fault() {
    let messages = [Message::user("Hi")];
    for (source, expected) in [
        ("\n{% if %}", "line 2"),
        (
            "a\n\n{{ raise_exception('Only one system message.') }}",
            "the template refused these messages: Only one system message. (chat template, line 3)",
        ),
        ("\n{{ messages[0].missing.field }}", "line 2: `messages[0].missing` is undefined"),
        ("{{ bos_token + 'x' }}", "`bos_token` is undefined"),
        ("{{ 'a' + 1 }}", "can only concatenate str (not \"int\") to str"),
        ("{% for x in none %}{% endfor %}", "'NoneType' object is not iterable"),
        ("{{ messages.append(1) }}", "cannot change values"),
        ("{{ nothing() }}", "nothing is unknown"),
        ("{{ 1 | nothing }}", "filter nothing is unknown"),
        ("{% do x %}", "unknown tag 'do'"),
    ] {
        let error = render(source, &messages).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}: {error}");
    }
    let template = ChatTemplate::new("").unwrap();
    let mut input = RenderInput::default();
    input.variables.insert("tools".to_owned(), json!([]));
    assert!(matches!(template.render(&input), Err(TemplateError::Input(_))));
}
