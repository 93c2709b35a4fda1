use std::sync::Arc;

use gruff::{AutoModelForCausalLM, BUNDLED};
use gruff_server::{ServedModel, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Running, tokenizer};

const PATH: &str = "/v1/chat/completions";

fn request() -> Value {
    json!({"model": "bundled", "messages": [{"role": "user", "content": "What is the capital of France?"}],
           "temperature": 0, "max_tokens": 24})
}

fn with(fields: Value) -> Value {
    let mut request = request();
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// All text of a streamed answer.
fn collect(events: &[Value], index: usize, field: &str) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice["delta"][field].as_str()).collect()
}

#[test]
fn an_answer_is_the_same_whole_and_streamed() {
    let server = Running::shared();
    let whole = server.post(PATH, &request()).ok();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "bundled");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty(), "{whole}");
    let usage = &whole["usage"];
    let (prompt, completion) =
        (usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap());
    assert_eq!(usage["total_tokens"], prompt + completion);
    assert!(completion <= 24);
    assert_eq!(whole["timings"]["predicted_n"], completion);

    let (events, done) =
        server.post(PATH, &with(json!({"stream": true, "stream_options": {"include_usage": true}}))).events();
    assert!(done);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(collect(&events, 0, "content"), content);
    let reasoning = choice["message"]["reasoning_content"].as_str().unwrap_or_default();
    assert_eq!(collect(&events, 0, "reasoning_content"), reasoning);
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], completion);
    let finish = &events[events.len() - 2]["choices"][0]["finish_reason"];
    assert_eq!(finish, &choice["finish_reason"]);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
    let (events, done) = server.post(PATH, &with(json!({"stream": true}))).events();
    assert!(done && events.iter().all(|event| event.get("usage").is_none()), "no usage without being asked");
}

/// What is wrong with a request is told by the status, before a stream begins.
#[test]
fn streams_do_not_begin_for_what_cannot_be_served() {
    let server = Running::shared();
    let long = json!({"messages": [{"role": "user", "content": "capital ".repeat(3000)}]});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}});
    let refused = |mut fields: Value| {
        fields["stream"] = json!(true);
        server.post(PATH, &with(fields)).error(400)
    };
    let error = refused(long.clone());
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("prompt")));
    assert_eq!(error["type"], "invalid_request_error");
    let mut formed = long.clone();
    formed["response_format"] = schema;
    assert_eq!(refused(formed)["code"], "context_length_exceeded");
    assert_eq!(refused(json!({"logit_bias": {"99999999": 1}}))["param"], "logit_bias");
    assert_eq!(refused(json!({"max_tokens": 0}))["param"], "max_tokens");
    for prompt in [json!([99_999_999]), json!([]), json!("capital ".repeat(3000))] {
        let request = json!({"prompt": prompt, "stream": true});
        server.post("/v1/completions", &request).error(400);
    }
    let mut request = json!({"max_tokens": 8, "stream": true});
    request["messages"] = long["messages"].clone();
    let response = server.post("/v1/messages", &request);
    let body: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!((response.status, &body["type"]), (400, &json!("error")), "{body}");
    assert_eq!(body["error"]["type"], "invalid_request_error");
}

