//! Bodies: read within bounds, and typed.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api_error::ApiError;
use crate::background;
use crate::intake::Fault;
use crate::limits::{LARGE_BODY, MAX_VALUES};
use crate::neutral;

/// Reads a request's JSON. Requiring its content type keeps web pages from sending any without asking first.
pub(crate) async fn json<T: DeserializeOwned + Send + 'static>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, ApiError> {
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
    match bytes.len() > LARGE_BODY {
        true => background::run(move || parse(&bytes)).await,
        false => parse(&bytes),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let count = values(bytes);
    if count > MAX_VALUES {
        return Err(ApiError::status(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request_too_large",
            format!("the body has about {count} values; {MAX_VALUES} are possible: send it in parts"),
        ));
    }
    match read(bytes) {
        Err(fault) if fault.is_unknown_field() => match neutral::without(bytes) {
            Some(fields) => read(fields.to_string().as_bytes()),
            None => Err(fault),
        },
        outcome => outcome,
    }
    .map_err(|fault| refusal(&fault.path, &fault.message))
}

/// How many values there are in a text of JSON, as far as commas and brackets outside of strings tell.
fn values(bytes: &[u8]) -> usize {
    let (mut count, mut inside, mut escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b',' | b'[' | b'{' if !inside => count += 1,
            _ => {}
        }
    }
    count
}

/// Why a body is not what is wanted, and where in it; `.` for the whole.
struct Misfit {
    path: String,
    message: String,
}

impl Misfit {
    fn is_unknown_field(&self) -> bool {
        self.message.starts_with("unknown field")
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Misfit> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let request = serde_path_to_error::deserialize(&mut reader).map_err(|error| Misfit {
        path: error.path().to_string(),
        message: error.into_inner().to_string(),
    })?;
    reader.end().map_err(|error| Misfit { path: ".".to_owned(), message: error.to_string() })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, count) in [
            ("1", 1),
            ("[1,2,3]", 4),
            (r#"{"a": "[,{", "b\",[": [{}]}"#, 5),
            (r#"["\\", "\"", ","]"#, 4),
            ("", 1),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn bodies_of_too_many_values_are_not_read() {
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert_eq!(parse::<Vec<u8>>(list(MAX_VALUES - 1).as_bytes()).unwrap().len(), MAX_VALUES - 1);
        let error = parse::<Vec<u8>>(list(MAX_VALUES).as_bytes()).unwrap_err();
        assert_eq!((error.status, error.code), (StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large")));
    }
}
