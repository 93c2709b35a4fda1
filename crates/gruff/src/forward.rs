//! One sequence, token by token, without the engine: raw logits for those who want to see them.

use std::sync::Arc;

use gruff_engine::{Context, EngineOptions, MemoryPlan};
use gruff_kernels::{PAGE_LEN, Step, StepSequence};
use gruff_models::{CacheOptions, Caches, Model};

use crate::{AutoModelForCausalLM, Error, Result};

/// Tokens that go through the model at once unless told otherwise.
const CHUNK: usize = 512;

/// A sequence with caches of its own, put through the model by hand: for logits of every position, for loops
/// that choose tokens in their own way, for measuring.
///
/// ```no_run
/// use gruff::{AutoModelForCausalLM, Forward};
///
/// let model = AutoModelForCausalLM::from_pretrained("model.gguf").load()?;
/// let mut sequence = Forward::new(&model, 64)?;
/// let logits = sequence.push(&[1, 2, 3])?;
/// let greedy = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
/// # Ok::<(), gruff::Error>(())
/// ```
pub struct Forward {
    model: Arc<dyn Model>,
    caches: Caches,
    pages: Vec<u32>,
    capacity: usize,
    chunk: usize,
    past: usize,
}

impl Forward {
    /// Takes memory for a sequence of up to `capacity` tokens. Keys and values are kept as the model's options
    /// say: f32 with [`crate::Dtype::F32`], else f16.
    ///
    /// # Errors
    /// [`Error::Engine`] when memory does not suffice or the model was not trained for so many tokens.
    pub fn new(model: &AutoModelForCausalLM, capacity: usize) -> Result<Self> {
        let options = EngineOptions {
            context: Context::Tokens(capacity),
            max_sequences: 1,
            ..model.engine_options().clone()
        };
        let model = model.model().clone();
        MemoryPlan::new(&*model, &options)?;
        let kv_dtype = options.kv_dtype;
        let pages = capacity.div_ceil(PAGE_LEN);
        let caches = model.new_caches(&CacheOptions { kv_dtype, pages, slots: 1, rollback: 0 })?;
        let pages = (0..).take(pages).collect();
        Ok(Self { model, caches, pages, capacity, chunk: CHUNK, past: 0 })
    }

    /// Puts so many tokens through the model at once at most, instead of 512. Results do not depend on it.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// Tokens put through so far.
    pub fn len(&self) -> usize {
        self.past
    }

    /// Whether no token was put through yet.
    pub fn is_empty(&self) -> bool {
        self.past == 0
    }

    /// Forgets the sequence and begins another.
    pub fn clear(&mut self) {
        self.past = 0;
    }

    /// Puts `tokens` through and gives the logits `[vocab_size]` after the last of them.
    ///
    /// # Errors
    /// [`Error::Option`] when there are none or no room is left, [`Error::Model`] for an id outside the
    /// vocabulary.
    pub fn push(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        let mut logits = Vec::new();
        let count = tokens.len().div_ceil(self.chunk);
        for (index, chunk) in tokens.chunks(self.chunk).enumerate() {
            let last = chunk.len() as u32 - 1;
            let rows = if index + 1 == count { vec![last] } else { Vec::new() };
            logits = self.step(chunk, rows)?;
        }
        Ok(logits)
    }

    /// Puts `tokens` through and hands the logits `[vocab_size]` after each of them to `on_row`, in order.
    ///
    /// # Errors
    /// As [`push`](Self::push), and what `on_row` returns.
    pub fn push_all<E: From<Error>>(
        &mut self,
        tokens: &[u32],
        mut on_row: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check(tokens)?;
        let width = self.model.config().vocab_size;
        for chunk in tokens.chunks(self.chunk) {
            let rows = (0..chunk.len() as u32).collect();
            self.step(chunk, rows)?.chunks_exact(width).try_for_each(&mut on_row)?;
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let refuse = |fault: String| Err(Error::Option(fault));
        let vocabulary = self.model.config().vocab_size;
        if tokens.is_empty() {
            return refuse("there are no token ids; give at least one".to_owned());
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
            return refuse(format!("token id {id} is outside the vocabulary of {vocabulary}"));
        }
        if tokens.len() > self.capacity - self.past {
            return refuse(format!(
                "{} tokens do not fit behind {} in a sequence of {}",
                tokens.len(),
                self.past,
                self.capacity
            ));
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], output_rows: Vec<u32>) -> Result<Vec<f32>> {
        let sequence =
            StepSequence { len: tokens.len(), past: self.past, slot: 0, pages: self.pages.clone() };
        let wanted = !output_rows.is_empty();
        let step = Step::text(tokens.to_vec(), vec![sequence])?.with_output_rows(output_rows)?;
        let logits = self.model.forward(&step, &mut self.caches)?;
        self.past += tokens.len();
        if wanted { Ok(logits.to_vec_f32()?) } else { Ok(Vec::new()) }
    }
}
