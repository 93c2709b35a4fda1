//! The decode loop: admit, plan, forward, sample, deliver.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use gruff_kernels::{DType, Step, StepSequence, sampling};
use gruff_models::{CacheOptions, Caches, Model};

use crate::error::refuse;
use crate::pages::Pool;
use crate::parked::{Parked, ParkingLot, Rewind};
use crate::plan::{Context, MemoryPlan, check_kv_dtype};
use crate::scheduler::{Share, plan};
use crate::sequence::Sequence;
use crate::{Error, Event, FinishReason, Request, RequestId, Result};

/// Choices for an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens a sequence may have.
    pub context: Context,
    /// Sequences in progress at once; further requests wait.
    pub max_sequences: usize,
    /// Tokens in a step at most: prompts go through in chunks of this size.
    pub step_tokens: usize,
    /// Tokens that the caches hold for all sequences together; `None` for every sequence at full context. With
    /// less, sequences that grow too long for it wait for each other.
    pub cache_tokens: Option<usize>,
    /// Number type of keys and values: f16, or f32 for exact results.
    pub kv_dtype: DType,
    /// Tokens that can be dropped again from recurrent state (speculation); 0 for plain decoding.
    pub rollback: usize,
    /// Memory that may be used, in bytes; `None` for what the system has available.
    pub memory: Option<u64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: Context::Auto,
            max_sequences: 1,
            step_tokens: 512,
            cache_tokens: None,
            kv_dtype: DType::F16,
            rollback: 0,
            memory: None,
        }
    }
}

/// Serves requests on one model: ragged batches, continuous admission, one step at a time.
///
/// A request's tokens depend on the request alone: the batch it shares a step with, the chunks its prompt was
/// cut into and what a cache held of it change nothing (bit for bit on the CPU).
pub struct Engine {
    model: Arc<dyn Model>,
    options: EngineOptions,
    memory: MemoryPlan,
    caches: Caches,
    pages: Pool,
    slots: Pool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    parked: ParkingLot,
    rewind: Rewind,
    next: u64,
}

