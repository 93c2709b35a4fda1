//! Who may ask: keys, hosts, origins.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::ServerOptions;
use crate::anthropic::refusal;
use crate::api_error::{ApiError, ErrorCode};
use crate::background::{self, Held};
use crate::client::{Client, Peer};
use crate::ids;
use crate::intake::{Intake, Room};
use crate::metrics::Metrics;
use crate::page;
use crate::request_log::{Line, Logged, Record};
use crate::service::Shared;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Routes that everybody may ask, such as a load balancer.
const OPEN: [&str; 1] = ["/health"];

/// How long behind its deadline a request is ended whose answer has not begun.
const GRACE: Duration = Duration::from_millis(100);

/// What the middleware knows.
#[derive(Clone)]
pub(crate) struct Access {
    options: Arc<ServerOptions>,
    metrics: Arc<Metrics>,
    room: Room,
    /// Who may prepare requests at once.
    workers: Arc<Semaphore>,
    /// SHA-256 of each key.
    keys: Arc<[[u8; 32]]>,
    /// Only names of this machine are accepted as hosts.
    loopback: bool,
}

impl Access {
    pub(crate) fn new(shared: &Shared, loopback: bool) -> Self {
        let (options, metrics) = (shared.options.clone(), shared.metrics.clone());
        let keys = options.api_keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect();
        Self { options, metrics, room: Room::default(), workers: background::workers(), keys, loopback }
    }

    /// Whether a request may be answered, and who asks: where there are several keys, whoever has that one, else
    /// whoever has that address, since a key that all have tells nobody from others.
    fn check(&self, path: &str, headers: &HeaderMap, peer: Option<Peer>) -> Result<Client, ApiError> {
        if self.loopback {
            check_host(headers)?;
        }
        let key = self.key_shown(headers);
        if self.keys.is_empty() || OPEN.contains(&path) || page::is_page(path) || key.is_some() {
            let by_key = key.filter(|_| self.keys.len() > 1).map(Client::of_key);
            let by_address = || peer.map(|peer| Client::of_address(peer.0));
            return Ok(by_key.or_else(by_address).unwrap_or_default());
        }
        Err(ApiError {
            kind: "authentication_error",
            ..ApiError::status(
                StatusCode::UNAUTHORIZED,
                "invalid_api_key",
                "this server wants a key: send `Authorization: Bearer KEY`",
            )
        })
    }

    /// The number of the key that is shown, if one is. Compares digests without telling by the time it takes how much of
    /// a key is right, or which.
    fn key_shown(&self, headers: &HeaderMap) -> Option<usize> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let own = headers.get("x-api-key").map(HeaderValue::as_bytes);
        // Counted from one: nothing is below all of them.
        let shown = bearer.into_iter().chain(own).map(|shown| self.number(shown));
        shown.fold(0, usize::max).checked_sub(1)
    }

    /// Which key it is, counted from one; 0 for none.
    fn number(&self, shown: &[u8]) -> usize {
        let shown = Sha256::digest(shown);
        let equal = |key: &[u8; 32]| key.iter().zip(shown.iter()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        self.keys
            .iter()
            .zip(1..)
            .fold(0, |found: usize, (key, number)| found.max(number * usize::from(equal(key))))
    }

    /// The origin to allow, if its pages may use the server.
    fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let allowed = |wanted: &String| wanted == "*" || wanted.as_bytes() == origin.as_bytes();
        self.options.cors.iter().any(allowed).then(|| origin.clone())
    }
}

/// On a loopback address a name that is not this machine's is a page's attempt to reach it under its own name (DNS
/// rebinding).
fn check_host(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let local =
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if local {
        return Ok(());
    }
    Err(ApiError::status(
        StatusCode::FORBIDDEN,
        "host_not_allowed",
        "this server listens on a loopback address and answers to `localhost` and loopback addresses only; \
         start it with another --host to serve other names",
    ))
}

/// Checks every request, counts and logs every response.
pub(crate) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = crate::endpoint::route(request.uri().path());
    let method = request.method().clone();
    let shown =
        request.headers().get(&REQUEST_ID).filter(|id| id.len() <= 128 && id.to_str().is_ok()).cloned();
    let origin = access.origin(request.headers());
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let peer = request.extensions().get::<Peer>().copied();
    let checked = access.check(request.uri().path(), request.headers(), peer);
    let preflight = method == Method::OPTIONS && origin.is_some();
    let record = Arc::<Record>::default();
    // Held until the answer begins and work for it has ended: what is made of a body takes memory too.
    let share = access.room.share();
    let request =
        request.map(|body| Body::new(Intake::new(body, share.clone(), access.options.body_timeout)));
    let mut response = match checked {
        // A browser's question before the request comes without a key.
        _ if preflight => preflight_response(asked),
        Err(error) => refusal(request.uri().path(), error),
        Ok(client) => {
            let path = request.uri().path().to_owned();
            // A time that no clock can tell is none.
            let deadline = access.options.timeout.and_then(|timeout| begun.checked_add(timeout));
            let held = Held::new(share.clone(), access.workers.clone(), deadline);
            let answer = record.clone().scope(client.scope(held.scope(next.run(request))));
            // What knows better how to tell of it comes first.
            match deadline.and_then(|deadline| deadline.checked_add(GRACE)) {
                None => answer.await,
                Some(deadline) => tokio::time::timeout_at(deadline.into(), answer)
                    .await
                    .unwrap_or_else(|_| refusal(&path, ApiError::timeout())),
            }
        }
    };
    drop(share);
    let status = response.status();
    access.metrics.response(route, status.as_u16());
    let id = shown.or_else(|| HeaderValue::from_str(&ids::id("req_")).ok());
    let error = response.extensions().get::<ErrorCode>().map(|code| code.0);
    let text = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let line = Line { id: text, method, route, status, error, begun, record };
    let headers = response.headers_mut();
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    if !access.options.cors.is_empty() {
        let vary = HeaderValue::from_static("Origin, Access-Control-Request-Headers");
        headers.insert(header::VARY, vary);
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static("x-request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response.map(|body| Body::new(Logged::new(body, line)))
}

/// Clients add headers of their own, and none of them does any harm: what is asked for is allowed.
fn preflight_response(asked: Option<HeaderValue>) -> Response {
    let known =
        HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id, anthropic-version");
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(known)),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_hosts() {
        let check = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            check_host(&headers).is_ok()
        };
        for host in ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]"] {
            assert!(check(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::2]:80", ""] {
            assert!(!check(host), "{host}");
        }
        assert!(check_host(&HeaderMap::new()).is_err());
    }
}
