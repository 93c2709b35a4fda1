use serde_json::{Value, json};

use crate::client::Running;

const PATH: &str = "/v1/messages";

fn request() -> Value {
    json!({"model": "bundled", "max_tokens": 16, "temperature": 0, "system": "Answer.",
           "messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]})
}

fn with(fields: Value) -> Value {
    let mut request = request();
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

#[test]
fn an_answer_is_the_same_whole_and_streamed() {
    let server = Running::shared();
    let whole = server.post(PATH, &request()).ok();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert!(["end_turn", "max_tokens"].contains(&whole["stop_reason"].as_str().unwrap()));
    let count = server.post("/v1/messages/count_tokens", &request()).ok()["input_tokens"].as_u64().unwrap();
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(input, count);

    let (events, done) = server.post(PATH, &with(json!({"stream": true}))).events();
    assert!(!done, "Anthropic's streams end with message_stop");
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("message_start", "message_stop"));
    assert!(kinds.contains(&"content_block_start") && kinds.contains(&"content_block_stop"));
    let streamed: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(delta["usage"]["output_tokens"], usage["output_tokens"]);

    let stop: String = text.chars().skip(2).take(3).collect();
    let stopped = server.post(PATH, &with(json!({"stop_sequences": [stop.as_str()]}))).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn errors_have_anthropics_form() {
    let server = Running::shared();
    for (fields, word) in [
        (json!({"frobnicate": 1}), "frobnicate"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"thinking": {"type": "sometimes", "budget_tokens": 2000}}), "thinking"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tool"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
            "messages[0]",
        ),
    ] {
        let response = server.post(PATH, &with(fields.clone()));
        let error: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!((response.status, &error["type"]), (400, &json!("error")), "{fields} {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(word), "{fields} {error}");
    }
    let response = server.post(PATH, &with(json!({"model": "another"})));
    assert_eq!(response.status, 404);
    assert!(response.body.contains("not_found_error"), "{}", response.body);
    let tools = json!([{"name": "weather", "description": "It.", "input_schema": {"type": "object"}}]);
    server.post(PATH, &with(json!({"tools": tools, "thinking": {"type": "disabled"}}))).ok();
}

#[test]
fn requests_of_coding_agents_are_taken() {
    let server = Running::shared();
    let agent = json!({
        "metadata": {"user_id": "a"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "The folder is empty."},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "tools": [{"name": "look", "description": "It looks.", "input_schema": {"type": "object"}}],
    });
    server.post(PATH, &with(agent)).ok();
    let refused = |fields: Value| server.post(PATH, &with(fields)).error(400)["message"].to_string();
    let clears = json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}});
    assert!(refused(clears).contains("context_management"));
    assert!(refused(json!({"output_config": {"effort": "high", "speed": 1}})).contains("speed"));
    let schema = json!({"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let told = server.post(PATH, &with(format)).ok();
    let document: Value = serde_json::from_str(told["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(document, json!({"a": 7}));
}
