use std::io::Read;
use std::time::{Duration, Instant};

use gruff_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Response, Running};

const PATH: &str = "/v1/chat/completions";
const KIND: (&str, &str) = ("Content-Type", "application/json");

fn request(text: &str, tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0.8, "seed": 3, "max_tokens": tokens})
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn answers_are_the_same_alone_and_among_others() {
    let server = Running::shared();
    let prompts: Vec<String> =
        (0..12).map(|n| format!("Tell me about the number {n}.{}", " Please.".repeat(n * 3))).collect();
    let alone: Vec<String> =
        prompts.iter().map(|prompt| content(&server.post(PATH, &request(prompt, 20)).ok())).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let ask = |prompt: &'_ String| content(&server.post(PATH, &request(prompt, 20)).ok());
        let threads: Vec<_> = prompts.iter().map(|prompt| scope.spawn(move || ask(prompt))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

/// Waits until the server has as many answers in progress.
fn wait_for_progress(server: &Running, wanted: usize) {
    let line = format!("gruff_answers_in_progress {wanted}");
    let start = Instant::now();
    while !server.get("/metrics").body.lines().any(|found| found == line) {
        assert!(start.elapsed() < Duration::from_secs(60), "{line} did not come true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_queue_says_so_and_a_reader_that_leaves_makes_room() {
    let options = ServerOptions { max_sequences: 1, queue: 1, ..ServerOptions::default() };
    let server = Running::start(options);
    let mut long = request("Count as far as you can.", 400);
    long["stream"] = json!(true);
    long["logit_bias"] = json!({});
    let body = long.to_string();
    let mut first = server.open("POST", PATH, &[KIND], &body);
    let second = server.open("POST", PATH, &[KIND], &body);
    wait_for_progress(&server, 2);
    let full = server.post(PATH, &request("Hi", 2));
    assert_eq!(full.error(429)["code"], "queue_full");
    assert_eq!(full.header("retry-after"), Some("1"));
    // Something has come for the first; then both go away.
    first.read_exact(&mut [0; 40]).unwrap();
    drop((first, second));
    wait_for_progress(&server, 0);
    server.post(PATH, &request("Hi", 2)).ok();
    server.wait();
}

#[test]
fn stopping_finishes_what_is_in_progress() {
    let mut server = Running::start(ServerOptions::default());
    let mut long = request("Tell a long story.", 60);
    long["stream"] = json!(true);
    let stream = server.open("POST", PATH, &[KIND], &long.to_string());
    wait_for_progress(&server, 1);
    server.stop();
    let (_, done) = Response::read(stream).events();
    assert!(done);
    server.wait();
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let options = ServerOptions { timeout: Some(Duration::from_millis(1)), ..ServerOptions::default() };
    let server = Running::start(options);
    assert_eq!(server.post(PATH, &request("Tell a long story.", 400)).error(504)["code"], "timeout");
    // What no engine does is held to the same.
    let texts = json!({"input": vec!["A cat sat on the mat. ".repeat(40); 200]});
    assert_eq!(server.post("/v1/embeddings", &texts).error(504)["code"], "timeout");
    wait_for_progress(&server, 0);
    server.wait();
}

#[test]
fn a_time_that_no_clock_can_tell_is_no_bound() {
    let server = Running::start(ServerOptions { timeout: Some(Duration::MAX), ..ServerOptions::default() });
    server.post(PATH, &request("Hi", 2)).ok();
    server.wait();
}

#[test]
fn counters_are_exact() {
    let server = Running::start(ServerOptions::default());
    let answers: Vec<Value> =
        ["One", "Two", "Three"].map(|text| server.post(PATH, &request(text, 5)).ok()).into();
    server.post(PATH, &json!({"x": 1})).error(400);
    let sum =
        |field: &str| answers.iter().map(|answer| answer["usage"][field].as_u64().unwrap()).sum::<u64>();
    let metrics = server.get("/metrics").body;
    for line in [
        format!("gruff_prompt_tokens_total {}", sum("prompt_tokens")),
        format!("gruff_generated_tokens_total {}", sum("completion_tokens")),
        "gruff_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 3".to_owned(),
        "gruff_responses_total{route=\"/v1/chat/completions\",status=\"400\"} 1".to_owned(),
        "gruff_answers_in_progress 0".to_owned(),
        "gruff_time_to_first_token_seconds_count 3".to_owned(),
        "gruff_answer_seconds_count 3".to_owned(),
        "gruff_prefix_cache_lookups_total 3".to_owned(),
        "gruff_prefix_cache_hits_total 0".to_owned(),
        "gruff_preemptions_total 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    server.wait();
}

#[test]
fn one_request_does_not_wait_behind_the_many_of_another_client() {
    let api_keys = ["busy", "other"].map(str::to_owned).into();
    let server =
        Running::start(ServerOptions { max_sequences: 1, queue: 15, api_keys, ..ServerOptions::default() });
    let key = |key: &'static str| ("x-api-key", key);
    let metric = |name: &str| -> usize {
        let text = server.send("GET", "/metrics", &[key("other")], "").body;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    let body = |number: usize| request(&format!("Tell me all about the number {number}."), 60).to_string();
    let many: Vec<_> =
        (0..16).map(|number| server.open("POST", PATH, &[KIND, key("busy")], &body(number))).collect();
    let start = Instant::now();
    while metric("gruff_answers_in_progress") + metric("gruff_answer_seconds_count") < 16 {
        assert!(start.elapsed() < Duration::from_secs(60), "they did not all come");
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = metric("gruff_answer_seconds_count");
    // All places are one client's, and it gets no more; another has some beyond them, and the next turn.
    assert_eq!(server.send("POST", PATH, &[KIND, key("busy")], &body(16)).error(429)["code"], "queue_full");
    server.send("POST", PATH, &[KIND, key("other")], &body(17)).ok();
    let meanwhile = metric("gruff_answer_seconds_count") - before;
    assert!(meanwhile <= 4, "{meanwhile} answers of 17 were given until its own was");
    for stream in many {
        Response::read(stream).ok();
    }
    server.wait();
}
