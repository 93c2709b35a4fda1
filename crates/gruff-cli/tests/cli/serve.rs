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

    /// The object that a request is answered with.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body, "");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// A counter of `/metrics`.
    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Asks it to end, and waits until it has.
    #[cfg(unix)]
    fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
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
#[cfg(unix)]
fn what_was_computed_survives_a_restart_where_there_is_a_folder_for_it() {
    let gruff = Gruff::new();
    let text = "The quick brown fox jumps over the lazy dog, and the dog looks at the fox. ".repeat(6);
    let request = json!({"prompt": text, "max_tokens": 4, "temperature": 0});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let ask = |arguments: &[&str]| {
        let served = Served::start(&gruff, arguments);
        let [first, second] = [(); 2].map(|()| served.ask("/v1/completions", &request));
        assert_eq!(first["choices"], second["choices"], "the same with the cache and without");
        let told = served.metric("gruff_cached_tokens_total");
        assert_eq!(told, cached(&first) + cached(&second), "metrics say what usage says");
        let text = first["choices"][0]["text"].as_str().unwrap().to_owned();
        let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(prompt > 350, "{first}");
        let computed = prompt - cached(&first);
        served.stop();
        (text, computed, prompt - cached(&second))
    };
    let folder = ["--prefix-cache-dir", "kept"];
    let (first, all, rest) = ask(&folder);
    assert!(all > 350 && rest < 100, "{all} and {rest} tokens were computed");
    assert!(gruff.path("kept").is_dir());
    // The first request of the next process finds what the last one left.
    let (again, computed, _) = ask(&folder);
    assert_eq!(first, again);
    assert!(computed < 100, "{computed} tokens were computed");
    // Not without the folder, nor where files may take nothing or nothing is to be kept.
    assert_eq!(ask(&[]), (first.clone(), all, rest));
    let nowhere = ["--prefix-cache-dir", "other", "--prefix-cache-dir-mb", "0"];
    assert_eq!((ask(&nowhere).1, ask(&nowhere).1), (all, all));
    let nothing = [&folder[..], &["--prefix-cache-mb", "0"]].concat();
    assert_eq!(ask(&nothing), (first, all, all));
}

#[test]
fn what_was_computed_survives_a_kill() {
    let gruff = Gruff::new();
    let text = "The quick brown fox jumps over the lazy dog, and the dog looks at the fox. ".repeat(6);
    let request = json!({"prompt": text, "max_tokens": 4, "temperature": 0});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let folder = ["--prefix-cache-dir", "kept"];
    let served = Served::start(&gruff, &folder);
    let first = served.ask("/v1/completions", &request);
    assert_eq!(cached(&first), 0);
    let below = |path: std::path::PathBuf| {
        std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path())
    };
    let is_whole = || {
        below(gruff.path("kept"))
            .flat_map(below)
            .any(|path| path.extension().is_some_and(|end| end == "gruffpre"))
    };
    let start = std::time::Instant::now();
    while !is_whole() {
        assert!(start.elapsed().as_secs() < 60, "nothing was written");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    served.end();
    let served = Served::start(&gruff, &folder);
    let again = served.ask("/v1/completions", &request);
    assert_eq!(again["choices"], first["choices"]);
    assert!(cached(&again) > 300, "{again}");
    served.end();
}

#[test]
fn a_file_of_keys_may_come_from_any_editor() {
    let gruff = Gruff::new();
    gruff.write("keys.txt", "\u{feff}one\r\ntwo\r\n");
    let served = Served::start(&gruff, &["--api-key-file", "keys.txt"]);
    for (key, status) in [("one", "200"), ("two", "200"), ("three", "401")] {
        let header = format!("Authorization: Bearer {key}\r\n");
        let answer = served.post("/tokenize", &json!({"content": "a"}), &header);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{key}: {answer}");
    }
    served.end();
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
