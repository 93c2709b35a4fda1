//! The decode loop: admit, plan, forward, sample, deliver.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use gruff_kernels::{DType, KvDtype, PAGE_LEN, Step, StepSequence, Tensor, sampling};
use gruff_models::{AttnImplementation, CacheOptions, Caches, ForwardOptions, LoraScales, Model};

use crate::error::refuse;
use crate::job::{Job, Mode};
use crate::pages::Pool;
use crate::parked::{Parked, ParkingLot, Rewind};
use crate::plan::{Context, MemoryPlan};
use crate::scheduler::{Load, Share, plan};
use crate::sequence::Sequence;
use crate::states::{StepStates, TokenStates};
use crate::{Event, FinishReason, Request, RequestId, Result, SamplingParams};

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
    /// How keys and values are kept: f16, f32 for exact results, or q8_0 in half the room.
    pub kv_dtype: KvDtype,
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
            kv_dtype: KvDtype::F16,
            rollback: 0,
            memory: None,
        }
    }
}

/// Serves requests on one model: ragged batches, continuous admission, one step at a time.
///
/// A request is one sequence or several that belong together: answers to one prompt, beams, a guided answer and what
/// it is guided by. Sequences that fork share the pages of what they have in common; a shared page is copied when one
/// of them writes to it.
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
    waiting: VecDeque<Job>,
    pub(crate) running: Vec<Job>,
    parked: ParkingLot,
    rewind: Rewind,
    next: u64,
    /// What [`Model::revision`] was when the caches were last filled.
    revision: u64,
    /// Counts the steps that not all requests could share.
    turn: usize,
}

impl Engine {
    /// Plans memory, takes it, and is ready for requests.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) when it does not fit, [`Error::Request`](crate::Error::Request) for an
    /// option out of range.
    pub fn new(model: Arc<dyn Model>, options: EngineOptions) -> Result<Self> {
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
            revision: model.revision(),
            turn: 0,
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

    /// Whether nothing is waiting or in progress.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes a request in; its events come from [`step`](Self::step).
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request) for an empty prompt, a prompt that leaves no room for an answer, an
    /// id outside the vocabulary, a parameter out of range, or parameters that exclude each other. Other requests are
    /// not touched.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.check(&request)?;
        let id = RequestId(self.next);
        let job = Job::new(id, request, self.memory.context)?;
        self.next += 1;
        self.waiting.push_back(job);
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<()> {
        let vocabulary = self.model.config().vocab_size;
        request.sampling.validate()?;
        request.sampling.validate_ids(vocabulary)?;
        self.check_prompt("prompt", &request.prompt)?;
        if request.prompt.is_empty() {
            return refuse("prompt", "it has no tokens; give at least one (a text, or a begin token)");
        }
        if request.max_new_tokens == Some(0) {
            return refuse("max_new_tokens", "0 new tokens are nothing to compute; ask for at least 1");
        }
        if let Some(most) = request.max_new_tokens.filter(|most| *most < request.sampling.min_new_tokens) {
            return refuse(
                "min_new_tokens",
                format!("{} is larger than max_new_tokens ({most})", request.sampling.min_new_tokens),
            );
        }
        if request.num_return_sequences == 0 {
            return refuse("num_return_sequences", "0 answers are nothing to compute; ask for at least 1");
        }
        if let Some(beams) = &request.beams {
            beams.validate(request.num_return_sequences)?;
        }
        self.check_combination(request)?;
        if let Some(scales) = &request.adapters {
            self.model.adapters().check(scales).or_else(|fault| refuse("adapters", fault.to_string()))?;
        }
        let width = Job::width_of(request);
        if width > self.options.max_sequences {
            return refuse(
                if request.beams.is_some() { "num_beams" } else { "num_return_sequences" },
                format!(
                    "the request has {width} sequences and the engine room for {}; make it with a larger \
                     max_sequences",
                    self.options.max_sequences
                ),
            );
        }
        Ok(())
    }

