//! One sequence of a request on its way through the engine.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use gruff_kernels::PAGE_LEN;
use gruff_models::LoraScales;

use crate::logits::{ProcessorList, TokenContext};
use crate::speculation::Drafter;
use crate::states::TokenStates;
use crate::stopping::{MaxTime, StoppingCriteria};
use crate::{FinishReason, Request, Result, SamplingParams, Usage};

/// A sequence with what it holds of the caches.
pub(crate) struct Sequence {
    /// Which of the request's answers it becomes.
    pub(crate) index: usize,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    prompt_len: usize,
    end_tokens: Arc<[u32]>,
    max_new_tokens: Option<usize>,
    context: usize,
    /// Tokens whose keys, values and state the caches hold: a prefix of `tokens`.
    pub(crate) past: usize,
    /// Tokens that ever went through the model behind `past`, also those dropped again: what recurrent state can be
    /// rolled back from.
    pub(crate) head: usize,
    /// KV pages owned, in order.
    pub(crate) pages: Vec<u32>,
    /// State slot owned while it runs.
    pub(crate) slot: Option<u32>,
    /// Prompt tokens that a cache saved.
    cached: usize,
    /// The first of its tokens, as many as the prefix cache is known to hold with what it takes to go on from there.
    pub(crate) kept: usize,
    /// Lengths, ascending, that steps end at, so that the prefix cache can keep the state there.
    pub(crate) stops: Vec<usize>,
    /// Scales of adapters that its tokens are computed with.
    pub(crate) adapters: Option<LoraScales>,
    /// How its tokens are chosen, with a seed of its own.
    pub(crate) sampling: SamplingParams,
    pub(crate) chain: ProcessorList,
    pub(crate) criteria: Vec<Box<dyn StoppingCriteria>>,
    pub(crate) drafter: Option<Box<dyn Drafter>>,
    /// Drafted tokens that the next step verifies.
    pub(crate) drafts: Vec<u32>,
    /// The row that its next token stands in among the ids that are still on the device, where it was chosen already.
    pub(crate) late: Option<u32>,
    /// The logits behind the last token and its drafts, while others of the request are waited for.
    pub(crate) rows: Vec<Vec<f32>>,
    /// [`Model::revision`](gruff_models::Model::revision) of the model that computed what it holds.
    pub(crate) revision: u64,
    /// What led to the next token inside the model, where that is asked for.
    pub(crate) states: Option<TokenStates>,
    /// How many of the prompt's tokens have been told of, where that is asked for.
    told: Option<usize>,
    drafted: usize,
    accepted: usize,
    /// When it began.
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    /// The first sequence of a request, in a context of so many tokens.
    pub(crate) fn new(request: &Request, context: usize) -> Result<Self> {
        let (prompt, ends) = (&request.prompt, &request.end_tokens);
        let keep = if request.beams.is_some() { ends.len() + 1 } else { 1 };
        let chain = ProcessorList::new(&request.sampling, &request.processors, prompt.len(), ends, keep);
        let mut criteria = request.stopping.clone();
        if let Some(most) = request.max_time {
            criteria.push(Box::new(MaxTime::new(most)));
        }
        let mut sequence = Self {
            index: 0,
            tokens: prompt.clone(),
            prompt_len: prompt.len(),
            end_tokens: ends.as_slice().into(),
            max_new_tokens: request.max_new_tokens,
            context,
            past: 0,
            head: 0,
            pages: Vec::new(),
            slot: None,
            cached: 0,
            kept: 0,
            stops: Vec::new(),
            adapters: request.adapters.clone(),
            sampling: request.sampling.clone(),
            chain,
            criteria,
            drafter: None,
            drafts: Vec::new(),
            late: None,
            rows: Vec::new(),
            revision: 0,
            states: request.outputs.reads_states().then(TokenStates::default),
            // Nothing leads to the first token.
            told: request.outputs.prompt_logprobs.map(|_| 1),
            drafted: 0,
            accepted: 0,
            admitted: None,
            first_token: None,
            last_token: None,
        };
        if let Some(speculation) = &request.speculation {
            sequence.drafter = Some(speculation.drafter(&sequence.sampling, sequence.max_length())?);
        }
        Ok(sequence)
    }

