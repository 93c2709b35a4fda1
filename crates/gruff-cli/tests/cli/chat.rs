//! `gruff chat` against gruff's own server, and against servers that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::gruff::Gruff;

/// A server that gives the same bytes to every request for an answer, and remembers what it was asked.
struct Fake {
    address: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

impl Fake {
    fn new(response: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (response, seen) = (response.into(), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap() == 0 || line == "\r\n" {
                        break;
                    }
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let is_list = head.starts_with("GET /v1/models ");
                seen.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap_or(Value::Null)));
                let list = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
                            {\"data\": [{\"id\": \"first\"}, {\"id\": \"second\"}]}";
                // Who asked may have gone already.
                let _ = reader.get_mut().write_all(if is_list { list.as_bytes() } else { &response });
            }
        });
        Self { address, requests }
    }

    fn events(events: &[Value]) -> Self {
        let data: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        Self::new(format!("{STREAM}{data}"))
    }

    fn asked(&self) -> (String, Value) {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

#[test]
fn text_and_reasoning_come_apart_and_fields_are_sent() {
    let gruff = Gruff::new();
    for name in ["reasoning_content", "reasoning"] {
        let fake = Fake::events(&[
            delta(json!({"role": "assistant", "content": ""})),
            delta(json!({name: "Hmm."})),
            delta(json!({"content": "Good \u{1f600}"})),
            delta(json!({"content": "day"})),
            end("stop"),
            json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
        ]);
        let url = format!("http://{}/v1", fake.address);
        let command = [
            "chat",
            &url,
            "--prompt",
            "Hello",
            "--system",
            "Be kind.",
            "--api-key",
            "secret",
            "-n",
            "7",
            "--temperature",
            "0.5",
            "--top-k",
            "3",
            "--stop",
            "x",
            "--reasoning",
            "off",
            "--extra",
            "{\"chat_template_kwargs\": {\"a\": 1}}",
        ];
        let outcome = gruff.run(&command);
        assert!(
            outcome.stderr.contains("Hmm.") && outcome.stderr.contains("[4 tokens"),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains("prompt 9 tokens]"), "{}", outcome.stderr);
        assert_eq!(outcome.ok(), "Good \u{1f600}day\n");
        let (head, body) = fake.asked();
        assert!(head.starts_with("POST /v1/chat/completions ") && head.contains("Bearer secret"), "{head}");
        assert_eq!(
            body,
            json!({
                "model": "first", "stream": true, "stream_options": {"include_usage": true},
                "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
                "reasoning_effort": "none", "max_tokens": 7, "temperature": 0.5, "top_k": 3, "stop": ["x"],
                "chat_template_kwargs": {"a": 1},
            })
        );
        let mut command = vec!["chat", fake.address.as_str(), "second", "--json"];
        let told: Value = serde_json::from_str(&gruff.run_with(&command, b"Hi").ok()).unwrap();
        assert_eq!(
            (&told["model"], &told["text"], &told["reasoning"], &told["finish_reason"]),
            (&json!("second"), &json!("Good \u{1f600}day"), &json!("Hmm."), &json!("stop"))
        );
        command.truncate(3);
        command.push("--quiet");
        assert_eq!(gruff.run_with(&command, b"Hi").stderr, "");
    }
}

#[test]
fn answers_of_other_servers_are_understood() {
    let gruff = Gruff::new();
    let whole = json!({"choices": [{"message": {"content": "all at once"}, "finish_reason": "stop"}]});
    for (response, text) in [
        // No [DONE], the last event without its end.
        (format!("{STREAM}data:{}\r\n\r\ndata: {}", delta(json!({"content": "a"})), end("stop")), "a"),
        // No finish_reason, but the mark.
        (format!("{STREAM}: hello\n\ndata: {}\n\ndata: [DONE]\n\n", delta(json!({"content": "b"}))), "b"),
        // What comes behind the mark is nobody's.
        (
            format!("{STREAM}data: {}\n\ndata: [DONE]\n\ndata: nonsense\n\n", delta(json!({"content": "c"}))),
            "c",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{whole}"),
            "all at once",
        ),
    ] {
        let fake = Fake::new(response);
        assert_eq!(gruff.ok(&["chat", &fake.address, "m", "-p", "Hi"]), format!("{text}\n"));
    }
}

#[test]
fn faults_of_servers_are_told() {
    let gruff = Gruff::new();
    let answer = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{body}")
    };
    for (response, parts) in [
        (answer("401 Unauthorized", "{\"error\": {\"message\": \"no key\"}}"), vec!["no key", "--api-key"]),
        (answer("429 Too Many Requests", "{\"error\": \"slow down\"}"), vec!["slow down", "try again later"]),
        (answer("404 Not Found", "<html>"), vec!["404", "/v1"]),
        (
            answer("307 Temporary Redirect\r\nLocation: http://other.example/", ""),
            vec!["http://other.example/"],
        ),
        (
            answer("500 Internal Server Error", "{\"message\": \"\\u001b[2Jbroken\"}"),
            vec!["\\u{1b}[2Jbroken"],
        ),
        (answer("200 OK", "hello"), vec!["no JSON"]),
        (answer("200 OK", "{}").replace("application/json", "text/html"), vec!["without an answer"]),
        (STREAM.to_owned(), vec!["without an answer"]),
        (format!("{STREAM}data: hello\n\n"), vec!["no JSON", "hello"]),
        (
            format!("{STREAM}data: {{\"error\": {{\"message\": \"out of memory\"}}}}\n\n"),
            vec!["out of memory"],
        ),
        (String::new(), vec!["cannot be reached"]),
        ("nonsense\r\n\r\n".to_owned(), vec!["cannot be reached"]),
    ] {
        let fake = Fake::new(response.clone());
        let outcome = gruff.run(&["chat", &fake.address, "m", "-p", "Hi"]);
        assert!(!outcome.stderr.contains('\u{1b}'), "{}", outcome.stderr);
        outcome.fails(1, &[&[fake.address.as_str()], &parts[..]].concat());
    }
    // What there is of an answer is printed, and its end is an error.
    for (more, fault) in [
        (String::new(), "ended before"),
        (format!("data: {}\n\n", json!({"error": {"message": "stopped"}})), "stopped"),
    ] {
        let fake = Fake::new(format!("{STREAM}data: {}\n\n{more}", delta(json!({"content": "half"}))));
        let outcome = gruff.run(&["chat", &fake.address, "m", "-p", "Hi"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), "half\n"));
        assert!(outcome.stderr.contains(fault), "{}", outcome.stderr);
    }
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    gruff.run(&["chat", &unused, "-p", "Hi"]).fails(1, &["cannot be reached", &unused]);
    for url in ["ftp://x", "http://user@x", "http://x/?a=b", ""] {
        gruff.run(&["chat", url, "-p", "Hi"]).fails(2, &["URL"]);
    }
    gruff.run(&["chat", &unused, "-p", " "]).fails(2, &["prompt is empty"]);
    gruff.run(&["chat", &unused, "-p", "a", "--extra", "[]"]).fails(2, &["--extra", "JSON object"]);
    gruff.run(&["chat", &unused, "-p", "a", "--extra", "{\"stream\": 1}"]).fails(2, &["`stream`"]);
    gruff.run(&["chat", &unused, "-p", "a", "--temperature", "nan"]).fails(2, &["--temperature", "finite"]);
}