#[test]
fn seeds_and_choices() {
    let server = Running::shared();
    let story = json!([{"role": "user", "content": "Tell me a long story."}]);
    let ask = |fields: Value| server.post(PATH, &with(fields)).ok();
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let three = json!({"messages": story, "n": 3, "seed": 7, "temperature": 2});
    let first = ask(three.clone());
    assert_eq!(texts(&first), texts(&ask(three.clone())), "the same seed gives the same answers");
    let found = texts(&first);
    assert_eq!(found.len(), 3);
    assert!(found[0] != found[1] || found[1] != found[2], "{found:?}");
    let completion = first["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(completion > 24 && completion <= 72, "{first}");
    let mut streamed = with(three);
    streamed["stream"] = json!(true);
    let (events, done) = server.post(PATH, &streamed).events();
    assert!(done);
    for (index, text) in found.iter().enumerate() {
        assert_eq!(&collect(&events, index, "content"), text);
    }
}

#[test]
fn a_deterministic_model_repeats_without_a_seed() {
    let from = AutoModelForCausalLM::from_pretrained(BUNDLED).device("cpu").deterministic(true);
    let served = ServedModel::new("bundled", Arc::new(from.load().unwrap()), tokenizer());
    let server = Running::with(vec![served], ServerOptions::default());
    let fields = json!({"temperature": 2, "max_tokens": 24});
    let ask = |server: &Running| {
        server.post(PATH, &with(fields.clone())).ok()["choices"][0]["message"]["content"].clone()
    };
    let first = ask(&server);
    assert!((0..3).all(|_| ask(&server) == first));
    assert!((0..5).any(|_| ask(Running::shared()) != first), "others have a seed of their own each time");
}

#[test]
fn stop_strings_end_an_answer_before_them() {
    let server = Running::shared();
    let whole = server.post(PATH, &request()).ok();
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stop: String = content.chars().skip(3).take(4).collect();
    let expected = &content[..content.find(&stop).unwrap()];
    let stopped = server.post(PATH, &with(json!({"stop": [stop.as_str(), "never said"]}))).ok();
    assert_eq!(stopped["choices"][0]["message"]["content"], expected);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let (events, _) = server.post(PATH, &with(json!({"stop": stop, "stream": true}))).events();
    assert_eq!(collect(&events, 0, "content"), expected);
    for bad in [json!(""), json!(["a", ""]), json!(vec!["x"; 99])] {
        assert_eq!(server.post(PATH, &with(json!({"stop": bad}))).error(400)["param"], "stop");
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let server = Running::shared();
    for (fields, param) in [
        (json!({"frobnicate": 1}), "frobnicate"),
        (json!({"response_format": {"type": "poem"}}), "response_format"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "response_format",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
            "response_format",
        ),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "custom"}}), "tool_choice"),
        (json!({"store": true}), "store"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"n": 1000}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"content": "no role"}]}), "messages[0]"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
            "messages[0]",
        ),
    ] {
        let error = server.post(PATH, &with(fields.clone())).error(400);
        assert_eq!(error["param"], param, "{fields} {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let error = server.post(PATH, &with(json!({"model": "another"}))).error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    let long = "word ".repeat(2000);
    let error = server.post(PATH, &with(json!({"messages": [{"role": "user", "content": long}]}))).error(400);
    assert!(error["message"].as_str().unwrap().contains("1024"), "{error}");
    // What changes nothing is taken.
    let neutral = json!({"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": false,
        "response_format": {"type": "text"}, "tool_choice": "none", "user": "me", "n": 1, "store": false,
        "service_tier": "auto", "metadata": {"a": "b"}});
    server.post(PATH, &with(neutral)).ok();
}

#[test]
fn a_conversation_with_parts_reasoning_and_calls_is_understood() {
    let server = Running::shared();
    let messages = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "the weather?"}]},
        {"role": "assistant", "content": null, "reasoning_content": "I ask the tool.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
    let prompt = server.post("/apply-template", &json!({"messages": messages, "tools": tools})).ok();
    let prompt = prompt["prompt"].as_str().unwrap();
    for part in ["Be brief.", "What is the weather?", "weather", "Paris", "Sunny."] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
    server.post(PATH, &with(json!({"messages": messages, "tools": tools, "max_tokens": 4}))).ok();
}

#[test]
fn answers_of_a_given_form_have_it() {
    let server = Running::shared();
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
        "sunny": {"type": "boolean"}}, "required": ["city", "sunny"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}});
    for seed in 0..4 {
        let fields = json!({"response_format": format, "temperature": 1.5, "seed": seed, "max_tokens": 200});
        let answer = server.post(PATH, &with(fields)).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(value["city"].is_string() && value["sunny"].is_boolean(), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 2);
    }
}

