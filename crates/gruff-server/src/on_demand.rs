//! Models that are loaded when a request names them, and unloaded when nobody does or others need their memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use gruff::floors::engine::EngineOptions;
use gruff::{AutoModelForCausalLM, Context, EngineError, MemoryPlan, ModelFiles};
use tokio::sync::watch;

use crate::api_error::ApiError;
use crate::background;
use crate::library::Library;
use crate::service::{Service, Shared};

/// Tokens of context for which other models are unloaded, where a context may be as long as memory allows: enough for
/// a conversation. A model that was trained for fewer wants those.
const WANTED_CONTEXT: usize = 8_192;

/// A model that is being loaded: what becomes of it.
type Loading = watch::Receiver<Option<Result<Arc<Service>, ApiError>>>;

/// The models of a library.
pub(crate) struct OnDemand {
    library: Arc<Library>,
    shared: Shared,
    /// Bytes that models may take together.
    budget: Option<u64>,
    entries: Mutex<Vec<Entry>>,
    /// One is loaded at a time, so that each sees what memory the others left.
    turn: Mutex<()>,
}

struct Entry {
    /// The file that it is: `owner/repo:file.gguf`.
    id: String,
    /// What requests have called it so far.
    names: Vec<String>,
    state: State,
    last_use: Instant,
}

#[derive(Clone)]
enum State {
    Loading(Loading),
    Ready(Arc<Service>),
}

impl Entry {
    fn is_called(&self, name: &str) -> bool {
        self.id == name || self.names.iter().any(|other| other == name)
    }

    /// The model, if nobody uses it: whoever does holds a reference to it.
    fn idle(&self) -> Option<&Arc<Service>> {
        match &self.state {
            State::Ready(service) if Arc::strong_count(service) == 1 => Some(service),
            _ => None,
        }
    }
}

/// A model of the library, as lists have it.
pub(crate) enum Listed {
    Loaded(Arc<Service>),
    Other { id: String, bytes: u64, created: u64, status: &'static str },
}

impl Listed {
    pub(crate) fn id(&self) -> &str {
        match self {
            Listed::Loaded(service) => &service.id,
            Listed::Other { id, .. } => id,
        }
    }
}

impl OnDemand {
    pub(crate) fn new(library: Arc<Library>, shared: Shared, budget: Option<u64>) -> Self {
        Self { library, shared, budget, entries: Mutex::default(), turn: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of that name, loaded if need be; requests that come meanwhile wait for the same load. `None` when the
    /// library has no such model.
    pub(crate) async fn get(self: &Arc<Self>, name: &str) -> Result<Option<Arc<Service>>, ApiError> {
        let state = match self.known(name) {
            Some(state) => state,
            None => {
                let (this, wanted) = (self.clone(), name.to_owned());
                let Some(files) = background::run(move || Ok(this.library.find(&wanted))).await? else {
                    return Ok(None);
                };
                self.begin(name, files)
            }
        };
        let mut loading = match state {
            State::Ready(service) => return Ok(Some(service)),
            State::Loading(loading) => loading,
        };
        match loading.wait_for(Option::is_some).await.map(|done| done.clone()) {
            Ok(Some(outcome)) => outcome.map(Some),
            // The loading task has ended without a word: it panicked.
            Ok(None) | Err(_) => Err(ApiError::stopped()),
        }
    }

    /// A model that is loaded or being loaded. One whose engine has stopped is let go, so that it is loaded anew.
    fn known(&self, name: &str) -> Option<State> {
        let mut entries = self.entries();
        entries.retain(|entry| match &entry.state {
            State::Ready(service) => service.engine.is_running(),
            State::Loading(loading) => loading.borrow().is_some() || loading.has_changed().is_ok(),
        });
        let entry = entries.iter_mut().find(|entry| entry.is_called(name))?;
        entry.last_use = Instant::now();
        Some(entry.state.clone())
    }

    /// Begins to load a model, unless another request has.
    fn begin(self: &Arc<Self>, name: &str, files: ModelFiles) -> State {
        let mut entries = self.entries();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == files.id) {
            entry.last_use = Instant::now();
            if !entry.is_called(name) {
                entry.names.push(name.to_owned());
            }
            return entry.state.clone();
        }
        let (outcome, loading) = watch::channel(None);
        let state = State::Loading(loading);
        let names = if name == files.id { Vec::new() } else { vec![name.to_owned()] };
        let id = files.id.clone();
        entries.push(Entry { id: id.clone(), names, state: state.clone(), last_use: Instant::now() });
        let this = self.clone();
        // Not part of the request: a client that goes away leaves the model to the others who wait.
        tokio::task::spawn_blocking(move || {
            let loaded = this.load(files);
            let mut entries = this.entries();
            match &loaded {
                Ok(service) => {
                    if let Some(entry) = entries.iter_mut().find(|entry| entry.id == id) {
                        entry.state = State::Ready(service.clone());
                        entry.last_use = Instant::now();
                    }
                }
                Err(_) => entries.retain(|entry| entry.id != id),
            }
            drop(entries);
            outcome.send_replace(Some(loaded));
        });
        state
    }

    /// Loads a model, making room for it.
    fn load(&self, files: ModelFiles) -> Result<Arc<Service>, ApiError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let served = self.library.open(files)?;
        let id = served.id.clone();
        let options = self.make_room(&served.model)?;
        let service = Service::start(served, options, &self.shared).map_err(|error| {
            tracing::error!("{id} cannot be loaded: {error}");
            no_room("there is not enough memory for this model now")
        })?;
        self.shared.metrics.loaded();
        tracing::info!(model = id, seconds = started.elapsed().as_secs_f64(), "loaded");
        Ok(Arc::new(service))
    }

