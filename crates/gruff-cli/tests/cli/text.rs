//! tokenize, detokenize, render.

use crate::gruff::Gruff;

#[test]
fn tokens_are_shown_in_three_ways() {
    let gruff = Gruff::new();
    let ids = gruff.ok(&["tokenize", "tiny.gguf", "the hell", "--ids"]);
    let json = gruff.json(&["tokenize", "tiny.gguf", "the hell", "--json"]);
    let words: Vec<u64> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(json["ids"], serde_json::json!(words));
    assert_eq!(json["count"], words.len());
    let text: String =
        json["tokens"].as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(text, "the hell");
    let lines = gruff.ok(&["tokenize", "tiny.gguf", "the hell"]);
    assert_eq!(lines.lines().count(), words.len());
    assert!(lines.contains("\"he\""), "{lines}");
}

#[test]
fn special_tokens_only_when_asked_for() {
    let gruff = Gruff::new();
    let count = |arguments: &[&str]| {
        let all = [&["tokenize", "tiny.gguf", "--ids", "<|im_end|>"], arguments].concat();
        gruff.ok(&all).split_whitespace().count()
    };
    assert_eq!(count(&[]), "<|im_end|>".len());
    assert_eq!(count(&["--parse-special"]), 1);
}

#[test]
fn text_comes_back_byte_for_byte() {
    let gruff = Gruff::new();
    for text in ["plain", " two  spaces\n\n\ttab\r\n", "héllo 🙂 日本語\u{0}", "the hell", "\n", "<|im_end|>"]
    {
        for flags in [&["--ids"][..], &["--ids", "--parse-special"]] {
            let ids =
                gruff.run_with(&[&["tokenize", "tiny.gguf", "-"], flags].concat(), text.as_bytes()).ok();
            let back = gruff.run_with(&["detokenize", "tiny.gguf", "-"], ids.as_bytes()).ok();
            assert_eq!(back, text);
        }
    }
    let ids = gruff.run_with(&["tokenize", "tiny.gguf", "--ids"], b"he").ok();
    assert_eq!(gruff.ok(&["detokenize", "tiny.gguf", ids.trim_end()]), "he");
    assert_eq!(gruff.ok(&["detokenize", "tiny.gguf", "262", "--skip-special"]), "");
}

#[test]
fn a_template_is_rendered() {
    let gruff = Gruff::new();
    gruff.write(
        "messages.json",
        r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]"#,
    );
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
    let prompt = "<|im_start|>assistant\n";
    assert_eq!(gruff.ok(&["render", "tiny.gguf", "messages.json"]), format!("{expected}{prompt}"));
    assert_eq!(gruff.ok(&["render", "tiny.gguf", "messages.json", "--no-generation-prompt"]), expected);
    let kwargs = ["render", "tiny.gguf", "messages.json", "--kwargs", r#"{"enable_thinking": true}"#];
    assert_eq!(gruff.ok(&kwargs), format!("{expected}{prompt}<think>\n"));
    gruff.write("short.jinja", "{{ messages | length }} {{ tools[0].name if tools }}");
    gruff.write("tools.json", r#"[{"name": "clock"}]"#);
    let own = ["render", "--template", "short.jinja", "messages.json", "--tools", "tools.json"];
    assert_eq!(gruff.ok(&own), "2 clock");
    let request =
        br#"{"model": "x", "messages": [{"role": "user", "content": "a"}], "tools": [{"name": "t"}]}"#;
    assert_eq!(gruff.run_with(&["render", "--template", "short.jinja", "-"], request).ok(), "1 t");
}