#[test]
fn a_server_that_knows_no_stream_options_is_asked_without() {
    let gruff = Gruff::new();
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
                   {\"error\": {\"message\": \"unknown field stream_options\"}}";
    let fake = Fake::new(refusal);
    gruff.run(&["chat", &fake.address, "m", "-p", "Hi"]).fails(1, &["stream_options"]);
    let requests = fake.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].1.get("stream_options").is_none());
}

/// `gruff serve` with the tiny model.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn new(gruff: &Gruff, arguments: &[&str]) -> Self {
        let mut command =
            gruff.command(&[&["serve"], arguments, &["--port", "0", "--threads", "1"]].concat());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines
            .find_map(|line| Some(line.unwrap().split_once("http://")?.1.split_once("/v1")?.0.to_owned()));
        // The pipe must stay open for what else it says.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url: url.unwrap() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn it_says_what_run_says() {
    let gruff = Gruff::new();
    let served = Served::new(&gruff, &["tiny.gguf", "--api-key", "secret"]);
    let greedy = ["--temperature", "0", "-n", "12", "--reasoning", "off"];
    let run = gruff.ok(&[&["run", "tiny.gguf", "Hello", "--threads", "1"], &greedy[..]].concat());
    let chat = ["chat", &served.url, "-p", "Hello"];
    let outcome = gruff.run(&[&chat[..], &["--api-key", "secret"], &greedy].concat());
    assert!(outcome.stderr.contains("tok/s"), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), run);
    gruff.run(&[&chat[..], &greedy].concat()).fails(1, &["--api-key", "401"]);
    gruff.run(&[&chat[..], &["--api-key", "wrong"], &greedy].concat()).fails(1, &["401"]);
    let mut command = gruff.command(&[&chat[..], &greedy].concat());
    let output = command.env("OPENAI_API_KEY", "secret").stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), run);
    let unknown = ["chat", &served.url, "other", "-p", "Hello", "--api-key", "secret"];
    gruff.run(&unknown).fails(1, &["no such model", "404"]);
    let refused = [&chat[..], &["--api-key", "secret", "--extra", "{\"frobnicate\": 1}"]].concat();
    gruff.run(&refused).fails(1, &["frobnicate", "400"]);
}
