//! The thread that owns the engine.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gruff::FinishReason;
use gruff::Usage;
use gruff::floors::engine::{Engine, EngineStats, Event, Request, RequestId, TokenDetails};
use tokio::sync::mpsc::UnboundedSender;

use crate::api_error::ApiError;
use crate::metrics::Metrics;
use crate::queue::Place;

/// How long an engine has had nothing to do when it begins to write files: as a rule the next request comes at once or
/// takes its time.
const SETTLE: Duration = Duration::from_secs(1);

/// How often it is looked whether something is to be written while there is work.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// What becomes of one answer.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// What was asked about more tokens of the prompt, in order from the second on.
    Prompt(Vec<TokenDetails>),
    /// A new token, and what was asked about it.
    Token(u32, Option<Box<TokenDetails>>),
    /// The answer has ended.
    Finished(FinishReason, Usage),
    /// The answer cannot go on, or not even begin.
    Failed(ApiError),
}

/// An answer to be generated.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Which answer of its HTTP request it is; updates are told under that number. Whoever drops the other end
    /// cancels the job.
    pub(crate) choice: usize,
    pub(crate) updates: UnboundedSender<(usize, Update)>,
    /// Set to cancel this answer alone.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Its place in the queue, until it ends: how slowly it is read is no matter of the engine's.
    pub(crate) place: Option<Place>,
}

impl Job {
    /// Tells the last of it. Whoever hears of it finds its place free.
    fn end(mut self, update: Update) {
        self.place = None;
        let _ = self.updates.send((self.choice, update));
    }
}

/// A way to the engine.
pub(crate) struct EngineThread {
    jobs: Option<Sender<Job>>,
    running: Arc<AtomicBool>,
    stats: Arc<Mutex<EngineStats>>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    /// Hands the engine to a thread of its own, which counts in `metrics` what it does.
    pub(crate) fn start(engine: Engine, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let running = Arc::new(AtomicBool::new(true));
        let flag = running.clone();
        let stats = Arc::new(Mutex::new(engine.stats()));
        let told = stats.clone();
        let thread = std::thread::Builder::new().name("gruff-engine".to_owned()).spawn(move || {
            let mut state = State { engine, jobs: HashMap::new(), metrics, told, saved: Instant::now() };
            // Whatever goes wrong in a step, the senders are dropped, so that every request hears of the end.
            let ended = catch_unwind(AssertUnwindSafe(|| state.run(&receiver)));
            flag.store(false, Ordering::Release);
            // Before the engine, which may have files to write at its end.
            state.jobs.clear();
            drop(receiver);
            if ended.is_err() {
                tracing::error!("the engine has stopped after a panic");
            }
        })?;
        Ok(Self { jobs: Some(sender), running, stats, thread: Some(thread) })
    }

    /// Hands in a job.
    pub(crate) fn submit(&self, job: Job) -> Result<(), ApiError> {
        let Some(jobs) = &self.jobs else { return Err(ApiError::stopped()) };
        let sent = jobs.send(job).is_ok();
        if sent && self.is_running() { Ok(()) } else { Err(ApiError::stopped()) }
    }

    /// What the engine told of itself behind its last step.
    pub(crate) fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the engine still answers.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Makes it look as if the engine had ended.
    #[cfg(test)]
    pub(crate) fn stop(&self) {
        self.running.store(false, Ordering::Release);
    }
}

impl Drop for EngineThread {
    /// Waits for the thread, which ends when the last job has.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct State {
    engine: Engine,
    jobs: HashMap<RequestId, Job>,
    metrics: Arc<Metrics>,
    told: Arc<Mutex<EngineStats>>,
    /// When it was last looked whether something is to be written to files while there is work.
    saved: Instant,
}

impl State {
    /// Steps while there is work; ends when nobody can send any more.
    fn run(&mut self, receiver: &Receiver<Job>) {
        loop {
            if self.engine.is_idle() {
                match self.wait(receiver) {
                    Some(job) => self.take(job),
                    None => return,
                }
            }
            while let Ok(job) = receiver.try_recv() {
                self.take(job);
            }
            self.cancel();
            let stepped = self.engine.step();
            // Before answers end, so that whoever has one finds it counted.
            self.count();
            match stepped {
                Ok(events) => events.into_iter().for_each(|event| self.tell(event)),
                Err(error) => {
                    tracing::error!("the engine has stopped: {error}");
                    return;
                }
            }
            if let Some(fault) = self.engine.lost() {
                tracing::error!("the engine has stopped: {fault}");
                return;
            }
            if self.engine.is_saving() || self.saved.elapsed() >= SAVE_EVERY {
                self.saved = Instant::now();
                let _ = self.engine.save_some();
            }
        }
    }

