//! The decode loop: admit, plan, forward, sample, deliver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use gruff_models::{CacheOptions, Caches, Model, Steps};

use crate::check::Checker;
use crate::disk::{DiskCache, Saving};
use crate::error::refuse;
use crate::job::Job;
use crate::keep::Keeper;
use crate::late::{Late, Step};
use crate::pages::Pool;
use crate::plan::MemoryPlan;
use crate::prefix::PrefixCache;
use crate::rounds::Rounds;
use crate::{EngineOptions, EngineStats, Event, FinishReason, Request, RequestId, Result};

/// Serves requests on one model: ragged batches, continuous admission, one step at a time.
///
/// A request is one sequence or several that belong together: answers to one prompt, beams, a guided answer and what
/// it is guided by. Sequences that fork share the pages of what they have in common; a shared page is copied when one
/// of them writes to it.
///
/// A request's tokens depend on the request alone: the batch it shares a step with, the chunks its prompt was
/// cut into and what a cache held of it change nothing (bit for bit on the CPU).
///
/// On a device that runs behind its callers a step begins before the tokens of the one before are read
/// ([`EngineOptions::late_ids`]): their events come a step later.
pub struct Engine {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) options: EngineOptions,
    pub(crate) memory: MemoryPlan,
    pub(crate) caches: Caches,
    pub(crate) pages: Pool,
    pub(crate) slots: Pool,
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) running: Vec<Job>,
    pub(crate) prefix: PrefixCache,
    pub(crate) keeper: Keeper,
    pub(crate) disk: Option<DiskCache>,
    /// A file that is being written.
    pub(crate) saving: Option<Saving>,
    /// The prefix cache's clock, when all of it that is worth it was in files.
    pub(crate) saved_at: Option<u64>,
    /// Of the model, when what the prefix cache holds was computed.
    pub(crate) revision: u64,
    next: u64,
    /// Whose turn it is among clients that wait.
    pub(crate) rounds: Rounds,
    /// Counts steps.
    pub(crate) turn: usize,
    pub(crate) preemptions: u64,
    /// Sequences in the last step.
    pub(crate) in_step: usize,
    /// Whether steps may begin before the tokens of the one before are read.
    pub(crate) late_ids: bool,
    /// Tokens that the last step chose and nobody has read yet.
    pub(crate) late: Option<Late>,
}

/// Gets kernels ready, where they are to be compiled.
fn prepare(model: &dyn Model, options: &EngineOptions, memory: &MemoryPlan) -> Result<()> {
    let (sequences, tokens) = (options.max_sequences, memory.step_tokens.max(options.max_sequences));
    let started = Instant::now();
    let compiled = gruff_models::prepare(model, &Steps { kv_dtype: options.kv_dtype, sequences, tokens })?;
    if compiled > 0 {
        tracing::info!(
            "{compiled} kernels compiled for {} in {:.1?}",
            model.device().name(),
            started.elapsed()
        );
    }
    Ok(())
}