impl Engine {
    /// Plans memory, takes it, and is ready for requests.
    ///
    /// # Errors
    /// [`Error::Memory`] when it does not fit, [`Error::Request`] for an option out of range.
    pub fn new(model: Arc<dyn Model>, options: EngineOptions) -> Result<Self> {
        check_kv_dtype(options.kv_dtype)?;
        if options.step_tokens == 0 {
            return refuse("step_tokens", "a step of 0 tokens computes nothing; ask for at least 1");
        }
        let memory = MemoryPlan::new(&*model, &options)?;
        let caches = model.new_caches(&CacheOptions {
            kv_dtype: options.kv_dtype,
            pages: memory.pages(),
            slots: options.max_sequences,
            rollback: options.rollback,
        })?;
        let recurrent = model.config().caches.is_recurrent();
        Ok(Self {
            pages: Pool::new(memory.pages()),
            slots: Pool::new(options.max_sequences),
            waiting: VecDeque::new(),
            running: Vec::new(),
            parked: ParkingLot::default(),
            rewind: Rewind { most: recurrent.then_some(options.rollback) },
            next: 0,
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

    /// Where memory goes.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Whether nothing is waiting or in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes a request in; its events come from [`step`](Self::step).
    ///
    /// # Errors
    /// [`Error::Request`] for an empty prompt, a prompt that leaves no room for an answer, an id outside the
    /// vocabulary, or a parameter out of range. Other requests are not touched.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        request.sampling.validate()?;
        let vocabulary = self.model.config().vocab_size;
        if request.prompt.is_empty() {
            return refuse("prompt", "it has no tokens; give at least one (a text, or a begin token)");
        }
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= vocabulary) {
            return refuse("prompt", format!("token id {id} is outside the vocabulary of {vocabulary}"));
        }
        if request.prompt.len() >= self.memory.context {
            return refuse(
                "prompt",
                format!(
                    "its {} tokens leave no room in a context of {}; shorten it or choose a larger --ctx",
                    request.prompt.len(),
                    self.memory.context
                ),
            );
        }
        if request.max_new_tokens == Some(0) {
            return refuse("max_new_tokens", "0 new tokens are nothing to compute; ask for at least 1");
        }
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.push_back(Sequence::new(id, request));
        Ok(id)
    }

    /// Ends a request; `None` if it is not known or has ended already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let sequence = if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(at)?
        } else {
            let at = self.running.iter().position(|sequence| sequence.id == id)?;
            self.running.remove(at)
        };
        let usage = sequence.usage();
        self.park(sequence);
        Some(Event::Finished { request: id, reason: FinishReason::Cancelled, usage })
    }

    /// Computes one step and says what it brought; nothing when idle.
    ///
    /// # Errors
    /// Never for one request's fault (that is an [`Event::Failed`]); only when the engine cannot go on.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.admit();
        let mut shares = plan(&self.running, self.options.step_tokens);
        self.provide_pages(&mut shares);
        if shares.is_empty() {
            return Ok(Vec::new());
        }
        match self.forward(&shares) {
            Ok(chosen) => Ok(self.deliver(&shares, chosen)),
            Err(error) => Ok(self.fail(&shares, &error)),
        }
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

    /// Moves waiting requests to the running ones while there is a slot, continuing parked ones.
    fn admit(&mut self) {
        while self.running.len() < self.options.max_sequences {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            if let Some((parked, past)) = self.parked.best(&sequence.tokens, self.rewind) {
                sequence.admit(parked.slot, parked.pages, past);
            } else if let Some(slot) = self.take_slot() {
                sequence.admit(slot, Vec::new(), 0);
            } else {
                self.waiting.push_front(sequence);
                return;
            }
            self.running.push(sequence);
        }
    }

    fn take_slot(&mut self) -> Option<u32> {
        if self.slots.available() == 0 {
            self.evict();
        }
        self.slots.take(1)?.pop()
    }

    /// Gives back what the least recently used parked sequence holds.
    fn evict(&mut self) -> bool {
        let Some(parked) = self.parked.evict() else { return false };
        self.pages.give_back(parked.pages);
        self.slots.give_back([parked.slot]);
        true
    }

    /// Gives every share its pages; where there are none left, parked sequences lose theirs first, then the
    /// youngest running sequence goes back to waiting (and computes the same tokens again later).
    fn provide_pages(&mut self, shares: &mut Vec<Share>) {
        let mut at = 0;
        while let Some(share) = shares.get(at).copied() {
            let sequence = &self.running[share.sequence];
            let missing = sequence.missing_pages(sequence.past + share.tokens);
            if let Some(pages) = self.pages.take(missing) {
                self.running[share.sequence].pages.extend(pages);
                at += 1;
            } else if !self.evict() {
                let youngest = self.running.len() - 1;
                self.preempt(youngest);
                shares.retain(|share| share.sequence != youngest);
            }
        }
    }

    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        self.pages.give_back(std::mem::take(&mut sequence.pages));
        self.slots.give_back(sequence.slot.take());
        sequence.past = 0;
        self.waiting.push_front(sequence);
    }

    /// Puts the shares through the model and draws a token for every sequence whose last token was among
    /// them; a sequence whose logits are of no use has an error of its own.
    fn forward(&mut self, shares: &[Share]) -> Result<Vec<Option<Result<u32>>>> {
        let mut tokens = Vec::new();
        let mut sequences = Vec::with_capacity(shares.len());
        let mut output_rows = Vec::new();
        let mut specs = Vec::new();
        for share in shares {
            let sequence = &self.running[share.sequence];
            let end = sequence.past + share.tokens;
            tokens.extend_from_slice(&sequence.tokens[sequence.past..end]);
            sequences.push(StepSequence {
                len: share.tokens,
                past: sequence.past,
                slot: sequence.slot.unwrap_or_default() as usize,
                pages: sequence.pages.clone(),
            });
            if end == sequence.tokens.len() {
                output_rows.push(tokens.len() as u32 - 1);
                specs.push(sequence.request.sampling.spec(&sequence.tokens, end));
            }
        }
        let mut chosen: Vec<_> = shares.iter().map(|_| None).collect();
        let step = Step::text(tokens, sequences)?.with_output_rows(output_rows)?;
        let logits = self.model.forward(&step, &mut self.caches)?;
        if specs.is_empty() {
            return Ok(chosen);
        }
        let ids = logits.device().scratch(DType::I32, &[specs.len()])?;
        sampling::sample(&logits, &specs, &ids)?;
        let mut ids = ids.to_vec_i32()?.into_iter();
        for (share, chosen) in shares.iter().zip(&mut chosen) {
            let sequence = &self.running[share.sequence];
            if sequence.past + share.tokens < sequence.tokens.len() {
                continue;
            }
            let id = ids.next().unwrap_or(-1);
            *chosen = Some(u32::try_from(id).map_err(|_| Error::Logits { position: sequence.tokens.len() }));
        }
        Ok(chosen)
    }

    /// Takes the new tokens in, tells of them, and parks what has ended.
    fn deliver(&mut self, shares: &[Share], chosen: Vec<Option<Result<u32>>>) -> Vec<Event> {
        let mut events = Vec::with_capacity(shares.len());
        let mut ended = Vec::new();
        let mut failed = Vec::new();
        for (share, chosen) in shares.iter().zip(chosen) {
            let sequence = &mut self.running[share.sequence];
            let request = sequence.id;
            sequence.past += share.tokens;
            match chosen {
                None => {
                    let total = sequence.tokens.len();
                    events.push(Event::Prompt { request, done: sequence.past, total });
                }
                Some(Ok(id)) => {
                    events.push(Event::Token { request, id });
                    if let Some(reason) = sequence.push(id, self.memory.context) {
                        events.push(Event::Finished { request, reason, usage: sequence.usage() });
                        ended.push(share.sequence);
                    }
                }
                Some(Err(error)) => failed.push((share.sequence, error)),
            }
        }
        // From the last to the first: an index is good as long as only later ones have gone.
        let mut gone: Vec<_> = ended.into_iter().map(|index| (index, None)).collect();
        gone.extend(failed.into_iter().map(|(index, error)| (index, Some(error))));
        gone.sort_unstable_by_key(|(index, _)| Reverse(*index));
        for (index, error) in gone {
            match error {
                Some(error) => events.push(self.drop_failed(index, &error)),
                None => {
                    let sequence = self.running.remove(index);
                    self.park(sequence);
                }
            }
        }
        events
    }

    fn fail(&mut self, shares: &[Share], error: &Error) -> Vec<Event> {
        shares.iter().rev().map(|share| self.drop_failed(share.sequence, error)).collect()
    }

    /// Ends a sequence whose caches are not to be relied on.
    fn drop_failed(&mut self, index: usize, error: &Error) -> Event {
        let sequence = self.running.remove(index);
        self.pages.give_back(sequence.pages);
        self.slots.give_back(sequence.slot);
        Event::Failed { request: sequence.id, message: error.to_string() }
    }

    /// Keeps what an ended sequence holds for a request that continues it.
    fn park(&mut self, mut sequence: Sequence) {
        match sequence.slot {
            Some(slot) if sequence.past > 0 => {
                sequence.tokens.truncate(sequence.past);
                self.parked.park(Parked { tokens: sequence.tokens, pages: sequence.pages, slot });
            }
            slot => {
                self.pages.give_back(sequence.pages);
                self.slots.give_back(slot);
            }
        }
    }
}