#[test]
fn biases_and_penalties_change_an_answer() {
    let server = Running::shared();
    let content = |fields| server.post(PATH, &with(fields)).ok()["choices"][0]["message"]["content"].clone();
    let plain = content(json!({}));
    assert!(plain.as_str().unwrap().contains("Paris"), "{plain}");
    let ids = server.post("/tokenize", &json!({"content": " Paris"})).ok()["tokens"].clone();
    let bias: serde_json::Map<String, Value> =
        ids.as_array().unwrap().iter().map(|id| (id.to_string(), json!(-100))).collect();
    let without = content(json!({"logit_bias": bias}));
    assert!(!without.as_str().unwrap().contains("Paris"), "{without}");
    let told = |fields: Value| {
        let mut request = with(fields);
        request["messages"] = json!([{"role": "user", "content": "Tell me a long story."}]);
        request["max_tokens"] = json!(80);
        server.post(PATH, &request).ok()["choices"][0]["message"]["content"].clone()
    };
    let plain = told(json!({}));
    assert_ne!(told(json!({"presence_penalty": 40})), plain);
    assert_ne!(told(json!({"frequency_penalty": 40})), plain);
}

#[test]
fn fields_that_routers_add_are_taken_where_they_change_nothing() {
    let server = Running::shared();
    let ask = |more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "ignore_eos": false, "skip_special_tokens": true, "stream_reasoning": true, "no_stop_trim": false,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &body)
    };
    let text = ask(json!({})).ok()["choices"][0]["message"]["content"].clone();
    assert!(text.as_str().unwrap().contains("Paris"), "{text}");
    for (field, value) in [("ignore_eos", true), ("skip_special_tokens", false), ("frobnicate", false)] {
        assert_eq!(ask(json!({field: value})).error(400)["param"], field);
    }
}

#[test]
fn reasoning_ends_at_its_budget_and_a_document_follows_it() {
    let server = Running::shared();
    let schema = json!({"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"],
                        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for budget in [0, 6] {
        let fields = json!({"reasoning_effort": "low", "reasoning_budget": budget, "response_format": format,
                            "max_tokens": 200, "temperature": 1, "seed": 3});
        let answer = server.post(PATH, &with(fields.clone())).ok();
        let message = &answer["choices"][0]["message"];
        let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
        assert!(value["sunny"].is_boolean(), "{answer}");
        let reasoned = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        assert!(reasoned <= budget + 4, "{answer}");
        let thought = message["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(thought.is_empty(), budget == 0, "{answer}");
        let mut streamed = with(fields);
        streamed["stream"] = json!(true);
        let (events, _) = server.post(PATH, &streamed).events();
        assert_eq!(collect(&events, 0, "reasoning_content"), thought);
    }
}

#[test]
fn a_field_of_the_wrong_kind_is_named() {
    let server = Running::shared();
    for (fields, param) in [
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"stream_options": {"include_usage": 3}}), "stream_options.include_usage"),
        (json!({"stream_options": {"frobnicate": true}}), "stream_options.frobnicate"),
        (json!({"messages": 3}), "messages"),
    ] {
        assert_eq!(server.post(PATH, &with(fields.clone())).error(400)["param"], param, "{fields}");
    }
}

#[test]
fn reasoning_of_earlier_answers_has_two_names() {
    let server = Running::shared();
    let tokens = |field: &str| {
        let mut answer = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]});
        answer[field] = json!("Something to look at, and to think about for a while.");
        let messages = json!([{"role": "user", "content": "Look."}, answer, {"role": "tool", "tool_call_id": "c", "content": "sun"}]);
        server.post(PATH, &json!({"messages": messages, "max_tokens": 1})).ok()["usage"]["prompt_tokens"]
            .as_u64()
    };
    let (known, other, none) = (tokens("reasoning_content"), tokens("reasoning"), tokens("label"));
    assert!(known == other && known > none, "{known:?} {other:?} {none:?}");
}
