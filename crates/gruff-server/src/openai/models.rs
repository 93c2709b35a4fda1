//! `/v1/models`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::body::reply;
use crate::service::Service;

fn model(service: &Service) -> Value {
    let description = &service.description;
    json!({
        "id": service.options.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "gruff",
        "meta": {
            "architecture": description.architecture,
            "n_params": description.parameters,
            "n_vocab": description.vocabulary,
            "n_ctx": description.context,
            "n_ctx_train": description.context_trained,
            "size": description.bytes,
        },
    })
}

/// `GET /v1/models`.
pub(crate) async fn list(State(service): State<Arc<Service>>) -> Response {
    reply(&json!({"object": "list", "data": [model(&service)]}))
}

/// `GET /v1/models/ID`.
pub(crate) async fn one(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    service.check_model(Some(&id))?;
    Ok(reply(&model(&service)))
}
