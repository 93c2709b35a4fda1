use std::sync::Arc;

use gruff_engine::{Context, EngineOptions, MemoryPlan};
use gruff_kernels::{KvDtype, PAGE_LEN};
use gruff_models::{CacheOptions, Caches, Model};
use gruff_text::{EncodeOptions, Tokenizer};

use crate::Result;

/// Choices for an evaluator.
#[derive(Clone, Copy, Debug)]
pub struct EvaluatorOptions {
    /// How keys and values are kept: f16, f32 for exact results, or q8_0.
    pub kv_dtype: KvDtype,
    /// Memory that may be used, in bytes; `None` for what the system has available.
    pub memory: Option<u64>,
}

impl Default for EvaluatorOptions {
    fn default() -> Self {
        Self { kv_dtype: KvDtype::F16, memory: None }
    }
}

/// A model and its tokenizer, ready to be measured.
#[derive(Clone)]
pub struct Evaluator {
    model: Arc<dyn Model>,
    tokenizer: Tokenizer,
    options: EvaluatorOptions,
}

impl Evaluator {
    /// Takes a loaded model and the tokenizer of the same file.
    pub fn new(model: Arc<dyn Model>, tokenizer: Tokenizer, options: EvaluatorOptions) -> Self {
        Self { model, tokenizer, options }
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ids of a text, with the token that the model wants at its beginning. Special tokens written in the
    /// text are text, and one line end at its end is dropped: so llama.cpp's tools read their `-f`.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] for a text above a gibibyte.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        Ok(self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })?)
    }

    /// The token that begins every window, where the model wants one.
    pub(crate) fn window_start(&self) -> Option<u32> {
        self.tokenizer.bos().filter(|_| self.tokenizer.add_bos())
    }

    /// Takes memory for `sequences` sequences of up to `tokens` tokens, of which the last `rollback` can be
    /// dropped again.
    pub(crate) fn caches(&self, sequences: usize, tokens: usize, rollback: usize) -> Result<Caches> {
        let options = EngineOptions {
            context: Context::Tokens(tokens),
            max_sequences: sequences,
            kv_dtype: self.options.kv_dtype,
            rollback,
            prefix_cache: Some(0),
            memory: self.options.memory,
            ..EngineOptions::default()
        };
        MemoryPlan::new(self.model(), &options)?;
        let pages = sequences * tokens.div_ceil(PAGE_LEN);
        let kv_dtype = options.kv_dtype;
        Ok(self.model.new_caches(&CacheOptions { kv_dtype, pages, slots: sequences, rollback })?)
    }
}
