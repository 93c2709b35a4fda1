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
    read(&bytes).or_else(|error| match neutral::without(&bytes) {
        Some(fields) => read(fields.to_string().as_bytes()),
        None => Err(error),
    })
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let request = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, &error.into_inner().to_string())
    })?;
    reader.end().map_err(|error| refusal(".", &error.to_string()))?;
    Ok(request)
}

/// What is wrong with a body, and in which of its fields; `.` for the whole.
fn refusal(path: &str, message: &str) -> ApiError {
    if message.starts_with("unknown field")
        && let Some(field) = message.split('`').nth(1)
    {
        let inside = path.strip_suffix(field).unwrap_or_default().trim_end_matches('.');
        let param = if inside.is_empty() { field.to_owned() } else { format!("{inside}.{field}") };
        return ApiError::field(
            param.as_str(),
            format!("`{param}` is not a field of this request; leave it out"),
        );
    }
    if path == "." {
        return ApiError::bad_request(format!("the body is not as this endpoint wants it: {message}"));
    }
    ApiError::field(path, format!("`{path}` is not as this endpoint wants it: {message}"))
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
