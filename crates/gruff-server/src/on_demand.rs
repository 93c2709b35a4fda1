//! Models that are loaded when a request names them, and unloaded when nobody does or others need their memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use gruff::floors::engine::EngineOptions;
use gruff::{AutoModelForCausalLM, Context, EngineError, MemoryPlan, ModelFiles};
use tokio::sync::watch;

use crate::api_error::ApiError;
use crate::background;
use crate::library::{Library, Shelved};
use crate::same_files::SameFiles;
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
    /// Models that stay: what is one of them under another name is not loaded again.
    pinned: Vec<Arc<Service>>,
    /// Bytes that models may take together.
    budget: Option<u64>,
    entries: Mutex<Vec<Entry>>,
    /// Models are loaded and unloaded one at a time, so that each load sees what memory the others leave: held until a
    /// loaded one stands among the entries, and until the memory of an unloaded one is given back.
    turn: Mutex<()>,
}

struct Entry {
    /// The file that it is, as the request named it that it was loaded for: `owner/repo:file.gguf`.
    id: String,
    /// What it is told by: several names may lead to the same files.
    files: SameFiles,
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

    /// Whether it is loaded and its engine has stopped.
    fn has_stopped(&self) -> bool {
        matches!(&self.state, State::Ready(service) if !service.engine.is_running())
    }
}

/// A model of the library, as lists have it.
pub(crate) enum Listed {
    Loaded { id: String, service: Arc<Service> },
    Other { id: String, bytes: u64, created: u64, status: &'static str },
}

impl Listed {
    /// A loaded model under its own id.
    pub(crate) fn loaded(service: Arc<Service>) -> Self {
        Listed::Loaded { id: service.id.clone(), service }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Listed::Loaded { id, .. } | Listed::Other { id, .. } => id,
        }
    }
}

impl OnDemand {
    pub(crate) fn new(
        library: Arc<Library>,
        shared: Shared,
        pinned: Vec<Arc<Service>>,
        budget: Option<u64>,
    ) -> Self {
        Self { library, shared, pinned, budget, entries: Mutex::default(), turn: Mutex::default() }
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
                let find = move || {
                    let files = this.library.find(&wanted);
                    Ok(files.and_then(|files| Some((SameFiles::of(&files)?, files))))
                };
                let Some((same, files)) = background::run(find).await? else { return Ok(None) };
                match self.pinned(&same) {
                    Some(service) => return Ok(Some(service.clone())),
                    None => self.begin(name, same, files),
                }
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

    /// The model of these files among those that stay.
    fn pinned(&self, files: &SameFiles) -> Option<&Arc<Service>> {
        self.pinned.iter().find(|service| service.files.as_ref() == Some(files))
    }

    /// A model that is loaded or being loaded, under a name that has been asked for. Of several the latest: a branch may
    /// have come to stand for another file.
    fn known(&self, name: &str) -> Option<State> {
        let mut entries = self.entries();
        // What ended without a word.
        entries.retain(|entry| match &entry.state {
            State::Ready(_) => true,
            State::Loading(loading) => loading.borrow().is_some() || loading.has_changed().is_ok(),
        });
        Self::take_up(&mut entries, |entry| entry.is_called(name)).map(|entry| entry.state.clone())
    }

    /// The latest entry of these that answers. One whose engine has stopped is passed over, so that the model is loaded
    /// anew.
    fn take_up(entries: &mut [Entry], wanted: impl Fn(&Entry) -> bool) -> Option<&mut Entry> {
        let entry = entries.iter_mut().rev().find(|entry| !entry.has_stopped() && wanted(entry))?;
        entry.last_use = Instant::now();
        Some(entry)
    }

    /// Begins to load a model, unless another request has, under whatever name.
    fn begin(self: &Arc<Self>, name: &str, same: SameFiles, files: ModelFiles) -> State {
        let mut entries = self.entries();
        if let Some(entry) = Self::take_up(&mut entries, |entry| entry.files == same) {
            if !entry.is_called(name) {
                entry.names.push(name.to_owned());
            }
            return entry.state.clone();
        }
        let (outcome, loading) = watch::channel(None);
        let state = State::Loading(loading);
        let names = if name == files.id { Vec::new() } else { vec![name.to_owned()] };
        let (id, last_use) = (files.id.clone(), Instant::now());
        entries.push(Entry { id, files: same.clone(), names, state: state.clone(), last_use });
        let this = self.clone();
        // Not part of the request: a client that goes away leaves the model to the others who wait.
        tokio::task::spawn_blocking(move || outcome.send_replace(Some(this.load(&same, files))));
        state
    }

    /// Loads a model, making room for it; its entry is then ready, or gone.
    fn load(&self, same: &SameFiles, files: ModelFiles) -> Result<Arc<Service>, ApiError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.unload_stopped();
        let loaded = self.start(files);
        let mut entries = self.entries();
        let is_this = |entry: &Entry| matches!(entry.state, State::Loading(_)) && entry.files == *same;
        match &loaded {
            Ok(service) => {
                if let Some(entry) = entries.iter_mut().find(|entry| is_this(entry)) {
                    entry.state = State::Ready(service.clone());
                    entry.last_use = Instant::now();
                }
            }
            Err(_) => entries.retain(|entry| !is_this(entry)),
        }
        loaded
    }

