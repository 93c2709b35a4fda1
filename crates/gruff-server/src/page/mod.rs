//! The chat page at `/`: files that are part of the program, without anything from elsewhere.
//!
//! A file is a row in [`FILES`]. The policy lets the page load and ask nothing but this server, and no text become
//! markup: what a model says is shown by making elements (`markdown.js`).

use std::sync::OnceLock;

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::api_error::ApiError;

/// Where the page's parts lie.
const FOLDER: &str = "/page/";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Scripts, styles and requests of this server alone; no markup out of text, no frames around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

macro_rules! files {
    ($($name:literal: $kind:ident),* $(,)?) => {
        [$(File { name: $name, kind: $kind, content: include_str!($name) }),*]
    };
}

/// The page is the first.
static FILES: [File; 15] = files![
    "index.html": HTML,
    "page.css": CSS,
    "icon.svg": SVG,
    "app.js": SCRIPT,
    "answer.js": SCRIPT,
    "api.js": SCRIPT,
    "composer.js": SCRIPT,
    "dom.js": SCRIPT,
    "export.js": SCRIPT,
    "files.js": SCRIPT,
    "markdown.js": SCRIPT,
    "message.js": SCRIPT,
    "settings.js": SCRIPT,
    "sidebar.js": SCRIPT,
    "store.js": SCRIPT,
];

/// The page and its parts.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(async |headers: HeaderMap| answer(&FILES[0], &headers)))
        .route("/page/{name}", get(part))
}

/// Whether a path is the page's: anybody may load it, as it holds nothing but the program's own text.
pub(crate) fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with(FOLDER)
}

async fn part(name: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Response {
    let Ok(Path(name)) = name else { return ApiError::path().into_response() };
    match FILES[1..].iter().find(|file| file.name == name) {
        Some(file) => answer(file, &headers),
        None => {
            ApiError::status(StatusCode::NOT_FOUND, "not_found", "the page has no such part; load it again")
                .into_response()
        }
    }
}

/// One tag for all files: a browser never mixes those of two versions.
fn tag() -> &'static HeaderValue {
    static TAG: OnceLock<HeaderValue> = OnceLock::new();
    TAG.get_or_init(|| {
        let hash = FILES.iter().fold(Sha256::new(), |hash, file| hash.chain_update(file.content));
        let hex: String = hash.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::from_str(&format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"page\""))
    })
}

fn answer(file: &File, headers: &HeaderMap) -> Response {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let wanted = tag().to_str().unwrap_or_default();
    let is_known = known
        .flat_map(|tags| tags.split(','))
        .any(|known| known.trim() == "*" || known.trim().trim_start_matches("W/") == wanted);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.kind)], file.content).into_response(),
    };
    let always = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The browser asks each time whether its copy is still the program's.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in always {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().insert(header::ETAG, tag().clone());
    response.headers_mut().insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response.headers_mut().insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}