    fn check_prompt(&self, field: &'static str, prompt: &[u32]) -> Result<()> {
        let vocabulary = self.model.config().vocab_size;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocabulary) {
            return refuse(field, format!("token id {id} is outside the vocabulary of {vocabulary}"));
        }
        if prompt.len() >= self.memory.context {
            return refuse(
                field,
                format!(
                    "its {} tokens leave no room in a context of {}; shorten it or choose a larger --ctx",
                    prompt.len(),
                    self.memory.context
                ),
            );
        }
        Ok(())
    }

    /// What is told from inside the model, with whom it cannot be told.
    fn check_states(&self, request: &Request) -> Result<()> {
        let outputs = request.outputs;
        if !outputs.reads_states() {
            return Ok(());
        }
        let field = if outputs.attentions { "output_attentions" } else { "output_hidden_states" };
        if request.beams.is_some() {
            return refuse(field, "a search with beams does not keep it; leave num_beams out");
        }
        if request.speculation.is_some() {
            return refuse(field, "steps that verify drafts do not keep it; leave speculation out");
        }
        if !outputs.attentions {
            return Ok(());
        }
        match self.model.attn_implementation() {
            AttnImplementation::Eager => Ok(()),
            AttnImplementation::Auto => {
                tracing::warn!("output_attentions: this answer uses eager attention, which is slow");
                Ok(())
            }
            AttnImplementation::Flash => refuse(
                field,
                "flash attention has no weights to show; choose eager or auto as attn_implementation",
            ),
        }
    }

    fn check_combination(&self, request: &Request) -> Result<()> {
        self.check_states(request)?;
        if let Some(guidance) = &request.guidance {
            if !guidance.scale.is_finite() {
                return refuse("guidance_scale", format!("{} has to be a finite number", guidance.scale));
            }
            self.check_prompt("negative_prompt_ids", &guidance.negative_prompt)?;
        }
        let Some(speculation) = &request.speculation else { return Ok(()) };
        if request.beams.is_some() {
            return refuse("speculation", "drafts do not serve a search with beams; leave one of them out");
        }
        if speculation.most() == 0 {
            return refuse("speculation", "a draft of 0 tokens drafts nothing; ask for at least 1");
        }
        if self.rewind.most == Some(0) {
            return refuse(
                "speculation",
                format!(
                    "this model has recurrent state: make the engine with a rollback of {} tokens",
                    speculation.most()
                ),
            );
        }
        Ok(())
    }

    /// Ends a request; `None` if it is not known or has ended already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let job = if let Some(at) = self.waiting.iter().position(|job| job.id == id) {
            self.waiting.remove(at)?
        } else {
            let at = self.running.iter().position(|job| job.id == id)?;
            self.running.remove(at)
        };
        let (usage, index) = (job.usage(), job.members.first().map_or(0, |member| member.index));
        self.retire(job);
        Some(Event::Finished { request: id, index, reason: FinishReason::Cancelled, usage })
    }

    /// Computes one step and says what it brought; nothing when idle.
    ///
    /// # Errors
    /// Never for one request's fault (that is an [`Event::Failed`]); only when the engine cannot go on.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        self.admit();
        self.draft(&mut events);
        let mut shares = plan(&self.loads(), self.options.step_tokens);
        self.take_turns(&mut shares);
        self.provide_pages(&mut shares, &mut events)?;
        if shares.is_empty() {
            return Ok(events);
        }
        match self.forward(&shares) {
            Ok(rows) => self.deliver(&shares, &rows, &mut events)?,
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

    /// Moves waiting requests to the running ones while there are slots for all of their sequences, continuing
    /// parked ones.
    fn admit(&mut self) {
        self.notice_changes();
        let mut used: usize = self.running.iter().map(Job::width).sum();
        while let Some(mut job) = self.waiting.pop_front() {
            used += job.width();
            if used > self.options.max_sequences {
                self.waiting.push_front(job);
                return;
            }
            for member in &mut job.members {
                // What is to be seen of a prompt has to be computed.
                let sees = member.states.is_some();
                let best =
                    (!sees).then(|| self.parked.best(&member.tokens, member.adapters.as_ref(), self.rewind));
                if let Some((parked, past)) = best.flatten() {
                    member.admit(parked.slot, parked.pages, past, parked.head);
                } else if let Some(slot) = self.take_slot() {
                    member.admit(slot, Vec::new(), 0, 0);
                }
                member.revision = self.revision;
            }
            self.running.push(job);
        }
    }

    /// Forgets what earlier requests have left once hooks, modules, weights or adapters come or go: another model
    /// computed it. What is in progress goes on, and leaves nothing.
    fn notice_changes(&mut self) {
        let revision = self.model.revision();
        if revision != self.revision {
            self.revision = revision;
            while self.evict() {}
        }
    }

    pub(crate) fn take_slot(&mut self) -> Option<u32> {
        while self.slots.available() == 0 {
            if !self.evict() {
                return None;
            }
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

    /// Has the drafters of answers in progress draft.
    fn draft(&mut self, events: &mut Vec<Event>) {
        let (context, rewind) = (self.memory.context, self.rewind);
        let vocabulary = self.model.config().vocab_size;
        let mut failed = Vec::new();
        for (index, job) in self.running.iter_mut().enumerate() {
            let stride = job.stride();
            for members in job.members.chunks_mut(stride) {
                // Drafts of a step that it had no part in are still to be verified.
                if members.iter().any(|member| !member.decoding() || !member.drafts.is_empty()) {
                    continue;
                }
                let Some((member, companion)) = members.split_first_mut() else { continue };
                // The last token of a step is the model's own: there is no use in drafting it.
                let room = member.max_length().min(context).saturating_sub(member.tokens.len() + 1);
                let most = rewind.most.map_or(room, |most| room.min(most));
                let Some(drafter) = member.drafter.as_mut().filter(|_| most > 0) else { continue };
                match drafter.draft(&member.tokens, most) {
                    Ok(mut drafts) => {
                        drafts.truncate(most);
                        let known = drafts.iter().take_while(|id| (**id as usize) < vocabulary).count();
                        drafts.truncate(known);
                        companion.iter_mut().for_each(|companion| companion.drafts.clone_from(&drafts));
                        member.drafts = drafts;
                    }
                    Err(error) => failed.push((index, error.to_string())),
                }
            }
        }
        failed.dedup_by_key(|(index, _)| *index);
        for (index, message) in failed.into_iter().rev() {
            self.drop_failed(index, message, events);
        }
    }

    fn loads(&self) -> Vec<Load> {
        let members = |(index, job): (usize, &Job)| {
            let loads =
                job.members.iter().enumerate().map(|(member, sequence)| Load::of(index, member, sequence));
            loads.collect::<Vec<_>>()
        };
        self.running.iter().enumerate().flat_map(members).collect()
    }

    /// Requests that look inside the model take turns with those that do not, or look at something else: attention in
    /// plain code differs in the last bits, and a request's tokens do not depend on others.
    fn take_turns(&mut self, shares: &mut Vec<Share>) {
        let looks = |share: &Share| {
            let outputs = self.running[share.job].request.outputs;
            (outputs.hidden_states, outputs.attentions)
        };
        let mut kinds: Vec<_> = shares.iter().map(looks).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > 1 {
            let kind = kinds[self.turn % kinds.len()];
            shares.retain(|share| looks(share) == kind);
            self.turn = self.turn.wrapping_add(1);
        }
    }

    /// Gives every share pages of its own to write to; where there are none left, parked sequences lose theirs first,
    /// then the youngest request goes back to waiting (and computes the same tokens again later).
    fn provide_pages(&mut self, shares: &mut Vec<Share>, events: &mut Vec<Event>) -> Result<()> {
        let mut at = 0;
        while let Some(share) = shares.get(at).copied() {
            let sequence = &mut self.running[share.job].members[share.member];
            let (past, end) = (sequence.past, sequence.past + share.tokens);
            let written = past / PAGE_LEN..sequence.pages.len().min(end.div_ceil(PAGE_LEN));
            let shared: Vec<usize> =
                written.filter(|index| self.pages.is_shared(sequence.pages[*index])).collect();
            if let Some(mut fresh) = self.pages.take(shared.len() + sequence.missing_pages(end)) {
                for index in shared {
                    let Some(own) = fresh.pop() else { break };
                    let other = std::mem::replace(&mut sequence.pages[index], own);
                    if index * PAGE_LEN < past {
                        self.caches.copy_page(other, own)?;
                    }
                    self.pages.give_back([other]);
                }
                sequence.pages.extend(fresh);
                at += 1;
            } else if !self.evict() {
                let youngest = self.running.len() - 1;
                if youngest == 0 {
                    let message = format!(
                        "the caches hold {} tokens, which the {} sequences of this request outgrow; ask for fewer \
                         of them or for larger caches",
                        self.memory.cache_tokens,
                        self.running[0].members.len()
                    );
                    self.drop_failed(0, message, events);
                } else {
                    self.preempt(youngest);
                }
                shares.retain(|share| share.job != youngest);
                at = at.min(shares.len());
            }
        }
        Ok(())
    }

    fn preempt(&mut self, index: usize) {
        let mut job = self.running.remove(index);
        for member in &mut job.members {
            self.pages.give_back(std::mem::take(&mut member.pages));
            self.slots.give_back(member.slot.take());
            (member.past, member.head) = (0, 0);
            member.drafts.clear();
            member.rows.clear();
            member.states = member.states.as_ref().map(|_| TokenStates::default());
        }
        self.waiting.push_front(job);
    }

    /// Puts the shares through the model. Where the device chooses the tokens by itself, it does.
    fn forward(&mut self, shares: &[Share]) -> Result<Rows> {
        let mut tokens = Vec::new();
        let mut sequences = Vec::with_capacity(shares.len());
        let mut output_rows = Vec::new();
        let mut specs = Vec::new();
        let mut ranges = Vec::with_capacity(shares.len());
        let mut any_fused = false;
        for share in shares {
            let job = &self.running[share.job];
            let sequence = &job.members[share.member];
            let (past, known) = (sequence.past, sequence.tokens.len());
            let end = past + share.tokens;
            tokens.extend_from_slice(&sequence.tokens[past..end.min(known)]);
            tokens.extend_from_slice(&sequence.drafts[..end.saturating_sub(known)]);
            sequences.push(StepSequence {
                len: share.tokens,
                past,
                slot: sequence.slot.unwrap_or_default() as usize,
                pages: sequence.pages.clone(),
            });
            let first_row = output_rows.len();
            if end >= known {
                let count = end - known + 1;
                output_rows.extend((tokens.len() - count..tokens.len()).map(|row| row as u32));
                let alone = matches!(job.mode, Mode::Separate { .. }) && job.guidance.is_none();
                let fused = alone && sequence.is_fused(job.request.outputs);
                any_fused |= fused;
                for drafts in 0..count {
                    specs.push(match drafts {
                        _ if !fused => SamplingParams::default().spec(&[]),
                        0 => sequence.sampling.spec(&sequence.tokens),
                        _ => sequence
                            .sampling
                            .spec(&[sequence.tokens.as_slice(), &sequence.drafts[..drafts]].concat()),
                    });
                }
            }
            ranges.push(first_row..output_rows.len());
        }
        let step = Step::text(tokens, sequences)?.with_output_rows(output_rows)?;
        let options = self.forward_options(shares);
        let output = self.model.forward_with(&step, &mut self.caches, &options)?;
        if let Some(states) = StepStates::of(&output, step.len())? {
            self.collect(shares, &states)?;
        }
        let logits = output.logits;
        let mut ids = None;
        if any_fused {
            let chosen = logits.device().scratch(DType::I32, &[specs.len()])?;
            sampling::sample(&logits, &specs, &chosen)?;
            ids = Some(chosen.to_vec_i32()?);
        }
        Ok(Rows { logits, ranges, ids })
    }

    /// What the shares' requests, which look at the same, ask of the model.
    fn forward_options(&self, shares: &[Share]) -> ForwardOptions {
        let outputs = shares.first().map(|share| self.running[share.job].request.outputs).unwrap_or_default();
        ForwardOptions {
            output_hidden_states: outputs.hidden_states,
            output_attentions: outputs.attentions,
            attn_implementation: outputs.attentions.then_some(AttnImplementation::Eager),
            adapters: self.adapters(shares),
            ..ForwardOptions::default()
        }
    }

    /// Hands each sequence what the step has of the tokens that lead to its next one.
    fn collect(&mut self, shares: &[Share], step: &StepStates) -> Result<()> {
        let mut start = 0;
        for (index, share) in shares.iter().enumerate() {
            let member = &mut self.running[share.job].members[share.member];
            let rows = start..start + share.tokens;
            start = rows.end;
            let wanted = (member.past + share.tokens).saturating_sub(member.past.max(member.leading()));
            if let Some(states) = member.states.as_mut().filter(|_| wanted > 0) {
                states.collect(step, index, rows, wanted)?;
            }
        }
        Ok(())
    }

    /// The scales of adapters for each share, where any request has scales of its own.
    fn adapters(&self, shares: &[Share]) -> Option<Vec<LoraScales>> {
        let own = |share: &Share| self.running[share.job].members[share.member].adapters.as_ref();
        shares.iter().any(|share| own(share).is_some()).then(|| {
            let default = self.model.adapters().scales();
            shares.iter().map(|share| own(share).unwrap_or(&default).clone()).collect()
        })
    }

    /// Ends the requests of all shares, whose caches are not to be relied on.
    fn fail(&mut self, shares: &[Share], message: &str, events: &mut Vec<Event>) {
        let mut jobs: Vec<usize> = shares.iter().map(|share| share.job).collect();
        jobs.dedup();
        for index in jobs.into_iter().rev() {
            self.drop_failed(index, message.to_owned(), events);
        }
    }

    fn drop_failed(&mut self, index: usize, message: String, events: &mut Vec<Event>) {
        let job = self.running.remove(index);
        events.push(Event::Failed { request: job.id, message });
        self.discard(job);
    }

    /// Gives back what a request holds.
    pub(crate) fn discard(&mut self, job: Job) {
        job.members.into_iter().for_each(|member| self.release(member));
    }

    /// Gives back what a sequence holds.
    pub(crate) fn release(&mut self, sequence: Sequence) {
        self.pages.give_back(sequence.pages);
        self.slots.give_back(sequence.slot);
    }

    /// Keeps what the answers of an ended request hold for requests that continue them.
    pub(crate) fn retire(&mut self, job: Job) {
        match job.mode {
            Mode::Separate { .. } => {
                let stride = job.stride();
                job.members.into_iter().enumerate().for_each(|(place, member)| {
                    if place % stride == 0 { self.park(member) } else { self.release(member) }
                });
            }
            Mode::Beams { .. } => self.discard(job),
        }
    }

    /// Keeps what an ended sequence holds for a request that continues it.
    pub(crate) fn park(&mut self, mut sequence: Sequence) {
        match sequence.slot {
            // What eager attention or another model has computed is not what others would find.
            Some(slot)
                if sequence.past > 0 && sequence.states.is_none() && sequence.revision == self.revision =>
            {
                sequence.tokens.truncate(sequence.past);
                let head = sequence.head;
                let Sequence { tokens, pages, adapters, .. } = sequence;
                self.parked.park(Parked { tokens, pages, slot, head, adapters });
            }
            _ => self.release(sequence),
        }
    }

    /// A copy of a sequence that shares its pages and has a copy of its state.
    pub(crate) fn fork(&mut self, sequence: &Sequence, index: usize) -> Result<Sequence> {
        let mut fork = sequence.fork(index);
        let (Some(from), Some(to)) = (sequence.slot, self.take_slot()) else {
            return Err(crate::Error::Memory(
                "no slot is left for another sequence of this request".to_owned(),
            ));
        };
        self.caches.copy_slot(from, to)?;
        let pages = &sequence.pages[..sequence.past.div_ceil(PAGE_LEN).min(sequence.pages.len())];
        self.pages.share(pages);
        fork.slot = Some(to);
        fork.pages = pages.to_vec();
        (fork.past, fork.head) = (sequence.past, sequence.head);
        Ok(fork)
    }
}

/// What a step computed.
pub(crate) struct Rows {
    /// `[R, vocab_size]`.
    pub(crate) logits: Tensor,
    /// For each share, its rows: the one behind its last token and those behind its drafts.
    pub(crate) ranges: Vec<Range<usize>>,
    /// For each row, the token that the device chose, where it chooses by itself.
    pub(crate) ids: Option<Vec<i32>>,
}