    /// Makes room for a model and starts it.
    fn start(&self, files: ModelFiles) -> Result<Arc<Service>, ApiError> {
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

    /// Unloads those whose engines have stopped, as soon as the requests have gone that they failed.
    fn unload_stopped(&self) {
        self.unload_where(|entry| entry.has_stopped() && entry.idle().is_some());
    }

    /// Unloads what nobody has used for that long. Blocks until the memory is given back.
    pub(crate) fn unload_unused(&self, after: Duration) {
        for entry in self.entries().iter_mut().filter(|entry| entry.idle().is_none()) {
            entry.last_use = Instant::now();
        }
        // While one is being loaded this can wait for the next time.
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.unload_stopped();
        self.unload_where(|entry| entry.idle().is_some() && entry.last_use.elapsed() >= after);
    }

    fn unload_where(&self, goes: impl Fn(&Entry) -> bool) {
        let mut entries = self.entries();
        let (gone, kept) = std::mem::take(&mut *entries).into_iter().partition(|entry| goes(entry));
        *entries = kept;
        drop(entries);
        let gone: Vec<Entry> = gone;
        gone.into_iter().for_each(|entry| self.unload(entry));
    }

    /// Gives the memory back of a model that nobody uses and that is no entry any more. The caller has the turn.
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
        self.library.list().into_iter().map(|model| self.look_up(model)).collect()
    }

    /// A model of the library with what has become of it, under its own id: one of its files may be loaded under another.
    fn look_up(&self, model: Shelved) -> Listed {
        let Shelved { id, file, bytes, created } = model;
        let pinned = self.pinned.iter().filter_map(|service| Some((service.files.as_ref()?, service)));
        let pinned = pinned.filter(|(files, _)| files.begin_with(&file));
        let mut loaded: Vec<(SameFiles, State)> =
            pinned.map(|(files, service)| (files.clone(), State::Ready(service.clone()))).collect();
        let entries = self.entries();
        let others = entries.iter().filter(|entry| entry.files.begin_with(&file));
        loaded.extend(others.map(|entry| (entry.files.clone(), entry.state.clone())));
        drop(entries);
        // Only where there may be one: this looks through the repository's files again.
        let same = if loaded.is_empty() { None } else { self.library.find(&id) };
        let same = same.and_then(|files| SameFiles::of(&files));
        let status = match loaded.into_iter().rev().find(|(files, _)| Some(files) == same.as_ref()) {
            Some((_, State::Ready(service))) => return Listed::Loaded { id, service },
            Some((_, State::Loading(_))) => "loading",
            None => "unloaded",
        };
        Listed::Other { id, bytes, created, status }
    }
}

fn no_room(message: &str) -> ApiError {
    ApiError {
        param: Some("model".to_owned()),
        ..ApiError::status(StatusCode::SERVICE_UNAVAILABLE, "not_enough_memory", message)
    }
}

#[cfg(test)]
mod tests;