    /// The sequence that follows the negative prompt of a guided request, in a context of so many tokens.
    pub(crate) fn companion(&self, prompt: Vec<u32>, context: usize) -> Self {
        let prompt_len = prompt.len();
        Self {
            tokens: prompt,
            prompt_len,
            context,
            chain: ProcessorList::default(),
            criteria: Vec::new(),
            states: None,
            told: None,
            ..self.fork(0)
        }
    }

    /// A copy without pages and slot: another answer of the request.
    pub(crate) fn fork(&self, index: usize) -> Self {
        let mut sampling = self.sampling.clone();
        sampling.seed = self.sampling.seed.wrapping_add((index - self.index.min(index)) as u64);
        Self {
            index,
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            end_tokens: self.end_tokens.clone(),
            max_new_tokens: self.max_new_tokens,
            context: self.context,
            past: 0,
            head: 0,
            pages: Vec::new(),
            slot: None,
            cached: self.cached,
            kept: 0,
            stops: Vec::new(),
            adapters: self.adapters.clone(),
            sampling,
            chain: self.chain.clone(),
            criteria: self.criteria.clone(),
            drafter: None,
            drafts: Vec::new(),
            late: None,
            rows: Vec::new(),
            revision: self.revision,
            states: self.states.clone(),
            told: self.told,
            drafted: 0,
            accepted: 0,
            admitted: self.admitted,
            first_token: self.first_token,
            last_token: self.last_token,
        }
    }

    /// Starts (or, after a preemption, starts again) with a slot and what a cache holds of the tokens.
    pub(crate) fn admit(&mut self, slot: u32, pages: Vec<u32>, past: usize, revision: u64) {
        self.slot = Some(slot);
        self.pages = pages;
        (self.past, self.head, self.kept) = (past, past, past);
        self.revision = revision;
        // What it finds when it starts again may be what it computed itself.
        if self.admitted.is_none() {
            self.admitted = Some(Instant::now());
            self.cached = past;
        } else if self.first_token.is_none() {
            self.cached = self.cached.min(past);
        }
    }

    /// Whether it ever had a slot.
    pub(crate) fn has_begun(&self) -> bool {
        self.admitted.is_some()
    }

    /// Is where another one of the same tokens is, whose pages and state it shares or has copies of.
    pub(crate) fn follow(&mut self, other: &Self) {
        (self.past, self.head, self.kept) = (other.past, other.head, other.kept);
    }

    /// Tokens that were chosen, also those that nobody has read yet.
    pub(crate) fn chosen(&self) -> usize {
        self.tokens.len() + usize::from(self.late.is_some())
    }

    /// Tokens not yet through the model.
    pub(crate) fn pending(&self) -> usize {
        self.chosen() - self.past
    }

    /// Whether the next step of it is about the answer alone.
    pub(crate) fn decoding(&self) -> bool {
        self.pending() == 1 && (self.first_token.is_some() || self.late.is_some())
    }

    /// The place of the first token of the prompt that is still to be told of; `None` where there is none.
    pub(crate) fn untold(&self) -> Option<usize> {
        self.told.filter(|told| *told < self.prompt_len)
    }

    /// The tokens of the prompt that are told of once those up to `end` have gone through the model: those that their
    /// logits lead to.
    pub(crate) fn telling(&self, end: usize) -> Range<usize> {
        let first = self.told.unwrap_or(self.prompt_len).max(self.past + 1);
        let last = (end + 1).min(self.prompt_len);
        first.min(last)..last
    }

    /// Notes that the tokens before `place` have been told of.
    pub(crate) fn has_told(&mut self, place: usize) {
        self.told = self.told.map(|told| told.max(place));
    }

