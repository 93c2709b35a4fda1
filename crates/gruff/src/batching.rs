//! Continuous batching for programs that add requests as they come.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gruff_engine::{Engine, EngineOptions, Event, FinishReason, Request, RequestId, Usage};

use crate::{AutoModelForCausalLM, Error, GenerateOptions, GenerationConfig, Result};

/// Serves requests on a thread of its own, each from when it is added: prompts join the steps of answers in progress.
///
/// ```no_run
/// # use gruff::{AutoModelForCausalLM, GenerationConfig};
/// let model = AutoModelForCausalLM::from_pretrained("model.gguf").load()?;
/// let mut manager = model.batching_manager(8)?;
/// let config = GenerationConfig { max_new_tokens: Some(32), ..Default::default() };
/// for prompt in [vec![1, 2, 3], vec![4, 5]] {
///     manager.add_request(prompt, &config)?;
/// }
/// for result in &mut manager {
///     println!("{:?}: {:?}", result.request, result.new_tokens);
/// }
/// # Ok::<(), gruff::Error>(())
/// ```
///
/// Dropping it ends what is in progress.
pub struct BatchingManager<'a> {
    model: &'a AutoModelForCausalLM,
    commands: Option<Sender<Command>>,
    events: Receiver<Event>,
    worker: Option<JoinHandle<Result<(), gruff_engine::Error>>>,
    /// What is known of requests that have not ended: tokens of each answer, and how many are still in progress.
    open: HashMap<RequestId, Vec<BatchResult>>,
    unfinished: HashMap<RequestId, usize>,
    ready: Vec<BatchResult>,
    /// Why the worker is no more, once it was asked.
    stopped: Option<String>,
}

/// An answer that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchResult {
    /// Whose.
    pub request: RequestId,
    /// Which of the request's answers.
    pub index: usize,
    /// Its tokens.
    pub new_tokens: Vec<u32>,
    /// Why it ended; `None` for one that failed.
    pub finish_reason: Option<FinishReason>,
    /// What it cost.
    pub usage: Usage,
    /// Why it failed.
    pub error: Option<String>,
}

enum Command {
    Add(Box<Request>, Sender<Result<RequestId, gruff_engine::Error>>),
    Cancel(RequestId),
}

impl AutoModelForCausalLM {
    /// A manager that serves up to `max_sequences` sequences at once, on an engine of its own.
    ///
    /// # Errors
    /// As [`batching_manager_with`](Self::batching_manager_with).
    pub fn batching_manager(&self, max_sequences: usize) -> Result<BatchingManager<'_>> {
        self.batching_manager_with(EngineOptions { max_sequences, ..self.engine_options().clone() })
    }

    /// A manager on an engine made with `options`. For speculation on a model with recurrent state, let `rollback` be
    /// the most tokens that a draft has.
    ///
    /// # Errors
    /// [`Error::Engine`] when memory does not suffice or an option is out of range.
    pub fn batching_manager_with(&self, options: EngineOptions) -> Result<BatchingManager<'_>> {
        let engine = Engine::new(self.model().clone(), options)?;
        let (commands, inbox) = channel();
        let (outbox, events) = channel();
        let worker = std::thread::Builder::new()
            .name("gruff-batching".to_owned())
            .spawn(move || work(engine, &inbox, &outbox))
            .map_err(|error| Error::Option(format!("no thread can be started: {error}")))?;
        Ok(BatchingManager {
            model: self,
            commands: Some(commands),
            events,
            worker: Some(worker),
            open: HashMap::new(),
            unfinished: HashMap::new(),
            ready: Vec::new(),
            stopped: None,
        })
    }
}

/// Runs the engine while there is work, and waits for commands when there is none.
fn work(
    mut engine: Engine,
    inbox: &Receiver<Command>,
    outbox: &Sender<Event>,
) -> Result<(), gruff_engine::Error> {
    loop {
        loop {
            let command = if engine.is_idle() {
                match inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return Ok(()),
                }
            } else {
                match inbox.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            };
            match command {
                // Whoever has gone meanwhile does not wait for the answer.
                Command::Add(request, reply) => drop(reply.send(engine.submit(*request))),
                Command::Cancel(id) => drop(engine.cancel(id).map(|event| outbox.send(event))),
            }
        }
        for event in engine.step()? {
            if outbox.send(event).is_err() {
                return Ok(());
            }
        }
    }
}

