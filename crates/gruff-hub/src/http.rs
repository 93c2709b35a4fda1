//! Requests to the Hub: who gets the token, which redirects are followed, what a status means.

use std::io::Read;
use std::time::{Duration, SystemTime};

use ureq::http::{Request, Response, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::name::{is_commit, is_safe_etag};
use crate::{Environment, Error};

/// Redirects followed for one request.
const REDIRECTS: usize = 10;
/// Bytes taken of an answer that is text for us or for people. The listing of a large repository is about 1 MB.
const TEXT_LIMIT: u64 = 32 << 20;

/// A client of one Hub.
pub(crate) struct Http {
    agent: Agent,
    endpoint: String,
    home: Origin,
    token: Option<(String, String)>,
}

/// What the Hub tells about a file before it is downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The commit that the revision stands for.
    pub(crate) commit: String,
    /// The name of the content: its SHA-256, or git's SHA-1 for small files.
    pub(crate) etag: String,
    /// The size in bytes.
    pub(crate) size: Option<u64>,
    /// Where the bytes are: on the Hub, or behind a signed address of its storage.
    pub(crate) url: String,
}

/// What a request is about, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) file: Option<&'a str>,
}

/// Scheme, host and port: what must be equal for a token to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// Uses the parser that ureq uses for the connection, so that both see the same host.
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = uri.host()?.to_ascii_lowercase();
        Some(Origin { port: uri.port_u16().unwrap_or(default), scheme, host })
    }

    fn is_loopback(&self) -> bool {
        matches!(self.host.as_str(), "localhost" | "127.0.0.1" | "[::1]")
    }
}