    /// The first token that leads to the next new one: the prompt's first, then the last new one.
    pub(crate) fn leading(&self) -> usize {
        if self.tokens.len() == self.prompt_len { 0 } else { self.tokens.len() - 1 }
    }

    /// Pages missing for the first `len` tokens.
    pub(crate) fn missing_pages(&self, len: usize) -> usize {
        len.div_ceil(PAGE_LEN).saturating_sub(self.pages.len())
    }

    /// Length at which the answer ends.
    pub(crate) fn max_length(&self) -> usize {
        self.max_new_tokens
            .map_or(self.context, |most| self.prompt_len.saturating_add(most).min(self.context))
    }

    /// Lets the context end behind so many new tokens.
    pub(crate) fn limit_new_tokens(&mut self, most: usize) {
        self.context = self.context.min(self.prompt_len + most);
    }

    /// What processors and criteria know.
    pub(crate) fn token_context(&self) -> TokenContext<'_> {
        TokenContext {
            tokens: &self.tokens,
            prompt_len: self.prompt_len,
            end_tokens: &self.end_tokens,
            max_length: self.max_length(),
            seed: self.sampling.seed,
        }
    }

    /// Runs all processors, or only those before sampling, on the logits behind the last token.
    pub(crate) fn process(&mut self, logits: &mut [f32], head_only: bool) -> Result<()> {
        let mut chain = std::mem::take(&mut self.chain);
        let context = self.token_context();
        let done =
            if head_only { chain.process_head(&context, logits) } else { chain.process(&context, logits) };
        self.chain = chain;
        done
    }

    /// Takes a new token in and says whether it was the last.
    pub(crate) fn push(&mut self, id: u32) -> Result<Option<FinishReason>> {
        self.append(id);
        let mut criteria = std::mem::take(&mut self.criteria);
        let context = self.token_context();
        let reason = ends(&context, &mut criteria, self.max_new_tokens);
        self.criteria = criteria;
        let Some(reason) = reason? else { return Ok(None) };
        let mut chain = std::mem::take(&mut self.chain);
        chain.finish(&self.token_context(), reason)?;
        self.chain = chain;
        Ok(Some(reason))
    }

    /// Takes a new token in that ends nothing.
    pub(crate) fn append(&mut self, id: u32) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(id);
    }

    /// Counts what became of drafted tokens.
    pub(crate) fn verified(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted;
        self.accepted += accepted;
        if let Some(drafter) = &mut self.drafter {
            drafter.verified(drafted, accepted);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let (first, last) = (self.first_token, self.last_token);
        Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached,
            new_tokens: self.tokens.len() - self.prompt_len,
            prompt_time: first
                .zip(self.admitted)
                .map(|(first, admitted)| first - admitted)
                .unwrap_or_default(),
            decode_time: first.zip(last).map(|(first, last)| last - first).unwrap_or_default(),
            drafted_tokens: self.drafted,
            accepted_tokens: self.accepted,
        }
    }
}

/// Whether the last token of `context` ends the answer. Every criterion sees every token.
pub(crate) fn ends(
    context: &TokenContext<'_>,
    criteria: &mut [Box<dyn StoppingCriteria>],
    max_new_tokens: Option<usize>,
) -> Result<Option<FinishReason>> {
    let mut reason = None;
    for criterion in criteria {
        let found = criterion.check(context)?;
        reason = reason.or(found);
    }
    let last_is_end = context.tokens.last().is_some_and(|id| context.end_tokens.contains(id));
    Ok(if last_is_end {
        Some(FinishReason::EndToken)
    } else if reason.is_some() {
        reason
    } else if max_new_tokens.is_some_and(|most| context.new_tokens().len() >= most) {
        Some(FinishReason::MaxNewTokens)
    } else if context.tokens.len() >= context.max_length {
        Some(FinishReason::Context)
    } else {
        None
    })
}
