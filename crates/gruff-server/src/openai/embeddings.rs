//! `/v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gruff::EmbeddingOptions;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::client::Client;
use crate::limits::MAX_EMBEDDINGS;
use crate::registry::Registry;
use crate::service::Service;

/// Texts that go through the model together: what one group holds of its memory goes before the next begins, and a
/// client that leaves in between ends the work.
const GROUP: usize = 8;

/// A request, as OpenAI's reference has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingsRequest {
    model: Option<String>,
    input: Input,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
    /// A label for the caller's own records; nothing depends on it.
    #[serde(rename = "user")]
    _user: Option<String>,
}

/// Texts or token ids, one or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl Input {
    /// The ids of each text.
    fn read(self, service: &Service) -> Result<Vec<Vec<u32>>, ApiError> {
        let encode = |text: &String| Ok(service.tokenizer.encode(text)?);
        let all = match &self {
            Input::Text(text) => vec![encode(text)?],
            Input::Texts(texts) if texts.len() > MAX_EMBEDDINGS => return Err(too_many(texts.len())),
            Input::Texts(texts) => texts.iter().map(encode).collect::<Result<_, ApiError>>()?,
            Input::Ids(ids) => vec![ids.clone()],
            Input::ManyIds(all) => all.clone(),
        };
        if all.is_empty() || all.len() > MAX_EMBEDDINGS {
            return Err(too_many(all.len()));
        }
        for (place, ids) in all.iter().enumerate() {
            let fault = |message: String| {
                let field = format!("input[{place}]");
                Err(ApiError::field(field.as_str(), format!("{field}: {message}")))
            };
            let (context, vocabulary) = (service.description.context, service.description.vocabulary);
            let blank = match &self {
                Input::Text(text) => text.is_empty(),
                Input::Texts(texts) => texts.get(place).is_none_or(String::is_empty),
                Input::Ids(_) | Input::ManyIds(_) => ids.is_empty(),
            };
            if blank || ids.is_empty() {
                return fault("it is empty; there is nothing to embed".to_owned());
            }
            if ids.len() > context {
                return fault(format!("its {} tokens are more than the context of {context}", ids.len()));
            }
            if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
                return fault(format!("token id {id} is outside the vocabulary of {vocabulary}"));
            }
        }
        Ok(all)
    }
}

fn too_many(count: usize) -> ApiError {
    ApiError::field("input", format!("{count} texts; from 1 to {MAX_EMBEDDINGS} are possible"))
}

/// How vectors are written.
#[derive(Clone, Copy)]
enum Encoding {
    Float,
    /// Little-endian f32, one after the other.
    Base64,
}

impl Encoding {
    fn write(self, vector: &[f32]) -> Value {
        match self {
            Self::Float => Value::from(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            }
        }
    }
}

/// The first `dimensions` of a vector, again of length 1.
fn shortened(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    if dimensions < vector.len() {
        vector.truncate(dimensions);
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
    }
    vector
}

/// `POST /v1/embeddings`.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: EmbeddingsRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let encoding = match request.encoding_format.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => return Err(ApiError::field("encoding_format", "`encoding_format` is float or base64")),
    };
    let width = service.model.model().config().hidden_size;
    let dimensions = request.dimensions.unwrap_or(width);
    if dimensions == 0 || dimensions > width {
        let message = format!(
            "`dimensions` is {dimensions}; this model's vectors have {width}, and a beginning \
                               of them may be asked for"
        );
        return Err(ApiError::field("dimensions", message));
    }
    let place = service.queue.take(Client::current(), 1)?;
    // Work keeps its place, its turn and the model until it ends, also where the client has gone away.
    let reader = service.clone();
    let work = move || request.input.read(&reader).map(|texts| (texts, place));
    let (texts, place) = background::run(work).await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    // One after the other: each takes memory beside the engine's.
    let turn = service.embedding.clone().acquire_owned().await.map_err(|_| ApiError::stopped())?;
    let held = Arc::new((place, turn, service.clone()));
    let mut data = Vec::with_capacity(texts.len());
    for group in texts.chunks(GROUP) {
        let (held, group) = (held.clone(), group.to_vec());
        let work = move || {
            let (.., service) = &*held;
            Ok(service.model.embed(group, &EmbeddingOptions::default())?)
        };
        let vectors = background::run(work).await?;
        for vector in vectors {
            let vector = encoding.write(&shortened(vector, dimensions));
            data.push(json!({"object": "embedding", "index": data.len(), "embedding": vector}));
        }
    }
    Ok(reply(&json!({
        "object": "list",
        "data": data,
        "model": service.id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_shortened_and_written() {
        assert_eq!(shortened(vec![3.0, 4.0, 5.0], 2), [0.6, 0.8]);
        assert_eq!(shortened(vec![3.0, 4.0], 2), [3.0, 4.0]);
        assert_eq!(Encoding::Base64.write(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(Encoding::Float.write(&[0.5]), json!([0.5]));
    }
}
