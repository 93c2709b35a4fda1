use serde_json::{Value, json};

use crate::client::{Running, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(fields: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "What is the capital of France?"}],
                             "temperature": 0, "max_tokens": 24, "logprobs": true});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn bytes(tokens: &Value) -> Vec<u8> {
    let tokens = tokens.as_array().unwrap().iter();
    tokens
        .flat_map(|token| token["bytes"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u8))
        .collect()
}

#[test]
fn tokens_of_content_are_told_with_their_logprobs() {
    let server = Running::shared();
    let whole = server.post(CHAT, &chat(json!({"top_logprobs": 3}))).ok();
    let choice = &whole["choices"][0];
    let tokens = &choice["logprobs"]["content"];
    assert_eq!(String::from_utf8(bytes(tokens)).unwrap(), choice["message"]["content"].as_str().unwrap());
    for token in tokens.as_array().unwrap() {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Without sampling the likeliest token is the one that is said.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        let logprob = |entry: &Value| entry["logprob"].as_f64().unwrap();
        assert!(top.windows(2).all(|pair| logprob(&pair[0]) >= logprob(&pair[1])), "{token}");
        assert!(top.iter().map(|entry| logprob(entry).exp()).sum::<f64>() < 1.000_01, "{token}");
    }
    let (events, _) = server.post(CHAT, &chat(json!({"top_logprobs": 3, "stream": true}))).events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(Value::from(streamed.flatten().cloned().collect::<Vec<_>>()), *tokens);
    // The model's own distribution: penalties and cuts do not change it.
    let cut =
        server.post(CHAT, &chat(json!({"top_logprobs": 3, "top_k": 1, "presence_penalty": 0.001}))).ok();
    assert_eq!(cut["choices"][0]["logprobs"]["content"][0], tokens[0]);
    let alone = server.post(CHAT, &chat(json!({}))).ok();
    assert_eq!(alone["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    assert_eq!(
        server.post(CHAT, &chat(json!({"logprobs": false}))).ok()["choices"][0]["logprobs"],
        Value::Null
    );
    for (fields, param) in [
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": false, "top_logprobs": 1}), "top_logprobs"),
    ] {
        assert_eq!(server.post(CHAT, &chat(fields)).error(400)["param"], param);
    }
}

/// The tokens that end the reasoning are nobody's content.
#[test]
fn reasoning_does_not_shift_the_tokens_of_content() {
    let server = Running::shared();
    let fields = json!({"reasoning_effort": "low", "reasoning_budget": 6, "max_tokens": 40});
    let whole = server.post(CHAT, &chat(fields)).ok();
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert!(message["reasoning_content"].is_string(), "{whole}");
    let content = message["content"].as_str().unwrap();
    assert!(!content.is_empty(), "{whole}");
    assert_eq!(String::from_utf8(bytes(&choice["logprobs"]["content"])).unwrap(), content);
}

#[test]
fn responses_include_logprobs() {
    let server = Running::shared();
    let ask = |fields: Value| {
        let mut request = json!({"input": "What is the capital of France?", "temperature": 0});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post("/v1/responses", &request)
    };
    let include = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let whole = ask(include.clone()).ok();
    let part = &whole["output"][0]["content"][0];
    assert_eq!(String::from_utf8(bytes(&part["logprobs"])).unwrap(), part["text"].as_str().unwrap());
    assert_eq!(part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2);
    let mut streamed = include;
    streamed["stream"] = json!(true);
    let (events, _) = ask(streamed).events();
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let told = deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect::<Vec<_>>();
    assert_eq!(Value::from(told), part["logprobs"]);
    assert_eq!(ask(json!({})).ok()["output"][0]["content"][0]["logprobs"], json!([]));
    assert_eq!(ask(json!({"include": ["file_search_call.results"]})).error(400)["param"], "include");
}

/// Answers of `/v1/completions` with logprobs.
fn complete(server: &Running, fields: Value) -> Value {
    let mut request =
        json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, "logprobs": 2});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    server.post(COMPLETIONS, &request).ok()
}

