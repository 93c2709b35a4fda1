//! `gruff serve` as a process: its log, its ways to refuse. The protocol is tested in crate gruff-server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::gruff::Gruff;

struct Served {
    child: Child,
    address: String,
    log: BufReader<std::process::ChildStderr>,
}

impl Served {
    fn start(gruff: &Gruff, arguments: &[&str]) -> Self {
        let mut command = gruff.command(&["serve", "tiny.gguf", "--port", "0"]);
        let mut child = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it did not start");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.split('/').next().unwrap().to_owned();
            }
        };
        Self { child, address, log }
    }

    fn post(&self, path: &str, body: &Value, header: &str) -> String {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{header}\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ends it, and gives what it has said since the start.
    fn end(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        rest
    }
}

#[test]
fn requests_are_logged_without_what_they_say() {
    let gruff = Gruff::new();
    let served = Served::start(&gruff, &["--log-format", "json"]);
    let prompt = json!({"prompt": "xyzzy plugh", "max_tokens": 3, "temperature": 0});
    let answer = served.post("/v1/completions", &prompt, "x-request-id: mine\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("x-request-id: mine"), "{answer}");
    served.post("/v1/completions", &json!({"xyzzy": 1, "prompt": "xyzzy"}), "");
    served.post("/v1/nowhere/xyzzy", &json!({}), "");
    let log = served.end();
    assert!(!log.contains("xyzzy"), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second, third] = lines.as_slice() else { panic!("{log}") };
    for (field, value) in [
        ("level", json!("INFO")),
        ("id", json!("mine")),
        ("method", json!("POST")),
        ("route", json!("/v1/completions")),
        ("status", json!(200)),
        ("model", json!("tiny.gguf")),
        ("completion_tokens", json!(3)),
        ("whole", json!(true)),
    ] {
        assert_eq!(first[field], value, "{field} of {first}");
    }
    assert!(first["prompt_tokens"].as_u64().unwrap() > 0 && first["timestamp"].is_string(), "{first}");
    assert!(first["first_token_ms"].as_f64().unwrap() <= first["total_ms"].as_f64().unwrap(), "{first}");
    assert_eq!((&second["status"], &second["error"]), (&json!(400), &json!("invalid_request_error")));
    assert!(second["id"].as_str().unwrap().starts_with("req_"));
    assert_eq!((&third["route"], &third["status"]), (&json!("other"), &json!(404)));
}

#[test]
fn a_log_for_people_is_text_and_without_one_there_is_none() {
    let gruff = Gruff::new();
    let ask = |arguments: &[&str]| {
        let served = Served::start(&gruff, arguments);
        served.post("/tokenize", &json!({"content": "a"}), "x-request-id: mine\r\n");
        served.end()
    };
    let log = ask(&["--log-format", "text"]);
    assert_eq!(log.lines().count(), 1, "{log}");
    for part in ["INFO", "id=\"mine\"", "route=\"/tokenize\"", "status=200"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    assert_eq!(ask(&[]), "");
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_is_loaded() {
    let gruff = Gruff::new();
    gruff.write("empty.txt", "\n \n");
    let table: [(&[&str], &str); 17] = [
        (&["--host", "somewhere"], "--host"),
        (&["--port", "99999"], "--port"),
        (&["--api-key", ""], "empty key"),
        (&["--api-key-file", "empty.txt"], "no keys"),
        (&["--max-sequences", "0"], "--max-sequences"),
        (&["--queue", "-1"], "--queue <N>"),
        (&["--prefix-cache-mb", "-1"], "--prefix-cache-mb <N>"),
        (&["--timeout", "0"], "--timeout"),
        (&["--cors", "app.example"], "no origin"),
        (&["--cors", "https://app.example/"], "no origin"),
        (&["--log-format", "xml"], "xml"),
        (&["--reasoning", "maybe"], "maybe"),
        (&["--chat-template-kwargs", "[1]"], "--chat-template-kwargs"),
        (&["--model-timeout", "-2"], "-1 for never"),
        (&["--alias", "a", "--alias", "b"], "2 times for 1"),
        (&["other.gguf", "--chat-template", "x.jinja"], "--chat-template is about one model"),
        (&["--ctx", "0"], "--ctx"),
    ];
    for (arguments, part) in table {
        let all: Vec<&str> =
            ["serve", "missing.gguf", "--port", "0"].iter().chain(arguments).copied().collect();
        let all = if arguments[0] == "--port" { [&all[..2], arguments].concat() } else { all };
        gruff.run(&all).fails(2, &[part]);
    }
    gruff.run(&["serve", "missing.gguf"]).fails(1, &["missing.gguf"]);
    gruff.run(&["serve", "tiny.gguf", "--api-key-file", "missing.txt"]).fails(1, &["missing.txt"]);
    gruff.run(&["serve", "tiny.gguf", "tiny.gguf"]).fails(1, &["\"tiny.gguf\""]);
    gruff.run(&["serve", "tiny.gguf", "--memory", "1K"]).fails(1, &["not enough memory"]);
}
