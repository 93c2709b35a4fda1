//! The forward pass, by hand: logits, hidden states and attention weights for loops of one's own.

use std::ops::Range;
use std::sync::Arc;

use gruff_kernels::Tensor;
use gruff_models::{ForwardOptions, LayerAttentions, Model};

use crate::{AutoModelForCausalLM, Cache, Error, LogitRows, Prompts, Result};

/// Tokens that go through the model at once unless told otherwise.
const CHUNK: usize = 512;

/// What a forward pass gave, as transformers' `CausalLMOutputWithPast`; the cache is the caller's.
#[derive(Clone, Debug)]
pub struct CausalLMOutput {
    vocab_size: usize,
    /// For each sequence of the batch the logits of its rows, one behind the other.
    logits: Vec<Vec<f32>>,
    /// For each sequence of the batch, its rows in hidden states.
    rows: Vec<Range<usize>>,
    /// Where asked for: the embeddings, the output of every layer but the last, and the last behind the final norm; each
    /// `[T, hidden_size]`, the sequences one after the other ([`rows`](Self::rows)).
    pub hidden_states: Option<Vec<Tensor>>,
    /// Where asked for: the last of them.
    pub last_hidden_state: Option<Tensor>,
    /// Where asked for: for each layer with softmax attention the weights of each sequence that took part,
    /// `[heads, len, keys]`.
    pub attentions: Option<Vec<LayerAttentions>>,
}

impl CausalLMOutput {
    /// The logits `[vocab_size]` of a sequence's last token; empty where it took no part.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn logits(&self, sequence: usize) -> &[f32] {
        let all = &self.logits[sequence];
        &all[all.len().saturating_sub(self.vocab_size)..]
    }

    /// The logits of all of a sequence's rows, first to last.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn all_logits(&self, sequence: usize) -> impl ExactSizeIterator<Item = &[f32]> {
        self.logits[sequence].chunks_exact(self.vocab_size)
    }

    /// The most likely next token of a sequence: the lowest id among equals, as torch's argmax; `None` where it has no
    /// logits.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn argmax(&self, sequence: usize) -> Option<u32> {
        let logits = self.logits(sequence);
        let best = logits.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.map(|(id, _)| id as u32)
    }

    /// A sequence's rows in hidden states.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn rows(&self, sequence: usize) -> Range<usize> {
        self.rows[sequence].clone()
    }
}

impl AutoModelForCausalLM {
    /// Memory for `batch` sequences of up to `capacity` tokens, keys and values in the type that the model was loaded
    /// for: f32 with [`crate::Dtype::F32`], else f16.
    ///
    /// # Errors
    /// [`Error::Engine`] when memory does not suffice or the model was not trained for so many tokens.
    pub fn new_cache(&self, batch: usize, capacity: usize) -> Result<Cache> {
        Cache::new(self, batch, capacity)
    }

    /// Goes on with each sequence of the cache by its tokens, all in one step, and gives the logits behind the last of
    /// each. A sequence without tokens takes no part.
    ///
    /// ```no_run
    /// use gruff::AutoModelForCausalLM;
    ///
    /// let model = AutoModelForCausalLM::from_pretrained("model.gguf").load()?;
    /// let mut cache = model.new_cache(1, 64)?;
    /// let output = model.forward(vec![1, 2, 3], &mut cache)?;
    /// let next = output.argmax(0);
    /// # Ok::<(), gruff::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] when there are no tokens, one is outside the vocabulary, or no room is left.
    pub fn forward(&self, tokens: impl Into<Prompts>, cache: &mut Cache) -> Result<CausalLMOutput> {
        self.forward_with(tokens, cache, LogitRows::Last, &ForwardOptions::default())
    }

