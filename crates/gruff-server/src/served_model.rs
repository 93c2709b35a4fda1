//! A model with what it is called in requests.

use std::sync::Arc;

use gruff::{AutoModelForCausalLM, AutoTokenizer, ModelFiles};

use crate::same_files::SameFiles;

/// A loaded model that a server is to answer with.
pub struct ServedModel {
    pub(crate) id: String,
    pub(crate) names: Vec<String>,
    pub(crate) files: Option<SameFiles>,
    pub(crate) model: Arc<AutoModelForCausalLM>,
    pub(crate) tokenizer: AutoTokenizer,
}

impl ServedModel {
    /// A model under an id, which requests and answers have.
    pub fn new(id: impl Into<String>, model: Arc<AutoModelForCausalLM>, tokenizer: AutoTokenizer) -> Self {
        Self { id: id.into(), names: Vec::new(), files: None, model, tokenizer }
    }

    /// Another name under which requests may ask for it.
    #[must_use]
    pub fn also_called(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// The files it was read from. A request that names them otherwise, say by another revision that has the same file,
    /// is then answered by this model, and they are not loaded again.
    #[must_use]
    pub fn read_from(mut self, files: &ModelFiles) -> Self {
        self.files = SameFiles::of(files);
        self
    }
}