impl Http {
    pub(crate) fn new(
        endpoint: &str,
        token: Option<(String, String)>,
        user_agent: &str,
        environment: &Environment,
    ) -> Result<Self, Error> {
        let endpoint = endpoint.trim_end_matches('/');
        let setting = |name, value: &str, reason: &str| Error::Setting {
            name,
            value: value.to_string(),
            reason: reason.to_string(),
        };
        let home = Origin::of(endpoint).filter(|_| !endpoint.contains(['?', '#', '@'])).ok_or_else(|| {
            setting("HF_ENDPOINT", endpoint, "it is not an address such as https://huggingface.co")
        })?;
        if let Some((token, origin)) = &token
            && !token.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Error::TokenText { origin: origin.clone() });
        }
        let (answer, bytes) = environment.timeouts()?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(user_agent)
            .timeout_connect(Some(answer))
            .timeout_recv_response(Some(answer.max(bytes)))
            .timeout_per_read(Some(bytes));
        if let Some(path) = environment.certificates() {
            config = config.tls_config(TlsConfig::builder().root_certs(read_certificates(&path)?).build());
        }
        // A proxy for the outside world has no business between two programs of one machine.
        if home.is_loopback() {
            config = config.proxy(None);
        }
        Ok(Http { agent: config.build().into(), endpoint: endpoint.to_string(), home, token })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Asks where a file is and what it should be.
    pub(crate) fn remote(&self, about: About) -> Result<Remote, Error> {
        let file = about.file.unwrap_or_default();
        let mut url = format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            about.repo,
            encode(about.revision, false),
            encode(file, true)
        );
        let (mut commit, mut etag, mut size) = (None, None, None);
        for _ in 0..REDIRECTS {
            let response = self.send("HEAD", &url, None)?;
            if !response.status().is_success() && !response.status().is_redirection() {
                return Err(self.status_error(&url, response, about));
            }
            // The Hub puts what it knows on its own answers; the storage behind it has tags and sizes of its own.
            commit = text(&response, "x-repo-commit").or(commit);
            etag = text(&response, "x-linked-etag").or_else(|| etag.or_else(|| text(&response, "etag")));
            size = number(&response, "x-linked-size").or(size);
            let Some(target) = self.redirect(&url, &response)? else {
                size = size.or_else(|| number(&response, "content-length"));
                return self.checked(commit, etag, size, url);
            };
            let leaves = Origin::of(&target).as_ref() != Some(&self.home);
            url = target;
            if leaves && commit.is_some() && etag.is_some() {
                return self.checked(commit, etag, size, url);
            }
        }
        Err(not_a_hub(&url, "more than 10 redirects"))
    }

    /// Names from a server become file names only after this.
    fn checked(
        &self,
        commit: Option<String>,
        etag: Option<String>,
        size: Option<u64>,
        url: String,
    ) -> Result<Remote, Error> {
        let commit = commit.ok_or_else(|| not_a_hub(&url, "the answer has no X-Repo-Commit"))?;
        if !is_commit(&commit) {
            return Err(not_a_hub(&url, &format!("X-Repo-Commit is {commit:?}, which is no commit")));
        }
        let etag = etag.ok_or_else(|| not_a_hub(&url, "the answer has no ETag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_string();
        if !is_safe_etag(&etag) {
            return Err(not_a_hub(&url, &format!("the ETag {etag:?} cannot name a file")));
        }
        Ok(Remote { commit, etag, size, url })
    }

    /// Starts a download at byte `from`. The answer has status 200, 206 or 416.
    pub(crate) fn bytes(&self, url: &str, from: u64, about: About) -> Result<Response<Body>, Error> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        self.ranged(url, range.as_deref(), about)
    }

    /// Starts a download of the bytes from `from` to before `to`. The answer has status 200, 206 or 416.
    pub(crate) fn part(&self, url: &str, from: u64, to: u64, about: About) -> Result<Response<Body>, Error> {
        self.ranged(url, Some(&format!("bytes={from}-{}", to.saturating_sub(1))), about)
    }

    fn ranged(&self, url: &str, range: Option<&str>, about: About) -> Result<Response<Body>, Error> {
        let mut url = url.to_string();
        for _ in 0..REDIRECTS {
            let response = self.send("GET", &url, range)?;
            if let Some(target) = self.redirect(&url, &response)? {
                url = target;
                continue;
            }
            return match response.status().as_u16() {
                200 | 206 | 416 => Ok(response),
                // A signed address of the storage has run out. Asking the Hub again gives a new one.
                status @ (400 | 401 | 403 | 404) if Origin::of(&url).as_ref() != Some(&self.home) => {
                    Err(Error::Server { url: plain(&url), status, retry_after: None })
                }
                _ => Err(self.status_error(&url, response, about)),
            };
        }
        Err(not_a_hub(&url, "more than 10 redirects"))
    }

    /// The body of an answer of the Hub's API.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, path: &str, about: About) -> Result<T, Error> {
        let mut url = format!("{}{path}", self.endpoint);
        for _ in 0..REDIRECTS {
            let mut response = self.send("GET", &url, None)?;
            if let Some(target) = self.redirect(&url, &response)? {
                url = target;
                continue;
            }
            if !response.status().is_success() {
                return Err(self.status_error(&url, response, about));
            }
            let body = response.body_mut().with_config().limit(TEXT_LIMIT).read_to_vec();
            let body = body.map_err(|error| self.broken(&url, &error))?;
            return serde_json::from_slice(&body)
                .map_err(|e| not_a_hub(&url, &format!("the answer does not read: {e}")));
        }
        Err(not_a_hub(&url, "more than 10 redirects"))
    }

    /// One request, no redirects. The token goes to the Hub alone.
    fn send(&self, method: &str, url: &str, range: Option<&str>) -> Result<Response<Body>, Error> {
        // Compression would hide the size and shift the bytes that a range means.
        let mut request =
            Request::builder().method(method).uri(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        if let Some((token, _)) = &self.token
            && Origin::of(url).as_ref() == Some(&self.home)
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|e| not_a_hub(url, &e.to_string()))?;
        self.agent.run(request).map_err(|error| self.broken(url, &error))
    }

    /// Where a redirect leads. A secure connection is never left for an open one.
    fn redirect(&self, url: &str, response: &Response<Body>) -> Result<Option<String>, Error> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let target =
            text(response, "location").ok_or_else(|| not_a_hub(url, "a redirect that leads nowhere"))?;
        let (old, target) = (Origin::of(url), absolute(url, &target));
        match (old, Origin::of(&target)) {
            (_, None) => Err(not_a_hub(url, &format!("a redirect to {target:?}, which is no web address"))),
            (Some(old), Some(new)) if old.scheme == "https" && new.scheme == "http" => Err(not_a_hub(
                url,
                &format!("a redirect from https to the open connection {}", plain(&target)),
            )),
            _ => Ok(Some(target)),
        }
    }

    /// What a failed connection means.
    fn broken(&self, url: &str, error: &ureq::Error) -> Error {
        let host = Origin::of(url).map_or_else(|| plain(url), |o| format!("{}:{}", o.host, o.port));
        let reason = match error {
            ureq::Error::HostNotFound => "there is no such host, or no network".to_string(),
            ureq::Error::Timeout(_) => "no answer in time".to_string(),
            other => other.to_string(),
        };
        match error {
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => not_a_hub(url, &reason),
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => {
                Error::Untrusted { host, reason }
            }
            // How rustls reports a certificate that it does not accept.
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Error::Untrusted { host, reason: error.to_string() }
            }
            _ => Error::Unreachable { host, reason },
        }
    }

    /// What a status means. Follows the Hub's `X-Error-Code`, then the kind of request.
    fn status_error(&self, url: &str, response: Response<Body>, about: About) -> Error {
        let status = response.status().as_u16();
        let code = text(&response, "x-error-code").unwrap_or_default();
        let retry_after = retry_after(&response);
        let message = message_of(response);
        let (endpoint, repo, signed_in) =
            (self.endpoint.clone(), about.repo.to_string(), self.token.is_some());
        let revision = about.revision.to_string();
        match (status, code.as_str()) {
            (_, "GatedRepo") => Error::Gated { endpoint, repo, signed_in },
            (_, "RevisionNotFound") => Error::RevisionNotFound { repo, revision },
            (_, "EntryNotFound") => self.no_file(about),
            (_, "RepoNotFound") => Error::RepoNotFound { endpoint, repo, signed_in },
            (401, _) => match &self.token {
                // The Hub says 401 for a bad token, and to strangers also for what is private or does not exist.
                Some((_, origin)) => Error::BadToken { endpoint, origin: origin.clone() },
                None => Error::RepoNotFound { endpoint, repo, signed_in },
            },
            (403, _) => {
                let message = if message.is_empty() { "no reason given".to_string() } else { message };
                Error::Forbidden { endpoint, repo, message }
            }
            (404, _) => self.no_file(about),
            (429, _) => Error::RateLimited { endpoint, retry_after },
            (408 | 500..=599, _) => Error::Server { url: plain(url), status, retry_after },
            _ => Error::Http { url: plain(url), status, message },
        }
    }

    fn no_file(&self, about: About) -> Error {
        let repo = about.repo.to_string();
        match about.file {
            Some(file) => Error::FileNotFound {
                repo,
                revision: about.revision.to_string(),
                file: file.to_string(),
                near: Vec::new(),
            },
            None => {
                Error::RepoNotFound { endpoint: self.endpoint.clone(), repo, signed_in: self.token.is_some() }
            }
        }
    }
}