impl Engine {
    /// Plans memory, takes it, and is ready for requests.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) when it does not fit, [`Error::Request`](crate::Error::Request) for an
    /// option out of range.
    pub fn new(model: Arc<dyn Model>, options: EngineOptions) -> Result<Self> {
        if options.step_tokens == Some(0) {
            return refuse("step_tokens", "a step of 0 tokens computes nothing; ask for at least 1");
        }
        if options.mixed_tokens == Some(0) {
            return refuse(
                "mixed_tokens",
                "prompts would wait for ever for answers to end; ask for at least 1",
            );
        }
        let memory = MemoryPlan::new(&*model, &options)?;
        prepare(&*model, &options, &memory)?;
        let caches = model.new_caches(&CacheOptions {
            kv_dtype: options.kv_dtype,
            pages: memory.pages(),
            slots: options.max_sequences,
            rollback: options.rollback,
        })?;
        let keeper = Keeper::new(&model.config().caches, &options, &memory);
        let disk = options.prefix_cache_folder.as_ref().filter(|_| options.prefix_cache != Some(0));
        let disk = disk.map(|folder| DiskCache::open(folder, &*model, &options)).transpose()?;
        Ok(Self {
            pages: Pool::new(memory.pages()),
            slots: Pool::new(options.max_sequences),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefix: PrefixCache::new(keeper.recurrent, keeper.snapshot_budget),
            keeper,
            disk,
            saving: None,
            saved_at: None,
            revision: model.revision(),
            next: 0,
            rounds: Rounds::default(),
            turn: 0,
            preemptions: 0,
            in_step: 0,
            late_ids: options.late_ids.unwrap_or(model.device().runs_behind()),
            late: None,
            model,
            options,
            memory,
            caches,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// What it was made with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Where memory goes.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What it asks of requests.
    pub fn checker(&self) -> Checker {
        Checker {
            model: self.model.clone(),
            context: self.memory.context,
            max_sequences: self.options.max_sequences,
            rollback: self.keeper.rollback,
            deterministic: self.options.deterministic,
        }
    }

    /// What it did so far, and what it holds.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages: self.memory.pages(),
            free_pages: self.pages.available(),
            page_bytes: self.model.config().caches.bytes_per_page(self.options.kv_dtype) as u64,
            preemptions: self.preemptions,
            prefix_cache: self.prefix.stats(),
        }
    }

    /// Checks that every page has exactly as many owners as hold it, and every slot one; for tests.
    ///
    /// # Errors
    /// What is held otherwise.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        self.prefix.audit()?;
        let members = || self.running.iter().chain(&self.waiting).flat_map(|job| &job.members);
        let pages = members().flat_map(|member| member.pages.iter().copied()).chain(self.prefix.pages());
        let pages = pages.chain(self.saving.iter().flat_map(|saving| saving.pages().iter().copied()));
        for (what, pool, held) in [
            ("page", &self.pages, pages.collect::<Vec<u32>>()),
            ("slot", &self.slots, members().filter_map(|member| member.slot).collect()),
        ] {
            let mut owners = vec![0; pool.owners().len()];
            for number in held {
                *owners.get_mut(number as usize).ok_or(format!("{what} {number} was never given"))? += 1;
            }
            if let Some(wrong) = (0..owners.len()).find(|number| owners[*number] != pool.owners()[*number]) {
                let (held, known) = (owners[wrong], pool.owners()[wrong]);
                return Err(format!("{what} {wrong} is held {held} times, and the pool knows of {known}"));
            }
        }
        Ok(())
    }

    /// Whether nothing is waiting or in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes a request in; its events come from [`step`](Self::step).
    ///
    /// # Errors
    /// [`Error::ContextLength`](crate::Error::ContextLength) for a prompt that leaves no room for an answer,
    /// [`Error::Request`](crate::Error::Request) for an empty one, an id outside the vocabulary, a parameter out of
    /// range, or parameters that exclude each other. Other requests are not touched.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.checker().check(&request)?;
        let id = RequestId(self.next);
        let job = Job::new(id, request, self.memory.context)?;
        self.next += 1;
        self.queue(job);
        Ok(id)
    }

    /// Ends a request; `None` if it is not known or has ended already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let job = if let Some(at) = self.waiting.iter().position(|job| job.id == id) {
            self.unqueue(at)?
        } else {
            let at = self.running.iter().position(|job| job.id == id)?;
            self.running.remove(at)
        };
        let (usage, index) = (job.usage(), job.members.first().map_or(0, |member| member.index));
        self.retire(job);
        Some(Event::Finished { request: id, index, reason: FinishReason::Cancelled, usage })
    }

    /// Why no request can be answered any more, if so: the device is lost. The requests that met it have failed.
    pub fn lost(&self) -> Option<&str> {
        self.model.devices().into_iter().find_map(|device| device.lost())
    }

    /// Computes one step and says what it brought; nothing when idle.
    ///
    /// # Errors
    /// Never for one request's fault (that is an [`Event::Failed`]); only when the engine cannot go on.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.turn = self.turn.wrapping_add(1);
        self.admit()?;
        let late = self.may_be_late();
        if !late {
            self.arrive(&mut events);
        }
        self.draft(&mut events);
        let mut shares = self.shares();
        if !self.provide_pages(&mut shares, &mut events)? {
            // Answers may have ended, whose pages others then have.
            self.arrive(&mut events);
            shares = self.shares();
            self.provide_pages(&mut shares, &mut events)?;
        }
        if shares.is_empty() {
            self.arrive(&mut events);
            return Ok(events);
        }
        self.in_step = shares.len();
        let forward = self.forward(&shares);
        match forward.and_then(|rows| if late { rows.read_later() } else { rows.read().map(Step::Read) }) {
            Ok(Step::Read(rows)) => self.deliver(&shares, &rows, &mut events)?,
            Ok(Step::Late(rows)) => self.go_on(&shares, rows, &mut events),
            Err(error) => self.fail(&shares, &error.to_string(), &mut events),
        }
        Ok(events)
    }

    /// Runs until idle, handing every event to `on_event`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn run(&mut self, mut on_event: impl FnMut(&Event)) -> Result<()> {
        while !self.is_idle() {
            self.step()?.iter().for_each(&mut on_event);
        }
        Ok(())
    }
}