    /// As [`forward`](Self::forward), with logits for other rows, and what `options` ask for. Scales of adapters are
    /// those of the sequences that take part, in order.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and [`Error::Model`] for options that cannot be honoured.
    pub fn forward_with(
        &self,
        tokens: impl Into<Prompts>,
        cache: &mut Cache,
        rows: LogitRows,
        options: &ForwardOptions,
    ) -> Result<CausalLMOutput> {
        let Prompts(tokens) = tokens.into();
        forward(&**self.model(), &tokens, cache, rows, options)
    }
}

fn forward(
    model: &dyn Model,
    tokens: &[Vec<u32>],
    cache: &mut Cache,
    rows: LogitRows,
    options: &ForwardOptions,
) -> Result<CausalLMOutput> {
    let vocab_size = model.config().vocab_size;
    let step = cache.step(tokens, rows, vocab_size)?;
    let output = model.forward_with(&step, cache.caches_mut(), options)?;
    cache.extend(tokens);
    let all = if rows == LogitRows::None { Vec::new() } else { output.logits.to_vec_f32()? };
    let mut rest = all.as_slice();
    let logits = tokens.iter().map(|tokens| {
        let count = match rows {
            LogitRows::Last => usize::from(!tokens.is_empty()),
            LogitRows::All => tokens.len(),
            LogitRows::None => 0,
        };
        let (own, others) = rest.split_at((count * vocab_size).min(rest.len()));
        rest = others;
        own.to_vec()
    });
    let logits = logits.collect();
    let mut end = 0;
    let rows = tokens.iter().map(|tokens| {
        let start = end;
        end += tokens.len();
        start..end
    });
    Ok(CausalLMOutput {
        vocab_size,
        logits,
        rows: rows.collect(),
        hidden_states: output.hidden_states,
        last_hidden_state: output.last_hidden_state,
        attentions: output.attentions,
    })
}

/// A sequence with a cache of its own, put through the model in pieces: for logits of every position, for measuring.
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
    cache: Cache,
    chunk: usize,
}

impl Forward {
    /// Takes memory for a sequence of up to `capacity` tokens. Keys and values are kept as the model's options
    /// say: f32 with [`crate::Dtype::F32`], else f16.
    ///
    /// # Errors
    /// [`Error::Engine`] when memory does not suffice or the model was not trained for so many tokens.
    pub fn new(model: &AutoModelForCausalLM, capacity: usize) -> Result<Self> {
        let cache = Cache::with_rollback(model, 1, capacity, 0)?;
        Ok(Self { model: model.model().clone(), cache, chunk: CHUNK })
    }

    /// Puts so many tokens through the model at once at most, instead of 512. Results do not depend on it.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// Tokens put through so far.
    pub fn len(&self) -> usize {
        self.cache.len(0)
    }

    /// Whether no token was put through yet.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Forgets the sequence and begins another.
    pub fn clear(&mut self) {
        self.cache.set_sequences(vec![Default::default()]);
    }

    /// Puts `tokens` through and gives the logits `[vocab_size]` after the last of them.
    ///
    /// # Errors
    /// [`Error::Option`] when there are none or no room is left, or for an id outside the vocabulary.
    pub fn push(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        let mut logits = Vec::new();
        let count = tokens.len().div_ceil(self.chunk);
        for (index, chunk) in tokens.chunks(self.chunk).enumerate() {
            let rows = if index + 1 == count { LogitRows::Last } else { LogitRows::None };
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
            self.step(chunk, LogitRows::All)?.chunks_exact(width).try_for_each(&mut on_row)?;
        }
        Ok(())
    }

    /// All of them fit, before the first goes through.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        self.cache.step(&[tokens.to_vec()], LogitRows::None, self.model.config().vocab_size).map(|_| ())
    }

    fn step(&mut self, tokens: &[u32], rows: LogitRows) -> Result<Vec<f32>> {
        let options = ForwardOptions::default();
        let mut output = forward(&*self.model, &[tokens.to_vec()], &mut self.cache, rows, &options)?;
        Ok(output.logits.pop().unwrap_or_default())
    }
}
