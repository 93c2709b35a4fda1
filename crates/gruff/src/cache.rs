//! What a model remembers of sequences, held by the user.

use std::path::Path;

use gruff_engine::{Context, EngineOptions, MemoryPlan};
use gruff_kernels::{CHUNK, PAGE_LEN, Step, StepSequence, Tensor};
use gruff_models::{CacheLayer, CacheOptions, Caches};

use crate::cache_file;
use crate::{AutoModelForCausalLM, Error, Result};

/// Keys, values and recurrent states of a batch of sequences, as transformers' `DynamicCache` holds them: made by
/// [`AutoModelForCausalLM::new_cache`], filled by [`AutoModelForCausalLM::forward`], cropped, copied, saved.
///
/// Sequences may be of any lengths; a pass may go on with some of them and leave the others as they are.
#[derive(Debug)]
pub struct Cache {
    caches: Caches,
    sequences: Vec<CachedSequence>,
    capacity: usize,
}

/// One sequence: its tokens, and how far back it can be cropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedSequence {
    pub(crate) tokens: Vec<u32>,
    /// The most tokens it ever had: recurrent states reach back from there.
    pub(crate) reached: usize,
}

impl Cache {
    /// Memory for `batch` sequences of up to `capacity` tokens.
    pub(crate) fn new(model: &AutoModelForCausalLM, batch: usize, capacity: usize) -> Result<Self> {
        let recurrent = model.model().config().caches.is_recurrent();
        let rollback = if recurrent { CHUNK } else { 0 };
        Self::with_rollback(model, batch, capacity, rollback)
    }

    pub(crate) fn with_rollback(
        model: &AutoModelForCausalLM,
        batch: usize,
        capacity: usize,
        rollback: usize,
    ) -> Result<Self> {
        if batch == 0 {
            return Err(Error::Option("a cache of 0 sequences holds nothing; ask for at least 1".to_owned()));
        }
        let options = EngineOptions {
            context: Context::Tokens(capacity),
            max_sequences: batch,
            cache_tokens: None,
            rollback,
            prefix_cache: Some(0),
            ..model.engine_options().clone()
        };
        MemoryPlan::new(&**model.model(), &options)?;
        let pages = batch * capacity.div_ceil(PAGE_LEN);
        let kv_dtype = options.kv_dtype;
        let caches = model.model().new_caches(&CacheOptions { kv_dtype, pages, slots: batch, rollback })?;
        Ok(Self { caches, sequences: vec![CachedSequence::default(); batch], capacity })
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.sequences.len()
    }

