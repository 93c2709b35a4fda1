//! Drafts of a smaller model with the same vocabulary.

use std::fmt;
use std::sync::Arc;

use gruff_kernels::{DType, KvDtype, PAGE_LEN, Step, StepSequence, sampling};
use gruff_models::{CacheOptions, Caches, Model};

use super::{DraftLength, Drafter, Schedule, Speculation};
use crate::error::refuse;
use crate::logits::log_softmax;
use crate::{Context, EngineOptions, MemoryPlan, Result, SamplingParams};

/// Assisted generation (arXiv:2211.17192) with a draft model; names and defaults are transformers'.
#[derive(Clone)]
pub struct DraftModel {
    model: Arc<dyn Model>,
    /// Tokens of the first draft (default 20).
    pub num_assistant_tokens: usize,
    /// How that changes.
    pub schedule: Schedule,
    /// A draft ends before a token that the draft model gives less than this probability (default 0.4; 0 goes on).
    pub confidence_threshold: f32,
    /// Number type of its keys and values.
    pub kv_dtype: KvDtype,
}

/// Tokens of a draft that are never exceeded: what recurrent state can be rolled back.
const MOST: usize = gruff_kernels::CHUNK;

impl DraftModel {
    /// Drafts of `model`, whose token ids must mean the same as the verifying model's.
    pub fn new(model: Arc<dyn Model>) -> Self {
        Self {
            model,
            num_assistant_tokens: 20,
            schedule: Schedule::Constant,
            confidence_threshold: 0.4,
            kv_dtype: KvDtype::F16,
        }
    }
}

impl fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DraftModel({})", self.model.config().architecture)
    }
}

impl Speculation for DraftModel {
    fn most(&self) -> usize {
        match self.schedule {
            Schedule::Constant => self.num_assistant_tokens.min(MOST),
            Schedule::Heuristic => MOST,
        }
    }

    fn drafter(&self, sampling: &SamplingParams, max_length: usize) -> Result<Box<dyn Drafter>> {
        if self.num_assistant_tokens == 0 {
            return refuse("num_assistant_tokens", "0 has to be at least 1");
        }
        let config = self.model.config();
        let capacity = max_length.min(config.max_position_embeddings);
        let options = EngineOptions {
            context: Context::Tokens(capacity),
            kv_dtype: self.kv_dtype,
            rollback: self.most(),
            ..EngineOptions::default()
        };
        MemoryPlan::new(&*self.model, &options)?;
        let pages = capacity.div_ceil(PAGE_LEN);
        let caches = self.model.new_caches(&CacheOptions {
            kv_dtype: self.kv_dtype,
            pages,
            slots: 1,
            rollback: self.most(),
        })?;
        Ok(Box::new(Draft {
            model: self.model.clone(),
            caches,
            pages: (0..pages as u32).collect(),
            capacity,
            held: Vec::new(),
            head: 0,
            rollback: config.caches.is_recurrent().then_some(self.most()),
            length: DraftLength::new(self.num_assistant_tokens, self.most(), self.schedule),
            threshold: self.confidence_threshold,
            sampling: sampling.clone(),
        }))
    }
}

struct Draft {
    model: Arc<dyn Model>,
    caches: Caches,
    pages: Vec<u32>,
    capacity: usize,
    /// The tokens that the caches hold.
    held: Vec<u32>,
    /// Tokens that ever went through them.
    head: usize,
    /// Tokens that can be dropped; `None` for any number.
    rollback: Option<usize>,
    length: DraftLength,
    threshold: f32,
    sampling: SamplingParams,
}

/// Tokens that go through the draft model at once.
const STEP: usize = 512;

impl Draft {
    /// Puts `tokens` through, as far as the caches do not hold them, and chooses the next token.
    fn next(&mut self, tokens: &[u32]) -> Result<Option<u32>> {
        let common = self.held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let mut past = common.min(tokens.len() - 1);
        if self.rollback.is_some_and(|most| self.head - past > most) {
            past = 0;
            self.head = 0;
        }
        let mut logits = None;
        for chunk in tokens[past..].chunks(STEP) {
            let sequence = StepSequence { len: chunk.len(), past, slot: 0, pages: self.pages.clone() };
            past += chunk.len();
            let last = past == tokens.len();
            let rows = if last { vec![chunk.len() as u32 - 1] } else { Vec::new() };
            let step = Step::text(chunk.to_vec(), vec![sequence])?.with_output_rows(rows)?;
            let row = self.model.forward(&step, &mut self.caches)?;
            logits = last.then_some(row);
        }
        self.held = tokens.to_vec();
        self.head = self.head.max(tokens.len());
        let Some(logits) = logits else { return Ok(None) };
        let ids = logits.device().scratch(DType::I32, &[1])?;
        sampling::sample(&logits, &[self.sampling.spec(tokens)], &ids)?;
        let Some(id) = ids.to_vec_i32()?.first().and_then(|id| u32::try_from(*id).ok()) else {
            return Ok(None);
        };
        if self.threshold > 0.0 {
            let logs = log_softmax(&logits.to_vec_f32()?);
            let sure = logs.get(id as usize).is_some_and(|log| log.exp() >= f64::from(self.threshold));
            return Ok(sure.then_some(id));
        }
        Ok(Some(id))
    }
}

impl Drafter for Draft {
    fn draft(&mut self, tokens: &[u32], most: usize) -> Result<Vec<u32>> {
        let most = most.min(self.length.now).min(self.capacity.saturating_sub(tokens.len()));
        let vocabulary = self.model.config().vocab_size;
        if tokens.iter().any(|id| *id as usize >= vocabulary) {
            return Ok(Vec::new());
        }
        let mut text = tokens.to_vec();
        while text.len() < tokens.len() + most {
            match self.next(&text)? {
                Some(id) => text.push(id),
                None => break,
            }
        }
        Ok(text.split_off(tokens.len()))
    }

    fn verified(&mut self, drafted: usize, accepted: usize) {
        self.length.verified(drafted, accepted);
    }
}
