//! The server's address, as people write it.

use ureq::http::Uri;

/// Where OpenAI's API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Without a slash at the end; `/models` and `/chat/completions` come behind it.
    base: String,
    host: String,
    is_https: bool,
}

impl Address {
    /// `host`, `host:port`, `http://host`, with or without the API's path.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let text = text.trim_end_matches('/');
        let text = text.strip_suffix("/chat/completions").unwrap_or(text);
        let uri: Uri =
            text.parse().map_err(|_| "it is no address, such as http://localhost:8000".to_owned())?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("it begins with neither http:// nor https://".to_owned()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("it names no host")?.to_owned();
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("it has a user in it; keys go into --api-key".to_owned());
        }
        if uri.query().is_some() || text.contains('#') {
            return Err("what stands behind its ? or # has no meaning; leave it out".to_owned());
        }
        let base =
            if uri.path().trim_matches('/').is_empty() { format!("{text}/v1") } else { text.to_owned() };
        Ok(Self { base, host, is_https })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Whether it is this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let name = self.host.trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether others on the way can read what is sent.
    pub(super) fn is_open(&self) -> bool {
        !self.is_https && !self.is_loopback()
    }

    pub(super) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        for (text, base) in [
            ("localhost:8000", "http://localhost:8000/v1"),
            ("127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
            ("http://host", "http://host/v1"),
            ("http://host/v1/", "http://host/v1"),
            ("https://provider.example/api/v1", "https://provider.example/api/v1"),
            ("https://host/v1/chat/completions", "https://host/v1"),
            ("[::1]:80", "http://[::1]:80/v1"),
        ] {
            assert_eq!(Address::parse(text).unwrap().base, base, "{text}");
        }
        for text in [
            "",
            "ftp://host",
            "http://",
            "http://a b",
            "http://user:pass@host",
            "http://host/v1?key=x",
            "host:port:x",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let open = |text| Address::parse(text).unwrap().is_open();
        assert!(open("host:80") && open("http://10.0.0.1") && open("http://localhost.example"));
        assert!(!open("localhost:80") && !open("[::1]") && !open("https://host") && !open("127.9.9.9"));
    }
}
