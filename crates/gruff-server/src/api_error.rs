//! Errors as OpenAI's API writes them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gruff::floors::engine;
use serde_json::{Value, json};

/// The code of an error about a grammar that is too large.
pub(crate) const GRAMMAR_SIZE: &str = "schema_too_large";

/// An error that a client gets: a status, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// OpenAI's `type`.
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    /// The request's field at fault.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into() }
    }

    /// The request is at fault.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field of the request is at fault.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad_request(message) }
    }

    /// A field asks for what this build or this model cannot do.
    pub(crate) fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// With a status of its own.
    pub(crate) fn status(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        Self { code: Some(code), ..Self::new(status, kind, message) }
    }

    /// An address that is no text.
    pub(crate) fn path() -> Self {
        Self::bad_request("the address is not UTF-8 where it is escaped with `%`; write it anew")
    }

    /// The engine has stopped.
    pub(crate) fn stopped() -> Self {
        Self::status(
            StatusCode::SERVICE_UNAVAILABLE,
            "engine_stopped",
            "the engine has stopped after an internal fault; restart the server",
        )
    }

    /// The request has taken as long as one may.
    pub(crate) fn timeout() -> Self {
        Self::status(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout",
            "the request took longer than the server allows; ask for fewer tokens",
        )
    }

    /// What the engine says of a request.
    pub(crate) fn engine(error: &engine::Error) -> Self {
        match error {
            engine::Error::Request { field: "max_new_tokens", fault } => {
                Self::field("max_tokens", format!("max_tokens: {fault}"))
            }
            engine::Error::ContextLength { field, .. } => {
                Self { code: Some("context_length_exceeded"), ..Self::field(*field, error.to_string()) }
            }
            engine::Error::Request { field, .. } => Self::field(*field, error.to_string()),
            _ => Self::status(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", error.to_string()),
        }
    }

    /// `{"error": {…}}`.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

/// An error's code, for those who see only its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub(crate) &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response =
            (self.status, [(header::CONTENT_TYPE, "application/json")], self.body().to_string())
                .into_response();
        let again = matches!(self.code, Some("not_enough_memory" | "overloaded"));
        if again || self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(ErrorCode(self.code.unwrap_or(self.kind)));
        response
    }
}

impl From<gruff::Error> for ApiError {
    fn from(error: gruff::Error) -> Self {
        match &error {
            gruff::Error::Template(error) => Self::field("messages", error.to_string()),
            gruff::Error::Tokenizer(error) => Self::bad_request(error.to_string()),
            gruff::Error::Engine(error) => Self::engine(error),
            gruff::Error::GrammarSize(_) => {
                Self { code: Some(GRAMMAR_SIZE), ..Self::field("response_format", error.to_string()) }
            }
            // These messages begin with the field.
            gruff::Error::Option(message) => {
                let field = message.split(':').next().unwrap_or_default();
                let field = match field {
                    "constraint" => "response_format",
                    "max_new_tokens" => "max_tokens",
                    field => field,
                };
                Self::field(field, message.as_str())
            }
            _ => Self::status(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
                "the request could not be served",
            ),
        }
    }
}
