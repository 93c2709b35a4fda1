//! The server: routes, and how it starts and stops.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, Uri};
use gruff::system::available_memory;
use gruff::{Context, Device, MemoryPlan};
use tokio::net::TcpListener;

use crate::access::{Access, guard};
use crate::anthropic::refusal;
use crate::api_error::ApiError;
use crate::endpoint::endpoints;
use crate::on_demand::OnDemand;
use crate::registry::Registry;
use crate::service::{Service, Shared};
use crate::{Error, ServedModel, ServerOptions, connection, page};

/// Models, ready to be served.
pub struct Server {
    registry: Arc<Registry>,
}

/// What several models leave free for the system where no one has said what may be used, as one model's plan does.
const HEADROOM: u64 = 256 << 20;

impl Server {
    /// Takes the models' memory and starts a thread for each that computes. Requests that name no model get the first.
    ///
    /// # Errors
    /// [`Error::Model`] when a model with its caches does not fit, or another has the same name;
    /// [`Error::NoModel`] when there is none.
    pub fn new(models: Vec<ServedModel>, options: ServerOptions) -> Result<Self, Error> {
        let shared =
            Shared { options: Arc::new(options), metrics: Arc::default(), responses: Arc::default() };
        let library = shared.options.library.clone();
        let (pinned, left) = start_all(models, &shared)?;
        let on_demand =
            library.map(|library| Arc::new(OnDemand::new(library, shared.clone(), pinned.clone(), left)));
        Ok(Self { registry: Arc::new(Registry::new(shared, pinned, on_demand)) })
    }

    /// The ids of the models that are ready, with where their memory goes.
    pub fn memory(&self) -> Vec<(String, MemoryPlan)> {
        let services = self.registry.pinned().iter();
        services.map(|service| (service.id.clone(), service.memory.clone())).collect()
    }

    /// Serves until `stop` is ready; then takes no more requests and returns when those in progress are answered.
    ///
    /// # Errors
    /// [`Error::Io`] when the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let loopback = listener.local_addr()?.ip().is_loopback();
        let patience = self.registry.shared.options.patience();
        tokio::select! {
            () = connection::serve(listener, self.router(loopback), patience, stop) => {}
            () = self.registry.clone().keep_tidy() => {}
        }
        Ok(())
    }

    fn router(&self, loopback: bool) -> Router {
        let access = Access::new(&self.registry.shared, loopback);
        let routes = endpoints()
            .into_iter()
            .fold(page::routes(), |routes, endpoint| routes.route(endpoint.path, endpoint.handler));
        routes
            .fallback(async |uri: Uri| {
                let message = "there is nothing here; see `gruff serve --help`";
                refusal(uri.path(), ApiError::status(StatusCode::NOT_FOUND, "not_found", message))
            })
            .method_not_allowed_fallback(async |uri: Uri| {
                let message =
                    "this address wants another method: GET for what is, POST for what is to be made";
                let status = StatusCode::METHOD_NOT_ALLOWED;
                refusal(uri.path(), ApiError::status(status, "method_not_allowed", message))
            })
            .with_state(self.registry.clone())
            .layer(axum::middleware::from_fn_with_state(access, guard))
    }
}

/// What there is for these models together: of the card, where one card has them all; else of the system.
fn memory_for(models: &[ServedModel]) -> Option<u64> {
    let devices: Vec<&Device> = models.iter().flat_map(|served| served.model.model().devices()).collect();
    let same = devices.windows(2).all(|pair| pair[0].name() == pair[1].name());
    match devices.first().and_then(|first| first.free_bytes()).filter(|_| same) {
        Some(free) => {
            Some((free + devices.iter().map(|device| device.allocated_bytes()).sum::<usize>()) as u64)
        }
        None => available_memory(),
    }
}

/// Starts models beside each other, and tells what memory they leave. Where contexts are to be as long as memory allows,
/// what the weights leave is shared out evenly, with a share for the library; what one does not need is left to the
/// others.
fn start_all(models: Vec<ServedModel>, shared: &Shared) -> Result<(Vec<Arc<Service>>, Option<u64>), Error> {
    if models.is_empty() {
        return Err(Error::NoModel);
    }
    let alone = models.len() == 1 && shared.options.library.is_none();
    let mut left = match alone {
        // The engine's own rules hold for one model.
        true => shared.options.memory,
        false => shared.options.memory.or_else(|| Some(memory_for(&models)?.saturating_sub(HEADROOM))),
    };
    let mut services: Vec<Arc<Service>> = Vec::with_capacity(models.len());
    let mut later: VecDeque<u64> =
        models.iter().map(|served| served.model.model().config().weight_bytes).collect();
    for served in models {
        let mut names = std::iter::once(&served.id).chain(&served.names);
        if let Some(name) = names.find(|name| services.iter().any(|other| other.is_called(name))) {
            return Err(Error::Name(name.clone()));
        }
        let mut options = shared.options.engine(&served.model);
        let weights = later.pop_front().unwrap_or(0);
        let shares = match options.context {
            Context::Auto => later.len() as u64 + 1 + u64::from(shared.options.library.is_some()),
            Context::Tokens(_) => 1,
        };
        options.memory = left.map(|left| {
            let spare = left.saturating_sub(later.iter().sum()).saturating_sub(weights);
            weights.saturating_add(spare / shares)
        });
        let service = Service::start(served, options, shared)?;
        left = left.map(|left| left.saturating_sub(service.memory.total()));
        services.push(Arc::new(service));
    }
    Ok((services, left))
}
