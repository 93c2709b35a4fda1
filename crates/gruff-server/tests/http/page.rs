use gruff_server::ServerOptions;

use crate::client::{Response, Running};

/// What the page's text refers to on this server.
fn parts(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    let mut parts: Vec<String> = quoted
        .filter_map(|value| match value.strip_prefix("./") {
            Some(name) if name.ends_with(".js") => Some(format!("/page/{name}")),
            _ => value.starts_with("page/").then(|| format!("/{value}")),
        })
        .collect();
    parts.sort();
    parts.dedup();
    parts
}

fn is_guarded(response: &Response) {
    let policy = response.header("content-security-policy").unwrap();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn the_page_and_all_its_parts_load_without_a_key() {
    let options = ServerOptions { api_keys: vec!["key".to_owned()], ..ServerOptions::default() };
    let server = Running::start(options);
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    is_guarded(&page);
    let (mut wanted, mut seen) = (parts(&page.body), Vec::new());
    while let Some(path) = wanted.pop() {
        let part = server.get(&path);
        let kind = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!((part.status, part.header("content-type")), (200, Some(kind)), "{path}");
        is_guarded(&part);
        for text in ["http://", "https://"] {
            let loads = part.body.lines().any(|line| {
                line.contains(text) && ["import ", "fetch(", "url("].iter().any(|how| line.contains(how))
            });
            assert!(!loads, "{path} asks another server");
        }
        seen.push(path);
        wanted.extend(parts(&part.body).into_iter().filter(|path| !seen.contains(path)));
        wanted.sort();
        wanted.dedup();
    }
    assert!(seen.len() >= 14, "{seen:?}");
    server.get("/v1/models").error(401);
    server.get("/page/none.js").error(404);
    server.get("/page/../v1/models").error(404);
    server.send("POST", "/", &[("Content-Type", "application/json")], "{}").error(405);
    server.wait();
}

#[test]
fn a_copy_that_is_still_right_is_not_sent_again() {
    let server = Running::shared();
    let tag = server.get("/").header("etag").unwrap().to_owned();
    assert_eq!(server.get("/page/app.js").header("etag"), Some(tag.as_str()));
    for (tags, status) in [
        (tag.clone(), 304),
        (format!("\"other\", W/{tag}"), 304),
        ("*".to_owned(), 304),
        ("\"other\"".to_owned(), 200),
    ] {
        let response = server.send("GET", "/page/app.js", &[("If-None-Match", &tags)], "");
        assert_eq!((response.status, response.body.is_empty()), (status, status == 304), "{tags}");
        is_guarded(&response);
    }
    assert_eq!(server.send("GET", "/", &[("Host", "evil.example")], "").status, 403);
}
