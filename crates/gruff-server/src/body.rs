//! Bodies: read within bounds, and typed.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api_error::ApiError;
use crate::intake::Fault;
use crate::neutral;

/// Reads a request's JSON. Requiring its content type keeps web pages from sending any without asking first.
pub(crate) async fn json<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" {
        return Err(ApiError::status(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send JSON with the header `Content-Type: application/json`",
        ));
    }
    // How much and how long was decided when the request came in.
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| match Fault::of(&error) {
        Some(fault) => fault.error(),
        None => ApiError::bad_request("the body did not arrive whole"),
    })?;
    let read = serde_json::from_slice(&bytes).or_else(|error| match neutral::without(&bytes) {
        Some(fields) => T::deserialize(fields),
        None => Err(error),
    });
    read.map_err(|error| {
        let message = error.to_string();
        let mut quoted = message.split('`');
        let param = message.starts_with("unknown field").then(|| quoted.nth(1)).flatten().map(str::to_owned);
        let message = match &param {
            Some(field) => format!("`{field}` is not a field of this request; leave it out"),
            None => format!("the body is not as this endpoint wants it: {message}"),
        };
        ApiError { param, ..ApiError::bad_request(message) }
    })
}

/// A response of JSON.
pub(crate) fn reply(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", error.to_string())
                .into_response()
        }
    }
}
