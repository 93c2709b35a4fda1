//! What a request is told that it took.

use gruff_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Response, Running};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";

fn with(request: &Value, fields: Value) -> Value {
    let mut request = request.clone();
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn metric(server: &Running, name: &str) -> u64 {
    let text = server.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// A text of two of these tokens that ends with one of them and stands nowhere before, and how many tokens there are up
/// to its end.
fn stop_in(tokens: &[String]) -> (String, usize) {
    let upto = |count: usize| tokens[..count].concat();
    let pairs = (4..tokens.len() - 4).map(|count| (tokens[count - 2..count].concat(), count));
    let mut usable = pairs.filter(|(stop, count)| {
        let letters = stop.chars().filter(char::is_ascii_alphabetic).count();
        letters > 3
            && stop.is_ascii()
            && stop.trim() == stop.trim_end()
            && !upto(count - 1).contains(stop.as_str())
    });
    usable.next().unwrap_or_else(|| panic!("no stop string in {tokens:?}"))
}

fn texts(tokens: &Value) -> Vec<String> {
    tokens.as_array().unwrap().iter().map(|token| token.as_str().unwrap().to_owned()).collect()
}

/// The last usage and the last timings that a stream tells.
fn told(response: &Response, usage: &str) -> (Value, Value, Vec<Value>) {
    let (events, _) = response.events();
    let last =
        |path: &str| events.iter().rev().find_map(|event| event.pointer(path)).cloned().unwrap_or_default();
    (last(usage), last("/timings"), events)
}

#[test]
fn tokens_behind_a_stop_string_are_not_counted() {
    let server = Running::start(ServerOptions::default());
    let free = json!({"messages": [{"role": "user", "content": "Tell a long story about a cat."}],
                      "temperature": 0, "max_tokens": 40});
    let answer = server.post(CHAT, &with(&free, json!({"logprobs": true}))).ok();
    let content = &answer["choices"][0]["logprobs"]["content"];
    let tokens: Vec<String> =
        content.as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap().to_owned()).collect();
    // Nothing else is generated before: the counts are those of the content.
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() as usize <= tokens.len() + 1, "{answer}");
    let (stop, expected) = stop_in(&tokens);
    let generated = || metric(&server, "gruff_generated_tokens_total");
    let before = generated();

    // As many as the stop string takes and one more: what ended the answer is the string all the same.
    for most in [expected + 1, 40] {
        let fields = json!({"stop": stop, "max_tokens": most, "stream_options": null});
        let request = with(&free, fields);
        let whole = server.post(CHAT, &request).ok();
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(whole["usage"]["completion_tokens"], expected, "{stop:?} in {tokens:?}");
        assert_eq!(whole["timings"]["predicted_n"], expected);
        let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
        let (usage, timings, events) = told(&server.post(CHAT, &with(&request, fields)), "/usage");
        assert_eq!(
            (&usage["completion_tokens"], &timings["predicted_n"]),
            (&json!(expected), &json!(expected))
        );
        let ends = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str());
        assert_eq!(ends.collect::<Vec<_>>(), ["stop"]);

        let mut request = with(&free, json!({"stop_sequences": [stop], "max_tokens": most}));
        let whole = server.post(MESSAGES, &request).ok();
        assert_eq!(whole["usage"]["output_tokens"], expected);
        assert_eq!(whole["stop_reason"], "stop_sequence");
        request["stream"] = json!(true);
        let (usage, _, events) = told(&server.post(MESSAGES, &request), "/usage");
        assert_eq!(usage["output_tokens"], expected);
        assert!(events.iter().any(|event| event["delta"]["stop_reason"] == "stop_sequence"));
    }
    // What the metrics tell is what requests were told.
    assert_eq!(generated() - before, 8 * expected as u64);
    server.wait();
}

#[test]
fn tokens_behind_a_stop_string_are_not_counted_in_completions() {
    let server = Running::shared();
    let free = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40, "ignore_eos": false});
    let answer = server.post(COMPLETIONS, &with(&free, json!({"logprobs": 0}))).ok();
    let tokens = texts(&answer["choices"][0]["logprobs"]["tokens"]);
    let (stop, expected) = stop_in(&tokens);
    for fields in [json!({}), json!({"logprobs": 1, "echo": true})] {
        let request = with(&free, with(&fields, json!({"stop": [stop], "max_tokens": expected + 1})));
        let whole = server.post(COMPLETIONS, &request).ok();
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(
            (&whole["usage"]["completion_tokens"], &whole["timings"]["predicted_n"]),
            (&json!(expected), &json!(expected))
        );
        let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
        let streamed = server.post(COMPLETIONS, &with(&request, fields));
        let (usage, _, _) = told(&streamed, "/usage");
        assert_eq!(usage["completion_tokens"], expected);
        let (timings, _, _) = told(&streamed, "/timings");
        assert_eq!(timings["predicted_n"], expected);
    }
}

#[test]
fn several_answers_compute_one_prompt_and_its_cached_tokens_count_once() {
    let server = Running::start(ServerOptions::default());
    let text = "The cat sat on the mat and looked at the dog. ".repeat(12);
    let request = json!({"messages": [{"role": "user", "content": text}], "temperature": 0.8, "seed": 5,
                         "max_tokens": 6, "n": 4});
    let content = |answer: &Value, index: usize| answer["choices"][index]["message"]["content"].clone();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();

    let first = server.post(CHAT, &request).ok();
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 150, "{first}");
    assert_eq!(cached(&first), 0, "one of them computed all of it");
    // The other three found what that one had computed: all but the end of the last page.
    assert_eq!(metric(&server, "gruff_prompt_tokens_total"), 4 * prompt);
    assert!(
        metric(&server, "gruff_cached_tokens_total") >= 3 * (prompt - 64),
        "the prompt was computed again"
    );
    assert_eq!(metric(&server, "gruff_prefix_cache_hits_total"), 3);

    // Each answer is the one that it would be alone.
    for index in 0..4 {
        let alone = server.post(CHAT, &with(&request, json!({"n": 1, "seed": 5 + index}))).ok();
        assert_eq!(content(&alone, 0), content(&first, index), "{index}");
    }
    let again = server.post(CHAT, &request).ok();
    assert!(cached(&again) >= prompt - 64 && cached(&again) < prompt, "{again}");
    let streamed = with(&request, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let (usage, _, _) = told(&server.post(CHAT, &streamed), "/usage");
    assert_eq!(usage["prompt_tokens_details"], again["usage"]["prompt_tokens_details"]);
    server.wait();
}

#[test]
fn cached_tokens_of_several_prompts_are_added_up() {
    let server = Running::start(ServerOptions::default());
    let known = "A long time ago there was a king who had three sons. ".repeat(10);
    let new = "In the middle of the forest stood a house of stone. ".repeat(10);
    let ask = |fields: Value| {
        let request = json!({"temperature": 0, "max_tokens": 2});
        server.post(COMPLETIONS, &with(&request, fields))
    };
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let one = ask(json!({"prompt": known})).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    let saved = cached(&ask(json!({"prompt": known})).ok()["usage"]);
    assert!(saved >= one - 64 && saved < one, "{saved} of {one}");
    // One prompt is known and counts once, though it is answered twice; the other is not.
    let usage = &ask(json!({"prompt": [new, known], "n": 2})).ok()["usage"];
    assert_eq!(cached(usage), saved);
    let streamed = ask(
        json!({"prompt": [known, known], "n": 2, "stream": true, "stream_options": {"include_usage": true}}),
    );
    let (usage, _, _) = told(&streamed, "/usage");
    assert_eq!(cached(&usage), 2 * saved);
    server.wait();
}
