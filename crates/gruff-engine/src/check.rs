//! Whether a request can be served as it stands.

use std::sync::Arc;

use gruff_models::{AttnImplementation, Model};

use crate::error::refuse;
use crate::job::Job;
use crate::{Error, Request, Result};

/// What an engine asks of a request before it takes it in, for those who want to know on another thread than its own.
/// [`Engine::checker`](crate::Engine::checker) gives one.
#[derive(Clone)]
pub struct Checker {
    pub(crate) model: Arc<dyn Model>,
    /// Tokens that a prompt and its answer may have together.
    pub(crate) context: usize,
    pub(crate) max_sequences: usize,
    /// Tokens that a model with recurrent state can drop again; `None` for any number.
    pub(crate) rollback: Option<usize>,
    /// Whether answers may end by the clock.
    pub(crate) deterministic: bool,
}

impl Checker {
    /// Refuses what cannot be served.
    ///
    /// # Errors
    /// As [`Engine::submit`](crate::Engine::submit).
    pub fn check(&self, request: &Request) -> Result<()> {
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
        if self.deterministic && request.max_time.is_some() {
            return refuse(
                "max_time",
                "an answer that ends by the clock depends on more than the request; leave it out, or `deterministic`",
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
        if width > self.max_sequences {
            return refuse(
                if request.beams.is_some() { "num_beams" } else { "num_return_sequences" },
                format!(
                    "the request has {width} sequences and the engine room for {}; make it with a larger \
                     max_sequences",
                    self.max_sequences
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
        if prompt.len() >= self.context {
            return Err(Error::ContextLength { field, tokens: prompt.len(), context: self.context });
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
        let guided = request.beams.is_some() || request.guidance.is_some();
        if request.outputs.prompt_logprobs.is_some() && guided {
            return refuse(
                "prompt_logprobs",
                "neither beams nor guidance tell of the prompt; leave them out",
            );
        }
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
        if self.rollback == Some(0) {
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
}
