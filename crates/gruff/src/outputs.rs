//! What `generate` gives.

use std::sync::Arc;

use gruff_engine::logits::log_softmax;
use gruff_engine::{BeamOutput, FinishReason, TokenDetails, Usage};

use crate::{AutoTokenizer, Error, Result, StopMatcher};

/// What `generate` made of a batch: for each prompt its answers, in order, one after the other (as rows in
/// transformers: `num_return_sequences` for each prompt).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOutput {
    /// Prompt and answer, as in transformers.
    pub sequences: Vec<Vec<u32>>,
    /// Why each answer ended.
    pub finish_reasons: Vec<FinishReason>,
    /// What each answer cost.
    pub usage: Vec<Usage>,
    /// For each sequence and each of its new tokens, what was asked about it (`output_scores`, `output_logits`,
    /// `logprobs`, `output_hidden_states`, `output_attentions`); empty where nothing was, and for beams.
    pub details: Vec<Vec<TokenDetails>>,
    /// For each sequence of a search with beams, its score.
    pub sequences_scores: Option<Vec<f32>>,
    /// For each sequence of a search with beams and each of its new tokens, the beam that the token was chosen from.
    pub beam_indices: Option<Vec<Vec<usize>>>,
    /// For each prompt of a search with beams, the scores and logits of all beams where asked.
    pub beams: Vec<BeamOutput>,
    /// Tokens of each sequence that are its prompt.
    pub(crate) prompt_lengths: Vec<usize>,
    /// Answers to each prompt.
    pub(crate) answers: usize,
    /// Texts that end an answer, unless they stay in it.
    pub(crate) trims: Arc<Vec<String>>,
}

impl GenerateOutput {
    /// The answer in row `index`, without the prompt.
    pub fn new_tokens(&self, index: usize) -> &[u32] {
        &self.sequences[index][self.prompt_lengths[index]..]
    }

    /// The answer in row `index` as text, up to the stop string that ended it (including it where
    /// `include_stop_str_in_output` is on).
    pub fn text(&self, index: usize, tokenizer: &AutoTokenizer, skip_special_tokens: bool) -> String {
        let text = tokenizer.decode(self.new_tokens(index), skip_special_tokens);
        if self.finish_reasons[index] != FinishReason::StopString {
            return text;
        }
        let mut matcher = StopMatcher::new(self.trims.to_vec());
        let mut before = matcher.push(&text);
        before.push_str(&matcher.finish());
        before
    }

    /// The scores of each sequence's new tokens, in transformers' meaning of `compute_transition_scores`: the
    /// processed scores of the tokens that were chosen, their logarithms of probabilities with `normalize_logits`.
    ///
    /// # Errors
    /// [`Error::Option`] when the scores were not asked for.
    pub fn compute_transition_scores(&self, normalize_logits: bool) -> Result<Vec<Vec<f32>>> {
        let missing =
            || Error::Option("output_scores: ask for it, then transition scores can be told".to_owned());
        let score = |row: &[f32], id: u32| {
            let id = id as usize;
            if normalize_logits {
                log_softmax(row).get(id).map(|log| *log as f32)
            } else {
                row.get(id).copied()
            }
        };
        let mut all = Vec::with_capacity(self.sequences.len());
        for index in 0..self.sequences.len() {
            let mut own = Vec::new();
            for (step, id) in self.new_tokens(index).iter().enumerate() {
                let row = match &self.beam_indices {
                    Some(indices) => {
                        let beams = self.beams.get(index / self.answers.max(1)).ok_or_else(missing)?;
                        let step_scores = beams.scores.get(step).ok_or_else(missing)?;
                        step_scores.get(indices[index][step])
                    }
                    None => self.details[index].get(step).and_then(|details| details.scores.as_ref()),
                };
                own.push(row.and_then(|row| score(row, *id)).ok_or_else(missing)?);
            }
            all.push(own);
        }
        Ok(all)
    }
}
