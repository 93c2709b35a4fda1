//! The models that are served, by their ids.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;

use crate::api_error::ApiError;
use crate::background;
use crate::on_demand::{Listed, OnDemand};
use crate::service::{Service, Shared};

/// What all routes share.
pub(crate) struct Registry {
    pub(crate) shared: Shared,
    /// Models that stay. Never empty; requests that name no model get the first.
    pinned: Vec<Arc<Service>>,
    on_demand: Option<Arc<OnDemand>>,
}

impl Registry {
    pub(crate) fn new(shared: Shared, pinned: Vec<Arc<Service>>, on_demand: Option<Arc<OnDemand>>) -> Self {
        Self { shared, pinned, on_demand }
    }

    /// The model that a request names, or the first; loaded if need be. While the result is held, the model is in use
    /// and stays loaded.
    ///
    /// # Errors
    /// Status 404 for a name that no model here has, 503 when there is no memory for it.
    pub(crate) async fn get(&self, name: Option<&str>) -> Result<Arc<Service>, ApiError> {
        let pinned = match name {
            None => self.pinned.first(),
            Some(name) => self.pinned.iter().find(|service| service.is_called(name)),
        };
        match (pinned, &self.on_demand, name) {
            (Some(service), ..) => Ok(service.clone()),
            (None, Some(on_demand), Some(name)) => on_demand.get(name).await?.ok_or_else(|| self.unknown()),
            _ => Err(self.unknown()),
        }
    }

    /// The models that are there from the start.
    pub(crate) fn pinned(&self) -> &[Arc<Service>] {
        &self.pinned
    }

    /// Everything that can be asked for, without loading any of it.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, ApiError> {
        let mut listed: Vec<Listed> = self.pinned.iter().cloned().map(Listed::loaded).collect();
        if let Some(on_demand) = self.on_demand.clone() {
            let others = background::run(move || Ok(on_demand.list())).await?;
            // One may be pinned as well, under its file's name.
            listed.extend(
                others
                    .into_iter()
                    .filter(|other| !self.pinned.iter().any(|service| service.is_called(other.id()))),
            );
        }
        Ok(listed)
    }

    /// One of them.
    pub(crate) async fn describe(&self, name: &str) -> Result<Listed, ApiError> {
        if let Some(service) = self.pinned.iter().find(|service| service.is_called(name)) {
            return Ok(Listed::loaded(service.clone()));
        }
        self.list().await?.into_iter().find(|listed| listed.id() == name).ok_or_else(|| self.unknown())
    }

    /// Calls `look` with every model that is loaded.
    pub(crate) fn each(&self, mut look: impl FnMut(&Service)) {
        self.pinned.iter().for_each(|service| look(service));
        if let Some(on_demand) = &self.on_demand {
            on_demand.each(look);
        }
    }

    /// Whether every model that stays still answers.
    pub(crate) fn is_running(&self) -> bool {
        self.pinned.iter().all(|service| service.engine.is_running())
    }

    /// Unloads what nobody uses, for as long as it is polled.
    pub(crate) async fn keep_tidy(self: Arc<Self>) {
        let (Some(on_demand), Some(after)) = (&self.on_demand, self.shared.options.model_timeout) else {
            return std::future::pending().await;
        };
        let pause = (after / 10).clamp(Duration::from_millis(20), Duration::from_secs(5));
        loop {
            tokio::time::sleep(pause).await;
            let on_demand = on_demand.clone();
            // It waits for engines to end.
            let _ = tokio::task::spawn_blocking(move || on_demand.unload_unused(after)).await;
        }
    }

    fn unknown(&self) -> ApiError {
        let ids: Vec<String> = self.pinned.iter().map(|service| format!("`{}`", service.id)).collect();
        let more = if self.on_demand.is_some() { ", or for another that /v1/models lists" } else { "" };
        ApiError {
            param: Some("model".to_owned()),
            ..ApiError::status(
                StatusCode::NOT_FOUND,
                "model_not_found",
                format!("there is no such model here; ask for {}{more}", ids.join(" or ")),
            )
        }
    }
}
