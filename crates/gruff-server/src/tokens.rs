//! Text to tokens and back, under the names that llama-server and vLLM share: one says `content`, the other `prompt`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::floors::text::EncodeOptions;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::registry::Registry;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tokenize {
    model: Option<String>,
    /// The text, in llama-server's form of the request.
    content: Option<String>,
    /// The text, in vLLM's.
    prompt: Option<String>,
    /// Whether to add the tokens that the model wants at the beginning or end of a prompt; left out, llama-server's form
    /// adds none, and vLLM's does.
    #[serde(alias = "add_special_tokens")]
    add_special: Option<bool>,
    /// Whether special tokens written in the text are parsed.
    #[serde(default = "yes")]
    parse_special: bool,
    /// Whether to give the text of each token too.
    #[serde(default)]
    with_pieces: bool,
    /// The same in vLLM's form.
    #[serde(default)]
    return_token_strs: bool,
}

fn yes() -> bool {
    true
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: Tokenize = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let (text, adds) = match (request.content, request.prompt) {
        (Some(content), None) => (content, false),
        (None, Some(prompt)) => (prompt, true),
        _ => return Err(ApiError::field("content", "the text is one of `content` and `prompt`")),
    };
    let work = move || {
        let tokenizer = service.tokenizer.tokenizer();
        let add_special = request.add_special.unwrap_or(adds);
        let options = EncodeOptions { add_special, parse_special: request.parse_special };
        let ids = tokenizer.encode(&text, options).map_err(gruff::Error::from)?;
        let piece = |id: &u32| tokenizer.id_to_token(*id).unwrap_or_default();
        let tokens: Vec<Value> = match request.with_pieces {
            false => ids.iter().map(|id| Value::from(*id)).collect(),
            true => ids.iter().map(|id| json!({"id": id, "piece": piece(id)})).collect(),
        };
        let mut answer = json!({"tokens": tokens});
        if adds {
            answer["count"] = Value::from(ids.len());
            answer["max_model_len"] = Value::from(service.description.context);
        }
        if request.return_token_strs {
            answer["token_strs"] = ids.iter().map(|id| Value::from(piece(id))).collect();
        }
        Ok(reply(&answer))
    };
    background::run(work).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: Detokenize = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    let vocabulary = service.description.vocabulary;
    if let Some(id) = request.tokens.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("token id {id} is outside the vocabulary of {vocabulary}");
        return Err(ApiError::field("tokens", message));
    }
    let text = service.tokenizer.decode(&request.tokens, false);
    Ok(reply(&json!({"content": text, "prompt": text})))
}

/// `GET /tokenizer_info`: what vLLM tells of the first model's, for clients that have no tokenizer of their own.
pub(crate) async fn info(State(registry): State<Arc<Registry>>) -> Result<Response, ApiError> {
    let service = registry.get(None).await?;
    let tokenizer = service.tokenizer.tokenizer();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let template = service.tokenizer.chat_template().ok().map(|template| template.source().to_owned());
    Ok(reply(&json!({
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "pad_token": text(tokenizer.pad()),
        "unk_token": text(tokenizer.unk()),
        "model_max_length": service.description.context,
        "chat_template": template,
    })))
}