    /// Unloads models that nobody uses, the one first that has been left alone longest, until this one fits.
    fn make_room(&self, model: &AutoModelForCausalLM) -> Result<EngineOptions, ApiError> {
        let mut options = self.shared.options.engine(model);
        let trained = model.model().config().max_position_embeddings;
        if let Context::Tokens(tokens) = options.context {
            options.context = Context::Tokens(tokens.min(trained));
        }
        let Some(budget) = self.budget else { return Ok(options) };
        let wanted = trained.min(WANTED_CONTEXT);
        loop {
            options.memory = Some(budget.saturating_sub(self.used()));
            let plan = MemoryPlan::new(&**model.model(), &options);
            match plan {
                Ok(plan) if options.context != Context::Auto || plan.context >= wanted => return Ok(options),
                Err(EngineError::Memory(_)) | Ok(_) if self.unload_oldest() => {}
                Ok(_) => return Ok(options),
                Err(error) => {
                    tracing::warn!("a model cannot be loaded: {error}");
                    let busy = !self.entries().is_empty();
                    return Err(no_room(match busy {
                        true => {
                            "other models are in use and leave too little memory for this one; come again"
                        }
                        false => "there is not enough memory for this model beside those that are served",
                    }));
                }
            }
        }
    }

    /// Bytes of the models that are ready.
    fn used(&self) -> u64 {
        let mut bytes = 0;
        self.each(|service| bytes += service.memory.total());
        bytes
    }

    /// Unloads the model that nobody has asked for longest; tells whether there was one that nobody uses.
    fn unload_oldest(&self) -> bool {
        let mut entries = self.entries();
        let idle = entries.iter().enumerate().filter(|(_, entry)| entry.idle().is_some());
        let Some((oldest, _)) = idle.min_by_key(|(_, entry)| entry.last_use) else { return false };
        let entry = entries.remove(oldest);
        drop(entries);
        self.unload(entry);
        true
    }

    /// Unloads what nobody has used for that long. Blocks until the memory is given back.
    pub(crate) fn unload_unused(&self, after: Duration) {
        let mut unused = Vec::new();
        let mut entries = self.entries();
        for mut entry in std::mem::take(&mut *entries) {
            if entry.idle().is_none() {
                entry.last_use = Instant::now();
            }
            let old = entry.last_use.elapsed() >= after;
            if old { unused.push(entry) } else { entries.push(entry) }
        }
        drop(entries);
        unused.into_iter().for_each(|entry| self.unload(entry));
    }

    fn unload(&self, entry: Entry) {
        let id = entry.id.clone();
        drop(entry);
        self.shared.metrics.unloaded();
        tracing::info!(model = id, "unloaded");
    }

    /// Calls `look` with every model that is ready.
    pub(crate) fn each(&self, mut look: impl FnMut(&Service)) {
        for entry in self.entries().iter() {
            if let State::Ready(service) = &entry.state {
                look(service);
            }
        }
    }

    /// Everything that can be asked for. Reads the cache's folders.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let shelved = self.library.list();
        let entries = self.entries();
        let listed = |model: crate::library::Shelved| {
            let state = entries.iter().find(|entry| entry.id == model.id).map(|entry| &entry.state);
            let status = match state {
                Some(State::Ready(service)) => return Listed::Loaded(service.clone()),
                Some(State::Loading(_)) => "loading",
                None => "unloaded",
            };
            Listed::Other { id: model.id, bytes: model.bytes, created: model.created, status }
        };
        shelved.into_iter().map(listed).collect()
    }
}

fn no_room(message: &str) -> ApiError {
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::status(StatusCode::SERVICE_UNAVAILABLE, "not_enough_memory", message)
    }
}
