use serde_json::{Value, json};

use crate::client::Running;

const PATH: &str = "/v1/responses";

fn with(fields: Value) -> Value {
    let mut request = json!({"model": "bundled", "input": "What is the capital of France?", "temperature": 0,
                             "max_output_tokens": 24});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap();
    let message = items.iter().find(|item| item["type"] == "message").unwrap_or_else(|| panic!("{response}"));
    message["content"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn an_answer_is_the_same_whole_and_streamed() {
    let server = Running::shared();
    let whole = server.post(PATH, &with(json!({"metadata": {"a": "b"}}))).ok();
    assert_eq!((&whole["object"], &whole["metadata"]), (&json!("response"), &json!({"a": "b"})));
    let usage = &whole["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    let (events, done) = server.post(PATH, &with(json!({"stream": true}))).events();
    assert!(!done, "this API's streams end with their last event");
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(
        (&events[0]["type"], &events[1]["type"]),
        (&json!("response.created"), &json!("response.in_progress"))
    );
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(streamed, text(&whole));
    let last = events.last().unwrap();
    assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(text(&last["response"]), text(&whole));
    assert_eq!(last["response"]["usage"]["output_tokens"], usage["output_tokens"]);
    let cut = server.post(PATH, &with(json!({"max_output_tokens": 2}))).ok();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
}

#[test]
fn a_conversation_goes_on_by_id() {
    let server = Running::shared();
    let first = server.post(PATH, &with(json!({"instructions": "Answer."}))).ok();
    let more = json!({"input": "And of Italy?", "previous_response_id": first["id"]});
    let second = server.post(PATH, &with(more.clone())).ok();
    // The same as with the whole conversation, without the instructions, which held for the first answer alone.
    let items = json!([
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": text(&first)},
        {"role": "user", "content": "And of Italy?"},
    ]);
    let spelled = server.post(PATH, &with(json!({"input": items}))).ok();
    assert_eq!(second["usage"]["input_tokens"], spelled["usage"]["input_tokens"]);
    assert_eq!(text(&second), text(&spelled));
    let unkept = server.post(PATH, &with(json!({"store": false}))).ok();
    for id in [unkept["id"].clone(), json!("resp_none")] {
        let error = server.post(PATH, &with(json!({"previous_response_id": id}))).error(400);
        assert_eq!(error["code"], "previous_response_not_found");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let server = Running::shared();
    for (fields, param) in [
        (json!({"frobnicate": 1}), "frobnicate"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text"),
        (json!({"text": {"verbosity": "low"}}), "text"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}),
            "text",
        ),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"background": true}), "background"),
        (json!({"include": ["x"]}), "include"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0]"),
        (json!({"reasoning": {"summary": "auto"}}), "reasoning"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]"),
        (json!({"input": []}), "messages"),
    ] {
        assert_eq!(server.post(PATH, &with(fields.clone())).error(400)["param"], param, "{fields}");
    }
    let tools =
        json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": false}]);
    server
        .post(PATH, &with(json!({"tools": tools, "reasoning": {"effort": "none"}, "tool_choice": "auto"})))
        .ok();
}
