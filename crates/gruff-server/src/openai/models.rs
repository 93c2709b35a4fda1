//! `/v1/models`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::body::reply;
use crate::on_demand::Listed;
use crate::registry::Registry;

fn model(listed: &Listed) -> Value {
    let (id, service) = match listed {
        Listed::Loaded { id, service } => (id, service),
        Listed::Other { id, bytes, created, status } => {
            return json!({
                "id": id,
                "object": "model",
                "created": created,
                "owned_by": "gruff",
                "status": {"value": status},
                "meta": {"size": bytes},
            });
        }
    };
    let description = &service.description;
    json!({
        "id": id,
        "object": "model",
        "created": service.created,
        "owned_by": "gruff",
        "status": {"value": "loaded"},
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
pub(crate) async fn list(State(registry): State<Arc<Registry>>) -> Result<Response, ApiError> {
    let data: Vec<Value> = registry.list().await?.iter().map(model).collect();
    Ok(reply(&json!({"object": "list", "data": data})))
}

/// `GET /v1/models/ID`; ids of the Hub have slashes. It loads nothing.
pub(crate) async fn one(
    State(registry): State<Arc<Registry>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Ok(Path(id)) = id else { return Err(ApiError::path()) };
    Ok(reply(&model(&registry.describe(&id).await?)))
}
