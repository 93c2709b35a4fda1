//! Requests to the server.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::address::Address;

/// Bytes of an answer that is not a stream: many times the longest there is.
const WHOLE: u64 = 64 << 20;
/// Bytes of an explanation.
const EXPLANATION: u64 = 64 << 10;
/// Seconds in which a server must be reached.
const CONNECT: Duration = Duration::from_secs(20);

/// A client of one server.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    address: Address,
    key: Option<String>,
}

impl Client {
    pub(super) fn new(address: Address, key: Option<String>) -> anyhow::Result<Self> {
        if key.as_ref().is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            bail!("the API key has characters that no key has (a line end from a file?)");
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A key is not taken to another server, and a request not sent twice.
            .max_redirects(0)
            .user_agent(concat!("gruff/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT));
        // A proxy for the outside world has no business between two programs of one machine.
        if address.is_loopback() {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), address, key })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The ids of the models that it has.
    pub(super) fn models(&self) -> anyhow::Result<Vec<String>> {
        let url = self.address.at("models");
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = self.checked(request.call().map_err(anyhow::Error::from))?;
        let body = self.json(response)?;
        let list = body.get("data").or_else(|| body.get("models")).and_then(Value::as_array);
        let list = list.with_context(|| format!("{url} gives no list of models"))?;
        Ok(list.iter().filter_map(|model| Some(model.get("id")?.as_str()?.to_owned())).collect())
    }

    /// Sends a request for an answer.
    pub(super) fn chat(&self, body: &Value) -> anyhow::Result<Response<Body>> {
        let mut request = self
            .agent
            .post(self.address.at("chat/completions"))
            .header("content-type", "application/json")
            .header("accept", "text/event-stream, application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.checked(request.send(body.to_string()).map_err(anyhow::Error::from))
    }

    /// The whole of a response, as JSON.
    pub(super) fn json(&self, response: Response<Body>) -> anyhow::Result<Value> {
        let mut text = Vec::new();
        let mut reader = response.into_body().into_reader().take(WHOLE + 1);
        reader.read_to_end(&mut text).with_context(|| format!("{}: the answer broke off", self.address))?;
        if text.len() as u64 > WHOLE {
            bail!("{}: the answer has more than 64 MiB; is this OpenAI's API?", self.address);
        }
        serde_json::from_slice(&text)
            .with_context(|| format!("{} answers with what is no JSON; is this OpenAI's API?", self.address))
    }

    /// Refuses a response that is none, and says what the server says.
    fn checked(&self, response: anyhow::Result<Response<Body>>) -> anyhow::Result<Response<Body>> {
        let response = response.with_context(|| format!("{} cannot be reached", self.address))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() {
            let target = response.headers().get("location").and_then(|value| value.to_str().ok());
            bail!("{} sends to {}; give that address", self.address, target.unwrap_or("another address"));
        }
        let mut text = Vec::new();
        // What cannot be read explains nothing; the status is told all the same.
        let _ = response.into_body().into_reader().take(EXPLANATION).read_to_end(&mut text);
        let said = serde_json::from_slice::<Value>(&text).ok().as_ref().and_then(explanation);
        let advice = match (status.as_u16(), &self.key) {
            (401 | 403, None) => " (give a key with --api-key or OPENAI_API_KEY)",
            (404, _) if said.is_none() => " (is the path right? OpenAI's API is mostly under /v1)",
            (429, _) => " (it is busy, or a limit is reached; try again later)",
            _ => "",
        };
        match said {
            Some(said) => bail!("{}: {said} (status {}){advice}", self.address, status.as_u16()),
            None => bail!("{} answers with status {status}{advice}", self.address),
        }
    }
}

/// What an error object says: `{"error": {"message": …}}`, `{"error": …}`, `{"message": …}`, `{"detail": …}`.
pub(super) fn explanation(body: &Value) -> Option<String> {
    let found = body.get("error").or_else(|| body.get("detail")).unwrap_or(body);
    let found = found.get("message").unwrap_or(found);
    match found {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        Value::Object(object) if body.get("error").is_some() && !object.is_empty() => Some(found.to_string()),
        Value::Array(list) if !list.is_empty() => Some(found.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn explanations_are_found() {
        for (body, said) in [
            (json!({"error": {"message": "no", "type": "x"}}), Some("no")),
            (json!({"error": "no "}), Some("no")),
            (json!({"message": "no"}), Some("no")),
            (json!({"object": "error", "message": "no"}), Some("no")),
            (json!({"detail": "no"}), Some("no")),
            (json!({"detail": [{"msg": "no"}]}), Some("[{\"msg\":\"no\"}]")),
            (json!({"error": {"code": 3}}), Some("{\"code\":3}")),
            (json!({"error": null}), None),
            (json!({"choices": []}), None),
            (json!([]), None),
            (json!("no"), Some("no")),
        ] {
            assert_eq!(explanation(&body).as_deref(), said, "{body}");
        }
    }
}
