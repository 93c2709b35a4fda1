//! Text to tokens and back, under the names that llama-server and vLLM share: one says `content`, the other `prompt`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use gruff::floors::text::{Detokenizer, EncodeOptions, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::api_error::ApiError;
use crate::background;
use crate::body::{self, reply};
use crate::limits::{MAX_IDS, MAX_TEXT};
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

/// The answer, in both forms.
#[derive(Serialize)]
struct Tokenized {
    tokens: Tokens,
    #[serde(flatten)]
    size: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// What vLLM's form tells besides.
#[derive(Serialize)]
struct Size {
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    Pieces(Vec<Piece>),
}

#[derive(Serialize)]
struct Piece {
    id: u32,
    piece: String,
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
        if (request.with_pieces || request.return_token_strs) && ids.len() > MAX_IDS {
            let message = format!(
                "the text of {} tokens is asked for; {MAX_IDS} are possible: send the text in parts",
                ids.len()
            );
            return Err(ApiError::field(if adds { "prompt" } else { "content" }, message));
        }
        let piece = |id: u32| tokenizer.id_to_token(id).unwrap_or_default();
        let size = adds.then(|| Size { count: ids.len(), max_model_len: service.description.context });
        let token_strs = request.return_token_strs.then(|| ids.iter().map(|id| piece(*id)).collect());
        let tokens = match request.with_pieces {
            false => Tokens::Ids(ids),
            true => Tokens::Pieces(ids.into_iter().map(|id| Piece { id, piece: piece(id) }).collect()),
        };
        Ok(reply(&Tokenized { tokens, size, token_strs }))
    };
    background::run(work).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The text, under both names.
#[derive(Serialize)]
struct Detokenized<'a> {
    content: &'a str,
    prompt: &'a str,
}

/// The text of ids, unless it has more bytes than that.
fn decode(tokenizer: &Tokenizer, ids: &[u32], most: usize) -> Result<String, ApiError> {
    let mut detokenizer = Detokenizer::new(tokenizer, false);
    let mut text = String::new();
    for (place, id) in ids.iter().enumerate() {
        text.push_str(detokenizer.push(*id));
        if text.len() > most {
            let message = format!(
                "the text of the first {} tokens has more than {most} bytes; send the tokens in parts",
                place + 1
            );
            return Err(ApiError::field("tokens", message));
        }
    }
    text.push_str(detokenizer.finish());
    Ok(text)
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: Detokenize = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    if request.tokens.len() > MAX_IDS {
        let message =
            format!("{} token ids; {MAX_IDS} are possible: send them in parts", request.tokens.len());
        return Err(ApiError::field("tokens", message));
    }
    let vocabulary = service.description.vocabulary;
    if let Some(id) = request.tokens.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("token id {id} is outside the vocabulary of {vocabulary}");
        return Err(ApiError::field("tokens", message));
    }
    let work = move || {
        let text = decode(service.tokenizer.tokenizer(), &request.tokens, MAX_TEXT)?;
        Ok(reply(&Detokenized { content: &text, prompt: &text }))
    };
    background::run(work).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use gruff::{AutoTokenizer, BUNDLED};

    #[test]
    fn decoding_ends_where_the_text_gets_too_long() {
        let tokenizer = AutoTokenizer::from_pretrained(BUNDLED).load().unwrap();
        let text = "A cat sat on the mat – é.";
        let ids = tokenizer.encode(text).unwrap();
        let decoded = decode(tokenizer.tokenizer(), &ids, text.len() + 64).unwrap();
        assert_eq!(decoded, tokenizer.decode(&ids, false));
        assert_eq!(decode(tokenizer.tokenizer(), &ids, decoded.len()), Ok(decoded.clone()));
        let error = decode(tokenizer.tokenizer(), &ids, decoded.len() - 1).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tokens"));
        assert_eq!(error.status, 400);
    }
}
