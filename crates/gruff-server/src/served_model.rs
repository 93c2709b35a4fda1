//! A model with what it is called in requests.

use std::sync::Arc;

use gruff::{AutoModelForCausalLM, AutoTokenizer};

/// A loaded model that a server is to answer with.
pub struct ServedModel {
    pub(crate) id: String,
    pub(crate) names: Vec<String>,
    pub(crate) model: Arc<AutoModelForCausalLM>,
    pub(crate) tokenizer: AutoTokenizer,
}

impl ServedModel {
    /// A model under an id, which requests and answers have.
    pub fn new(id: impl Into<String>, model: Arc<AutoModelForCausalLM>, tokenizer: AutoTokenizer) -> Self {
        Self { id: id.into(), names: Vec::new(), model, tokenizer }
    }

    /// Another name under which requests may ask for it.
    #[must_use]
    pub fn also_called(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }
}