impl BatchingManager<'_> {
    /// Adds a request.
    ///
    /// # Errors
    /// As [`AutoModelForCausalLM::generate`].
    pub fn add_request(&mut self, prompt: Vec<u32>, config: &GenerationConfig) -> Result<RequestId> {
        self.add_request_with_options(prompt, config, &GenerateOptions::default())
    }

    /// Adds a request with processors or criteria of its own.
    ///
    /// # Errors
    /// As [`AutoModelForCausalLM::generate`].
    pub fn add_request_with_options(
        &mut self,
        prompt: Vec<u32>,
        config: &GenerationConfig,
        options: &GenerateOptions<'_>,
    ) -> Result<RequestId> {
        let config = config.clone().or(self.model.generation_config());
        let requests = self.model.requests(std::slice::from_ref(&prompt), &config, options)?;
        let Some(request) = requests.into_iter().next() else {
            return Err(Error::Option("there is no prompt".to_owned()));
        };
        let answers = request.num_return_sequences;
        let (reply, answer) = channel();
        let command = Command::Add(Box::new(request), reply);
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(command).is_ok());
        let id = if sent { answer.recv().ok() } else { None };
        let Some(id) = id else { return Err(Error::Option(self.why_stopped())) };
        let id = id?;
        let result = |index| BatchResult {
            request: id,
            index,
            new_tokens: Vec::new(),
            finish_reason: None,
            usage: Usage::default(),
            error: None,
        };
        self.open.insert(id, (0..answers).map(result).collect());
        self.unfinished.insert(id, answers);
        Ok(id)
    }

    /// Ends a request; what it has so far comes as its result.
    pub fn cancel(&self, id: RequestId) {
        if let Some(commands) = &self.commands {
            // A worker that has stopped has nothing to cancel.
            let _ = commands.send(Command::Cancel(id));
        }
    }

    /// Requests that have not ended.
    pub fn in_progress(&self) -> usize {
        self.open.len()
    }

    /// The next event, waiting for it up to `timeout`; `None` when none came. Events seen here still count for the
    /// results.
    pub fn next_event(&mut self, timeout: Duration) -> Option<Event> {
        let event = self.events.recv_timeout(timeout).ok()?;
        self.take(&event);
        Some(event)
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Prompt { .. } | Event::PromptDetails { .. } | Event::Beams { .. } => {}
            Event::Token { request, index, id, .. } => {
                if let Some(result) = self.open.get_mut(request).and_then(|open| open.get_mut(*index)) {
                    result.new_tokens.push(*id);
                }
            }
            Event::Finished { request, index, reason, usage } => {
                let Some(open) = self.open.get_mut(request) else { return };
                if let Some(result) = open.get_mut(*index) {
                    result.finish_reason = Some(*reason);
                    result.usage = *usage;
                }
                let left = self.unfinished.get_mut(request).map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                if left == 0 || *reason == FinishReason::Cancelled {
                    self.close(*request, |result| {
                        result.finish_reason = result.finish_reason.or(Some(FinishReason::Cancelled));
                    });
                }
            }
            Event::Failed { request, message } => {
                self.close(*request, |result| result.error = Some(message.clone()));
            }
        }
    }

    /// Why the worker is no more.
    fn why_stopped(&mut self) -> String {
        match self.worker.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => self.stopped = Some(error.to_string()),
            Some(Err(panic)) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                self.stopped =
                    Some(format!("something in a step panicked: {}", text.unwrap_or("no message")));
            }
            Some(Ok(Ok(()))) | None => {}
        }
        let why = self.stopped.as_deref().unwrap_or("its engine is gone");
        format!("the batching manager has stopped; make another. {why}")
    }

    fn close(&mut self, id: RequestId, complete: impl Fn(&mut BatchResult)) {
        self.unfinished.remove(&id);
        let mut results = self.open.remove(&id).unwrap_or_default();
        results.iter_mut().for_each(complete);
        // Taken from the end.
        results.reverse();
        self.ready.splice(0..0, results);
    }
}

impl Iterator for BatchingManager<'_> {
    type Item = BatchResult;

    /// The next answer that has ended, waiting for it; `None` when no request is in progress.
    fn next(&mut self) -> Option<BatchResult> {
        loop {
            if let Some(result) = self.ready.pop() {
                return Some(result);
            }
            if self.open.is_empty() {
                return None;
            }
            match self.events.recv() {
                Ok(event) => self.take(&event),
                Err(_) => {
                    let why = self.why_stopped();
                    let mut ids: Vec<RequestId> = self.open.keys().copied().collect();
                    ids.sort_unstable();
                    for id in ids {
                        self.close(id, |result| result.error = Some(why.clone()));
                    }
                }
            }
        }
    }
}

impl Drop for BatchingManager<'_> {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(worker) = self.worker.take() {
            // A panic of the worker was reported by its thread; nobody is left to be told of an error.
            drop(worker.join());
        }
    }
}