/// A header's value as text.
pub(crate) fn text(response: &Response<Body>, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.trim().to_string()).filter(|value| !value.is_empty())
}

/// A header's value as a number.
pub(crate) fn number(response: &Response<Body>, name: &str) -> Option<u64> {
    text(response, name)?.parse().ok()
}

/// `Retry-After` in seconds, or as the time that it names.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    if let Some(seconds) = number(response, "retry-after") {
        return Some(Duration::from_secs(seconds));
    }
    let until = http_date(&text(response, "retry-after")?)?;
    Some(until.duration_since(SystemTime::now()).unwrap_or_default())
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
fn http_date(date: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = date.split_whitespace().collect();
    let [_, day, month, year, clock, "GMT"] = words.as_slice() else { return None };
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let month = MONTHS.iter().position(|name| name == month)? as u64 + 1;
    let clock: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hour, minute, second] = clock.as_slice() else { return None };
    if !(1970..=9999).contains(&year)
        || !(1..=31).contains(&day)
        || *hour > 23
        || *minute > 59
        || *second > 60
    {
        return None;
    }
    // Days since 1970 in a calendar whose years start in March, so that the leap day comes last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3_600 + minute * 60 + second))
}

/// The Hub's own words about an error: `X-Error-Message`, or `error` in a JSON body.
fn message_of(mut response: Response<Body>) -> String {
    let header = text(&response, "x-error-message");
    let message = header.or_else(|| {
        let mut body = String::new();
        response.body_mut().as_reader().take(4096).read_to_string(&mut body).ok()?;
        let value: serde_json::Value = serde_json::from_str(&body).ok()?;
        Some(value.get("error")?.as_str()?.to_string())
    });
    // It goes to a terminal: one line, no control characters.
    message.unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

pub(crate) fn not_a_hub(url: &str, reason: &str) -> Error {
    Error::NotAHub { url: plain(url), reason: reason.to_string() }
}

/// An address without its query, which may hold a signature.
fn plain(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_string()
}

/// A redirect's target, which may lack scheme and host.
fn absolute(base: &str, target: &str) -> String {
    let base = plain(base);
    let scheme_end = base.find("://").map_or(0, |at| at + 3);
    let host_end = base[scheme_end..].find('/').map_or(base.len(), |at| scheme_end + at);
    if target.contains("://") && !target.starts_with('/') {
        target.to_string()
    } else if let Some(rest) = target.strip_prefix("//") {
        format!("{}{rest}", &base[..scheme_end])
    } else if target.starts_with('/') {
        format!("{}{target}", &base[..host_end])
    } else {
        let folder = base.rfind('/').filter(|&at| at >= host_end).unwrap_or(host_end);
        format!("{}/{target}", &base[..folder])
    }
}

/// Percent-encodes all but the characters that need none (RFC 3986, section 2.3) and, in paths, the slash.
pub(crate) fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn read_certificates(path: &std::path::Path) -> Result<RootCerts, Error> {
    let bad =
        |reason: String| Error::Setting { name: "SSL_CERT_FILE", value: path.display().to_string(), reason };
    let pem = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| bad(e.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(bad("there is no certificate in it".to_string()));
    }
    Ok(RootCerts::from(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn redirects_are_joined_like_a_browser_does() {
        let base = "https://hub.test:8443/a/b/resolve/main/m.gguf?x=1";
        let table = [
            ("https://cdn.test/x?sig=/1", "https://cdn.test/x?sig=/1"),
            ("//cdn.test/x", "https://cdn.test/x"),
            ("/api/x?y", "https://hub.test:8443/api/x?y"),
            ("n.gguf", "https://hub.test:8443/a/b/resolve/main/n.gguf"),
        ];
        for (target, expected) in table {
            assert_eq!(absolute(base, target), expected);
        }
        assert_eq!(absolute("http://h", "x"), "http://h/x");
    }

    #[test]
    fn origins_see_through_disguises() {
        let home = Origin::of("https://huggingface.co").unwrap();
        assert_eq!(Origin::of("https://HuggingFace.co:443/x"), Some(home.clone()));
        for other in [
            "https://huggingface.co@evil.test/x",
            "https://huggingface.co.evil.test/",
            "http://huggingface.co/",
            "https://huggingface.co:8443/",
            "https://evil.test/https://huggingface.co/",
        ] {
            assert_ne!(Origin::of(other), Some(home.clone()), "{other}");
        }
        assert_eq!(Origin::of("ftp://huggingface.co"), None);
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encode("a b/ü?#%.gguf", true), "a%20b/%C3%BC%3F%23%25.gguf");
    }

    #[test]
    fn dates_of_http() {
        let seconds =
            |date| http_date(date).map(|t| t.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(seconds("soon"), None);
        assert_eq!(seconds("Sun, 99 Nov 1994 08:49:37 GMT"), None);
    }

    #[test]
    fn a_secure_connection_is_not_left_for_an_open_one() {
        let http = Http::new("https://hub.test", None, "test", &Environment::default()).unwrap();
        let to = |location: &str| {
            let response = Response::builder().status(302).header("Location", location);
            http.redirect("https://hub.test/x", &response.body(Body::builder().data("")).unwrap())
        };
        assert_eq!(to("https://cdn.test/y").unwrap().as_deref(), Some("https://cdn.test/y"));
        assert_eq!(to("/y").unwrap().as_deref(), Some("https://hub.test/y"));
        let message = to("http://hub.test/y?signature=1").unwrap_err().to_string();
        assert!(message.contains("open connection http://hub.test/y;"), "{message}");
        assert!(to("javascript:alert(1)").is_ok_and(|url| url.unwrap().starts_with("https://hub.test/")));
    }

    proptest! {
        #[test]
        fn no_address_panics(base in "[hftps:/a.?#@é]{0,20}", target in "[hftps:/a.?#@é]{0,20}") {
            let joined = absolute(&base, &target);
            let _ = (Origin::of(&joined), plain(&joined), http_date(&joined));
        }
    }
}
