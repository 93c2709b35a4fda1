use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gruff_server::ServerOptions;
use serde_json::json;

use crate::client::{Response, Running};

const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\n";

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Whether the server ends the connection, in less than the tests' patience.
fn is_ended(mut stream: TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn heads_that_do_not_come_are_not_waited_for() {
    let options = ServerOptions { head_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let server = Running::start(options);
    let silent = connect(&server);
    let mut half = connect(&server);
    half.write_all(HEALTH.as_bytes()).unwrap();
    // A connection that has served a request and is left open.
    let mut idle = connect(&server);
    idle.write_all(format!("{HEALTH}\r\n").as_bytes()).unwrap();
    // Bytes that come one by one are no better.
    let mut slow = connect(&server);
    let start = Instant::now();
    for byte in HEALTH.bytes().cycle() {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_ended(silent) && is_ended(half) && is_ended(idle));
    server.get("/health").ok();
    server.wait();
}

#[test]
fn bodies_that_do_not_come_are_not_waited_for() {
    let options = ServerOptions { body_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let server = Running::start(options);
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let mut stream = connect(&server);
    stream
        .write_all(format!("{head}Content-Length: 1000\r\nConnection: close\r\n\r\n{{").as_bytes())
        .unwrap();
    let mut drip = stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        while drip.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(Response::read(stream).error(408)["code"], "request_timeout");
    dripping.join().unwrap();
    // One that ends early is the client's fault.
    let mut stream = connect(&server);
    stream
        .write_all(format!("{head}Content-Length: 1000\r\nConnection: close\r\n\r\n{{").as_bytes())
        .unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    server.get("/health").ok();
    server.wait();
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read() {
    let server = Running::shared();
    let send = |text: String| {
        let mut stream = connect(server);
        // The server may have answered before all is sent.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let long = format!("{HEALTH}X-Long: {}\r\nConnection: close\r\n\r\n", "a".repeat(300 << 10));
    // What was not read any more may break the connection before the answer is read.
    let answer = send(long);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let many: String = (0..200).map(|n| format!("X-{n}: a\r\n")).collect();
    assert!(send(format!("{HEALTH}{many}Connection: close\r\n\r\n")).starts_with("HTTP/1.1 431 "));
    let far =
        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "a".repeat(300 << 10));
    let answer = send(far);
    assert!(
        answer.is_empty() || ["HTTP/1.1 414 ", "HTTP/1.1 431 "].iter().any(|s| answer.starts_with(s)),
        "{answer}"
    );
    assert!(send("\u{16}\u{3}\u{1}\r\n\r\n".to_owned()).starts_with("HTTP/1.1 400 "));
    // The length alone is enough.
    let headers = [("Content-Type", "application/json"), ("Content-Length", "40000000")];
    let announced = server.send("POST", "/v1/chat/completions", &headers, "");
    assert_eq!(announced.error(413)["code"], "request_too_large");
    // Without an announced length, what comes is counted.
    let mut stream = connect(server);
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    let sent = (0..40).take_while(|_| stream.write_all(chunk.as_bytes()).is_ok()).count();
    assert!(sent >= 32, "{sent} MiB were sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    // The connection may break before the answer is read.
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413 "), "{answer}");
    server.get("/health").ok();
}

#[test]
fn connections_are_counted() {
    let server = Running::start(ServerOptions { connections: 2, ..ServerOptions::default() });
    let (one, two) = (connect(&server), connect(&server));
    let mut third = connect(&server);
    third.write_all(format!("{HEALTH}Connection: close\r\n\r\n").as_bytes()).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err(), "it waits for one of the others to go");
    drop(one);
    third.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(Response::read(third).status, 200);
    drop(two);
    server.wait();
}

#[test]
fn readers_that_take_nothing_are_given_up() {
    let options = ServerOptions {
        connections: 1,
        reader_timeout: Duration::from_millis(300),
        ..ServerOptions::default()
    };
    let server = Running::start(options);
    // An answer that no buffer holds: some thirty megabytes of ids.
    let body = json!({"content": "a b ".repeat(1 << 20), "with_pieces": true}).to_string();
    let stuck = server.open("POST", "/tokenize", &[("Content-Type", "application/json")], &body);
    // There is one connection, so this is answered when that one has been given up.
    server.get("/health").ok();
    drop(stuck);
    server.wait();
}

#[test]
fn stopping_does_not_wait_for_connections_that_ask_nothing() {
    let server = Running::start(ServerOptions::default());
    let silent = connect(&server);
    let mut idle = connect(&server);
    idle.write_all(format!("{HEALTH}\r\n").as_bytes()).unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    let start = Instant::now();
    server.wait();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(is_ended(silent) && is_ended(idle));
}
