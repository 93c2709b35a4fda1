//! `/v1/rerank`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::api_error::ApiError;
use crate::body;
use crate::registry::Registry;

/// A request, as Jina's API has it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
pub(crate) struct RerankRequest {
    model: Option<String>,
    query: String,
    documents: Vec<String>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

/// `POST /v1/rerank`: refused, since no architecture here has a head that ranks.
pub(crate) async fn create(
    State(registry): State<Arc<Registry>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: RerankRequest = body::json(&headers, body).await?;
    let service = registry.get(request.model.as_deref()).await?;
    Err(ApiError {
        param: Some("model".to_owned()),
        ..ApiError::status(
            StatusCode::NOT_IMPLEMENTED,
            "not_supported",
            format!(
                "`{}` has no head that ranks documents, and this build of gruff runs no model that has one; compare \
                 vectors of `/v1/embeddings`",
                service.id
            ),
        )
    })
}