    /// The next job, `None` when nobody can send any more. Until it comes, what is kept is written to files.
    fn wait(&mut self, receiver: &Receiver<Job>) -> Option<Job> {
        let mut pause = SETTLE;
        loop {
            match receiver.recv_timeout(pause) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            match self.engine.save_some() {
                Some(next) => pause = next,
                None => return receiver.recv().ok(),
            }
        }
    }

    fn count(&mut self) {
        let now = self.engine.stats();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.engines.advance(&told, &now);
        *told = now;
    }

    fn take(&mut self, job: Job) {
        match self.engine.submit(job.request.clone()) {
            Ok(id) => drop(self.jobs.insert(id, job)),
            Err(error) => job.end(Update::Failed(ApiError::engine(&error))),
        }
    }

    /// Ends the answers that nobody waits for any more.
    fn cancel(&mut self) {
        let gone = |job: &Job| job.updates.is_closed() || job.cancelled.load(Ordering::Acquire);
        let ids: Vec<RequestId> = self.jobs.iter().filter(|(_, job)| gone(job)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(event) = self.engine.cancel(id) {
                self.tell(event);
            }
        }
    }

    fn tell(&mut self, event: Event) {
        // A closed channel means that the job will be cancelled before the next step.
        match event {
            Event::Prompt { .. } | Event::Beams { .. } => {}
            Event::PromptDetails { request, details } => {
                if let Some(job) = self.jobs.get(&request) {
                    let _ = job.updates.send((job.choice, Update::Prompt(details)));
                }
            }
            Event::Token { request, id, details, .. } => {
                if let Some(job) = self.jobs.get(&request) {
                    let _ = job.updates.send((job.choice, Update::Token(id, details)));
                }
            }
            Event::Finished { request, reason, usage, .. } => {
                if let Some(job) = self.jobs.remove(&request) {
                    job.end(Update::Finished(reason, usage));
                }
            }
            Event::Failed { request, message } => {
                if let Some(job) = self.jobs.remove(&request) {
                    let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
                    job.end(Update::Failed(ApiError::status(status, "engine_error", message)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver as Gate;

    use gruff::floors::engine::{Context, EngineOptions};
    use gruff::floors::kernels::{Activations, Device, Step, Tensor};
    use gruff::floors::models::{self, CachePlan, Caches, LayerCache, Model, ModelBase, ModelConfig, Names};

    use super::*;

    /// Panics when it is to compute, and lets the engine's end last until it is let go.
    struct Panics {
        base: ModelBase,
        gate: Mutex<Gate<()>>,
    }

    impl Model for Panics {
        fn base(&self) -> &ModelBase {
            &self.base
        }

        fn forward(&self, _: &Step, _: &mut Caches) -> models::Result<Tensor> {
            panic!("a fault of the engine's");
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = gate.recv_timeout(Duration::from_secs(60));
        }
    }

    fn panics(gate: Gate<()>) -> Engine {
        let config = ModelConfig {
            architecture: "panics".into(),
            name: None,
            num_hidden_layers: 1,
            hidden_size: 8,
            vocab_size: 8,
            max_position_embeddings: 64,
            num_parameters: 1,
            weight_bytes: 4,
            caches: CachePlan::new(vec![LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 }]),
        };
        let base = ModelBase::new(config, Device::reference(Activations::F32), Names(&[]));
        let options =
            EngineOptions { context: Context::Tokens(64), max_sequences: 1, ..EngineOptions::default() };
        Engine::new(Arc::new(Panics { base, gate: Mutex::new(gate) }), options).unwrap()
    }

    #[test]
    fn who_waits_for_an_engine_that_has_stopped_hears_of_it_before_its_end_is_over() {
        let (let_go, gate) = channel();
        let thread = EngineThread::start(panics(gate), Arc::default()).unwrap();
        let (heard, hears) = channel();
        // The second one still waits when the first is computed.
        let listeners: Vec<_> = (0..2)
            .map(|choice| {
                let (updates, mut told) = tokio::sync::mpsc::unbounded_channel();
                let request = Request::new(vec![1, 2, 3]);
                let cancelled = Arc::default();
                let _ = thread.submit(Job { request, choice, updates, cancelled, place: None });
                let heard = heard.clone();
                std::thread::spawn(move || heard.send(told.blocking_recv().is_none()))
            })
            .collect();
        let all: Vec<_> = (0..2).map(|_| hears.recv_timeout(Duration::from_secs(30))).collect();
        let running = thread.is_running();
        let_go.send(()).unwrap();
        assert_eq!(all, [Ok(true), Ok(true)]);
        assert!(!running);
        listeners.into_iter().for_each(|listener| listener.join().unwrap().unwrap());
    }
}