    /// Tokens that each sequence may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The tokens of a sequence so far.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        &self.sequences[sequence].tokens
    }

    /// How many tokens a sequence has.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.tokens(sequence).len()
    }

    /// Whether no sequence has any token.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.tokens.is_empty())
    }

    /// Drops all but the first `len` tokens of a sequence; nothing is computed anew.
    ///
    /// # Errors
    /// [`Error::Option`] when it has fewer tokens, and for models with recurrent layers when more than the last 64 of
    /// the tokens that it ever had would go: a recurrent state cannot be taken apart. Keep a copy from there
    /// ([`select`](Self::select)), or begin anew ([`clear`](Self::clear)).
    pub fn crop(&mut self, sequence: usize, len: usize) -> Result<()> {
        let rollback = self.caches.options().rollback;
        let recurrent = self.is_recurrent();
        let cached = self.sequence_mut(sequence)?;
        let refuse = |fault: String| Err(Error::Option(format!("sequence {sequence} of the cache {fault}")));
        if len > cached.tokens.len() {
            return refuse(format!("has {} tokens, which cannot be cropped to {len}", cached.tokens.len()));
        }
        if len == 0 {
            *cached = CachedSequence::default();
            return Ok(());
        }
        if recurrent && len + rollback < cached.reached {
            return refuse(format!(
                "has recurrent states that reach back {rollback} tokens from token {}, not to token {len}; keep a copy \
                 of the cache from there, or clear the sequence",
                cached.reached
            ));
        }
        cached.tokens.truncate(len);
        Ok(())
    }

    /// Begins a sequence anew.
    ///
    /// # Errors
    /// [`Error::Option`] when there is no such sequence.
    pub fn clear(&mut self, sequence: usize) -> Result<()> {
        *self.sequence_mut(sequence)? = CachedSequence::default();
        Ok(())
    }

    /// A cache of its own with copies of these sequences, in this order; a sequence may come several times, as beams
    /// need it. All of them: `cache.select(&[0, 1, …])`, or [`try_clone`](Self::try_clone).
    ///
    /// # Errors
    /// [`Error::Option`] when there is no such sequence, [`Error::Kernel`] when memory does not suffice.
    pub fn select(&self, sequences: &[usize]) -> Result<Self> {
        if let Some(wild) = sequences.iter().find(|sequence| **sequence >= self.batch()) {
            return Err(Error::Option(format!("the cache has {} sequences, but no {wild}", self.batch())));
        }
        if sequences.is_empty() {
            return Err(Error::Option("no sequences to copy; name at least one".to_owned()));
        }
        let options = CacheOptions {
            pages: sequences.len() * self.pages_each(),
            slots: sequences.len(),
            ..*self.caches.options()
        };
        let mut copy = Self {
            caches: self.caches.like(&options)?,
            sequences: sequences.iter().map(|sequence| self.sequences[*sequence].clone()).collect(),
            capacity: self.capacity,
        };
        for (to, from) in sequences.iter().enumerate() {
            let len = self.sequences[*from].tokens.len();
            for (from, to) in self.views(*from, len)?.iter().zip(copy.views(to, len)?) {
                to.copy_from(from)?;
            }
        }
        copy.sequences.shrink_to_fit();
        Ok(copy)
    }

    /// A copy of all sequences.
    ///
    /// # Errors
    /// [`Error::Kernel`] when memory does not suffice.
    pub fn try_clone(&self) -> Result<Self> {
        self.select(&(0..self.batch()).collect::<Vec<_>>())
    }

    /// Writes the sequences to a file, to be read by [`load`](Self::load). The file gets its name when it is whole.
    ///
    /// # Errors
    /// [`Error::CacheFile`] when it cannot be written.
    pub fn save(&self, model: &AutoModelForCausalLM, path: impl AsRef<Path>) -> Result<()> {
        cache_file::save(self, model, path.as_ref())
    }

    /// Reads the sequences of a file that [`save`](Self::save) wrote with the same model, into a cache for sequences of
    /// up to `capacity` tokens. They go on with the same bits.
    ///
    /// # Errors
    /// [`Error::CacheFile`] for a file that is damaged, of another version, of another model (its weights, adapters,
    /// number types) or of longer sequences; [`Error::Engine`] when memory does not suffice.
    pub fn load(model: &AutoModelForCausalLM, path: impl AsRef<Path>, capacity: usize) -> Result<Self> {
        cache_file::load(model, path.as_ref(), capacity)
    }

    /// The memory beneath, for steps of one's own: sequence b owns slot b and the pages [`pages`](Self::pages) tells.
    /// What is done with it is not known to the cache.
    pub fn caches_mut(&mut self) -> &mut Caches {
        &mut self.caches
    }

    pub(crate) fn caches(&self) -> &Caches {
        &self.caches
    }

    pub(crate) fn sequences(&self) -> &[CachedSequence] {
        &self.sequences
    }

    pub(crate) fn set_sequences(&mut self, sequences: Vec<CachedSequence>) {
        self.sequences = sequences;
    }

    /// The pages of a sequence.
    pub fn pages(&self, sequence: usize) -> Vec<u32> {
        let each = self.pages_each();
        (sequence * each..(sequence + 1) * each).map(|page| page as u32).collect()
    }

    fn pages_each(&self) -> usize {
        self.capacity.div_ceil(PAGE_LEN)
    }

    fn is_recurrent(&self) -> bool {
        self.caches.layers().iter().any(|layer| matches!(layer, CacheLayer::State(_)))
    }

    fn sequence_mut(&mut self, sequence: usize) -> Result<&mut CachedSequence> {
        let batch = self.sequences.len();
        let missing = || Error::Option(format!("the cache has {batch} sequences, but no {sequence}"));
        self.sequences.get_mut(sequence).ok_or_else(missing)
    }

    /// A step that goes on with each sequence by its tokens, and leaves out those without; all of a sequence's rows get
    /// logits, or its last one, or none.
    pub(crate) fn step(&self, tokens: &[Vec<u32>], rows: LogitRows, vocabulary: usize) -> Result<Step> {
        self.check(tokens, vocabulary)?;
        let mut all = Vec::new();
        let mut sequences = Vec::new();
        let mut output_rows = Vec::new();
        for (index, tokens) in tokens.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            let start = all.len() as u32;
            all.extend_from_slice(tokens);
            let end = all.len() as u32;
            match rows {
                LogitRows::All => output_rows.extend(start..end),
                LogitRows::Last => output_rows.push(end - 1),
                LogitRows::None => {}
            }
            let (past, pages) = (self.sequences[index].tokens.len(), self.pages(index));
            sequences.push(StepSequence { len: tokens.len(), past, slot: index, pages });
        }
        Ok(Step::text(all, sequences)?.with_output_rows(output_rows)?)
    }

    fn check(&self, tokens: &[Vec<u32>], vocabulary: usize) -> Result<()> {
        let refuse = |fault: String| Err(Error::Option(fault));
        if tokens.len() != self.batch() {
            return refuse(format!(
                "tokens for {} sequences, but the cache has {}",
                tokens.len(),
                self.batch()
            ));
        }
        if tokens.iter().all(Vec::is_empty) {
            return refuse("there are no token ids; give at least one".to_owned());
        }
        for (sequence, tokens) in self.sequences.iter().zip(tokens) {
            let past = sequence.tokens.len();
            if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
                return refuse(format!("token id {id} is outside the vocabulary of {vocabulary}"));
            }
            if tokens.len() > self.capacity - past {
                return refuse(format!(
                    "{} tokens do not fit behind {past} in a sequence of {}",
                    tokens.len(),
                    self.capacity
                ));
            }
        }
        Ok(())
    }

    /// Takes in what a step has computed.
    pub(crate) fn extend(&mut self, tokens: &[Vec<u32>]) {
        for (sequence, tokens) in self.sequences.iter_mut().zip(tokens) {
            sequence.tokens.extend_from_slice(tokens);
            sequence.reached = sequence.reached.max(sequence.tokens.len());
        }
    }

    /// The parts of all layers' memory that hold a sequence of `len` tokens, always in the same order.
    pub(crate) fn views(&self, sequence: usize, len: usize) -> Result<Vec<Tensor>> {
        let mut views = Vec::new();
        let used = len.div_ceil(PAGE_LEN);
        if len == 0 {
            return Ok(views);
        }
        for layer in self.caches.layers() {
            match layer {
                CacheLayer::Kv(kv) => {
                    for pool in [kv.keys(), kv.values()] {
                        views.push(pool.narrow(0, sequence * self.pages_each(), used)?);
                    }
                }
                CacheLayer::State(state) => {
                    let matrices = state.shape().matrices();
                    views.push(state.matrix().narrow(0, sequence * matrices, matrices)?);
                    for rows in [state.keys(), state.updates(), state.decays(), state.conv()] {
                        views.push(rows.narrow(0, sequence, 1)?);
                    }
                }
            }
        }
        Ok(views)
    }
}

/// Which tokens of a pass get logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitRows {
    /// The last of each sequence.
    #[default]
    Last,
    /// All.
    All,
    /// None: caches are filled, hidden states computed.
    None,
}
