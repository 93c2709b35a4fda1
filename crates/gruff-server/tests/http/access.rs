use std::panic::AssertUnwindSafe;

use gruff_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::Running;

#[test]
fn keys_are_asked_for_and_health_is_not() {
    let options = ServerOptions {
        api_keys: vec!["first key".to_owned(), "second".to_owned()],
        cors: vec!["https://app.example".to_owned()],
        ..ServerOptions::default()
    };
    let server = Running::start(options);
    server.get("/health").ok();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "second")],
        &[("Authorization", "Bearer second ")],
        &[("x-api-key", "")],
    ] {
        let response = server.send("GET", "/v1/models", headers, "");
        // A trailing space is not part of a header's value.
        if headers.first().is_some_and(|(_, value)| value.ends_with(' ')) {
            response.ok();
            continue;
        }
        let error = response.error(401);
        assert_eq!(error["code"], "invalid_api_key");
    }
    for headers in [
        &[("Authorization", "Bearer first key")][..],
        &[("authorization", "bearer second")],
        &[("x-api-key", "second")],
        &[("Authorization", "Bearer wrong"), ("x-api-key", "second")],
    ] {
        server.send("GET", "/v1/models", headers, "").ok();
    }
    for (path, headers, status, kind) in [
        ("/v1/messages", [("x-api-key", "wrong")], 401, "authentication_error"),
        ("/v1/messages/batches", [("x-api-key", "second")], 404, "not_found_error"),
        ("/v1/messages", [("x-api-key", "second")], 405, "invalid_request_error"),
    ] {
        let response = server.send("GET", path, &headers, "");
        let body: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(
            (response.status, &body["type"], &body["error"]["type"]),
            (status, &json!("error"), &json!(kind))
        );
    }
    for path in ["/v1/models/%FF", "/page/%FF"] {
        server.send("GET", path, &[("x-api-key", "second")], "").error(400);
    }
    // Only the origin that was named is let in.
    let ask = |origin| {
        let headers = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
        server.send("OPTIONS", "/v1/chat/completions", &headers, "")
    };
    let allowed = ask("https://app.example");
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (204, Some("https://app.example"))
    );
    let refused = ask("https://evil.example");
    assert_eq!(refused.header("vary"), Some("Origin, Access-Control-Request-Headers"));
    // The headers that a client's own library adds.
    let asked = "content-type,x-stainless-lang,anthropic-dangerous-direct-browser-access";
    let headers = [("Origin", "https://app.example"), ("Access-Control-Request-Headers", asked)];
    let allowed = server.send("OPTIONS", "/v1/messages", &headers, "");
    assert_eq!(allowed.header("access-control-allow-headers"), Some(asked));
    let read = server.send("GET", "/health", &[("Origin", "https://app.example")], "");
    assert_eq!(read.header("access-control-expose-headers"), Some("x-request-id, retry-after"));
    assert!(refused.status >= 400 && refused.header("access-control-allow-origin").is_none());
    server.wait();
}

#[test]
fn other_hosts_and_other_content_types_are_refused() {
    let server = Running::shared();
    for host in ["evil.example", "evil.example:8000", "10.1.2.3"] {
        assert_eq!(
            server.send("GET", "/v1/models", &[("Host", host)], "").error(403)["code"],
            "host_not_allowed"
        );
    }
    for host in ["127.0.0.1:1234", "[::1]:80", "localhost:1"] {
        server.send("GET", "/v1/models", &[("Host", host)], "").ok();
    }
    let body = json!({"content": "a"}).to_string();
    server.send("POST", "/tokenize", &[("Content-Type", "text/plain")], &body).error(415);
    server.send("POST", "/tokenize", &[], &body).error(415);
    server.send("POST", "/tokenize", &[("Content-Type", "Application/JSON; charset=utf-8")], &body).ok();
    let origin = [("Origin", "https://evil.example"), ("Content-Type", "application/json")];
    assert!(server.send("POST", "/tokenize", &origin, &body).header("access-control-allow-origin").is_none());
}

#[test]
fn bodies_are_checked_and_ids_are_told() {
    let server = Running::shared();
    let kind = ("Content-Type", "application/json");
    for body in ["{", "[]", "\"text\"", "{\"content\": 3}", "{\"content\": \"\u{0}\"}", "nul"] {
        let error = server.send("POST", "/tokenize", &[kind], body).error(400);
        assert!(!error["message"].as_str().unwrap().contains('/'), "{error}");
    }
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    server.send("POST", "/v1/chat/completions", &[kind], &deep).error(400);
    let large = format!("{{\"content\": \"{}\"}}", "a".repeat(33 << 20));
    // The server may answer before it has read all, so the connection may break while sending.
    let sent =
        std::panic::catch_unwind(AssertUnwindSafe(|| server.send("POST", "/tokenize", &[kind], &large)));
    if let Ok(response) = sent {
        response.error(413);
    }
    let response = server.send("GET", "/health", &[("x-request-id", "mine")], "");
    assert_eq!(response.header("x-request-id"), Some("mine"));
    assert!(server.get("/health").header("x-request-id").unwrap().starts_with("req_"));
}