fn check_offsets(choice: &Value) {
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let lists = &choice["logprobs"];
    for (token, offset) in
        lists["tokens"].as_array().unwrap().iter().zip(lists["text_offset"].as_array().unwrap())
    {
        let token = token.as_str().unwrap();
        let begins: String =
            text[offset.as_u64().unwrap() as usize..].iter().take(token.chars().count()).collect();
        // End tokens and begin tokens are no text.
        assert!(
            begins == token || token.starts_with('<') || token.starts_with("bytes:"),
            "{token:?} {begins:?}"
        );
    }
}

#[test]
fn prompts_are_scored_as_answers_are() {
    let server = Running::shared();
    let answer = complete(server, json!({}));
    let lists = &answer["choices"][0]["logprobs"];
    check_offsets(&answer["choices"][0]);
    let prompt = tokenizer().encode("The capital of France is").unwrap();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let mut ids = prompt.clone();
    let said = server.post("/tokenize", &json!({"content": text})).ok()["tokens"].clone();
    ids.extend(said.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
    for max_tokens in [0, 1] {
        // The prompt is cut into other steps than the answer was; the values are the same to the bit.
        let scored = complete(server, json!({"prompt": ids, "echo": true, "max_tokens": max_tokens}));
        let choice = &scored["choices"][0];
        check_offsets(choice);
        let found = &choice["logprobs"];
        assert_eq!(found["tokens"].as_array().unwrap().len(), ids.len() + max_tokens);
        for (name, first) in [("token_logprobs", Value::Null), ("top_logprobs", Value::Null)] {
            assert_eq!(found[name][0], first, "nothing leads to the first token");
            for place in 0..said.as_array().unwrap().len() {
                assert_eq!(found[name][prompt.len() + place], lists[name][place], "{name} {place}");
            }
        }
        assert_eq!(scored["usage"]["completion_tokens"], max_tokens);
        assert_eq!(choice["finish_reason"], "length");
        if max_tokens == 0 {
            assert!(choice["text"].as_str().unwrap().ends_with(text), "{choice}");
        }
    }
    // Several prompts and answers, whole and streamed.
    let fields = json!({"prompt": ["One", "The capital of France is"], "n": 2, "echo": true});
    let several = complete(server, fields.clone());
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    choices.iter().for_each(check_offsets);
    assert_eq!(choices[2], {
        let mut same = choices[3].clone();
        same["index"] = json!(2);
        same
    });
    let mut request = json!({"temperature": 0, "max_tokens": 8, "logprobs": 2, "stream": true});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (events, _) = server.post(COMPLETIONS, &request).events();
    for (index, choice) in choices.iter().enumerate() {
        let own = events.iter().map(|event| &event["choices"][0]).filter(|own| own["index"] == index);
        let list = |name: &str| -> Vec<Value> {
            own.clone().flat_map(|own| own["logprobs"][name].as_array().unwrap().clone()).collect()
        };
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(Value::from(list(name)), choice["logprobs"][name], "{name} of {index}");
        }
    }
}

#[test]
fn the_best_of_several_answers_is_the_likeliest() {
    let server = Running::shared();
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let fields = |n, best| json!({"prompt": "Once upon a time", "temperature": 1.5, "seed": 5, "n": n, "best_of": best});
    let all = complete(server, fields(6, 6));
    let mut means: Vec<f64> = all["choices"].as_array().unwrap().iter().map(mean).collect();
    means.sort_by(|a, b| b.total_cmp(a));
    let best = complete(server, fields(2, 6));
    let found: Vec<f64> = best["choices"].as_array().unwrap().iter().map(mean).collect();
    assert_eq!(found, means[..2]);
    assert_eq!(
        best["usage"]["completion_tokens"], all["usage"]["completion_tokens"],
        "all of them were generated"
    );
    assert_eq!(best["choices"][1]["index"], 1);
}
