use serde_json::{Value, json};

use crate::client::{Running, tokenizer};

const PATH: &str = "/v1/completions";

fn text(answer: &Value, index: usize) -> String {
    let choice = &answer["choices"][index];
    assert_eq!(choice["index"], index);
    choice["text"].as_str().unwrap().to_owned()
}

#[test]
fn prompts_of_every_kind_are_continued() {
    let server = Running::shared();
    let prompt = "The capital of France is";
    let ask = |fields: Value| {
        let mut request = json!({"prompt": prompt, "temperature": 0, "max_tokens": 12});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post(PATH, &request)
    };
    let one = ask(json!({})).ok();
    assert_eq!(one["object"], "text_completion");
    let expected = text(&one, 0);
    let ids = tokenizer().encode(prompt).unwrap();
    assert_eq!(one["usage"]["prompt_tokens"], ids.len());
    assert_eq!(text(&ask(json!({"prompt": ids})).ok(), 0), expected);
    assert_eq!(text(&ask(json!({"echo": true})).ok(), 0), format!("{prompt}{expected}"));
    let several = ask(json!({"prompt": ["Once", prompt], "n": 2})).ok();
    assert_eq!(text(&several, 2), expected);
    assert_eq!(text(&several, 3), expected);
    assert_eq!(several["choices"].as_array().unwrap().len(), 4);

    let (events, done) =
        ask(json!({"stream": true, "echo": true, "stream_options": {"include_usage": true}})).events();
    assert!(done);
    let streamed: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, format!("{prompt}{expected}"));
    assert_eq!(events.last().unwrap()["usage"], one_usage(&one, &events));
    let stop: String = expected.chars().skip(2).take(3).collect();
    let stopped = ask(json!({"stop": stop})).ok();
    assert_eq!(text(&stopped, 0), expected[..expected.find(&stop).unwrap()]);

    for (fields, param) in [
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"best_of": 1, "n": 2}), "best_of"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"suffix": "end", "echo": true}), "echo"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [999_999_999]}), "prompt"),
        (json!({"messages": []}), "messages"),
    ] {
        assert_eq!(ask(fields.clone()).error(400)["param"], param, "{fields}");
    }
}

/// The usage of a later answer to the same prompt, of which a cache may have held a part.
fn one_usage(one: &Value, events: &[Value]) -> Value {
    let mut usage = one["usage"].clone();
    usage["prompt_tokens_details"] = events.last().unwrap()["usage"]["prompt_tokens_details"].clone();
    usage
}
