//! What is asked, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use gruff_models::LoraScales;

use crate::logits::LogitsProcessor;
use crate::speculation::Speculation;
use crate::stopping::StoppingCriteria;
use crate::{AttentionWeights, BeamParams, SamplingParams};

/// A request's number, unique within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Where later prompts are likely to part from this one: positions before which a message begins, as
    /// `gruff_text::Tokenizer::message_borders` tells them. A hint: it changes what is cached, never an answer.
    pub borders: Vec<usize>,
    /// Who asks. Requests of several clients that wait begin in turns, those of one in the order in which they came.
    pub client: u64,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens generated at most; `None` for as many as the context holds.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end the answer (the end token itself is delivered last).
    pub end_tokens: Vec<u32>,
    /// Processors of the caller's own, behind those of `sampling` and before temperature and truncation.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Criteria that end the answer besides end tokens and length.
    pub stopping: Vec<Box<dyn StoppingCriteria>>,
    /// Time from submission after which the answer ends.
    pub max_time: Option<Duration>,
    /// Answers to the same prompt; number i draws with `sampling.seed + i`. The prompt is computed once.
    pub num_return_sequences: usize,
    /// Search with beams instead of going on with one token.
    pub beams: Option<BeamParams>,
    /// Guide the answer away from another prompt's.
    pub guidance: Option<Guidance>,
    /// Draft several tokens and verify them in one step. The answer is the same without.
    pub speculation: Option<Arc<dyn Speculation>>,
    /// Scales of LoRA adapters by name, one that is not named being off; `None` for the adapters' own scales.
    pub adapters: Option<LoraScales>,
    /// What is told of every token besides its id.
    pub outputs: OutputOptions,
}

impl Request {
    /// A greedy request without end tokens.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt,
            borders: Vec::new(),
            client: 0,
            sampling: SamplingParams::default(),
            max_new_tokens: None,
            end_tokens: Vec::new(),
            processors: Vec::new(),
            stopping: Vec::new(),
            max_time: None,
            num_return_sequences: 1,
            beams: None,
            guidance: None,
            speculation: None,
            adapters: None,
            outputs: OutputOptions::default(),
        }
    }
}

/// Classifier-free guidance (arXiv:2306.17806).
#[derive(Clone, Debug, PartialEq)]
pub struct Guidance {
    /// How far the answer is led away from the negative prompt's; 1 changes nothing.
    pub scale: f32,
    /// The negative prompt; empty for the prompt's last token, as in transformers.
    pub negative_prompt: Vec<u32>,
}

/// What is told of every token besides its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// The logits that the token was chosen from, behind all processors.
    pub scores: bool,
    /// The model's own logits.
    pub logits: bool,
    /// The logarithm of the token's probability by the model's own logits, and those of so many of the most likely
    /// tokens.
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens, each by the logits behind those before it. The prompt is then computed anew,
    /// whatever caches hold of it, in steps short enough for their logits to take little room.
    pub prompt_logprobs: Option<usize>,
    /// What went from layer to layer. The prompt is then computed anew, whatever caches hold of it.
    pub hidden_states: bool,
    /// The weights of every softmax attention, which is then computed in plain code. The prompt is then computed anew,
    /// whatever caches hold of it.
    pub attentions: bool,
}

impl OutputOptions {
    /// Whether anything is asked.
    pub fn any(&self) -> bool {
        self.reads_logits() || self.prompt_logprobs.is_some() || self.reads_states()
    }

    /// Whether logits are looked at.
    pub(crate) fn reads_logits(&self) -> bool {
        self.scores || self.logits || self.logprobs.is_some()
    }

    /// Whether the inside of the model is looked at.
    pub(crate) fn reads_states(&self) -> bool {
        self.hidden_states || self.attentions
    }
}

/// What was asked about a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenDetails {
    /// `[vocab_size]`: the logits behind all processors.
    pub scores: Option<Vec<f32>>,
    /// `[vocab_size]`: the model's own logits.
    pub logits: Option<Vec<f32>>,
    /// Natural logarithm of the token's probability by the model's own logits.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
    /// What led to the token, as in transformers: the embeddings, then the output of every layer but the last, then
    /// the last layer's output behind the final norm, each `[len, hidden_size]`; `len` is the prompt's tokens for the
    /// first new token, then 1.
    pub hidden_states: Option<Vec<Vec<f32>>>,
    /// Of the same tokens, for each layer with softmax attention its weights.
    pub attentions: Option<Vec<AttentionWeights>>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose an end token.
    EndToken,
    /// `max_new_tokens` were generated.
    MaxNewTokens,
    /// The sequence fills the context.
    Context,
    /// The caller cancelled it.
    Cancelled,
    /// The text contains a stop string.
    StopString,
    /// Its time was over.
    MaxTime,
    /// A stopping criterion of the caller's own ended it.
    Criterion,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose computation was saved by a cache.
    pub cached_tokens: usize,
    /// Tokens generated, the end token included.
    pub new_tokens: usize,
    /// From admission to the first new token.
    pub prompt_time: Duration,
    /// From the first new token to the last.
    pub decode_time: Duration,
    /// Tokens that speculation drafted.
    pub drafted_tokens: usize,
    /// Drafted tokens that were right.
    pub accepted_tokens: usize,
}

impl Usage {
    /// Prompt tokens computed a second.
    pub fn prompt_per_second(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt_time)
    }

    /// Tokens a second after the first.
    pub fn decode_per_second(&self) -> f64 {
        rate(self.new_tokens.saturating_sub(1), self.decode_time)
    }

    /// Share of the drafted tokens that were right; `None` without any.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted_tokens > 0).then(|| self.accepted_tokens as f64 / self.drafted_tokens as f64)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens went through the model; the answer has not begun.
    Prompt {
        /// Whose.
        request: RequestId,
        /// Prompt tokens done so far.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// What was asked about tokens of the prompt: more of them, in their order from the second on. Nothing leads to the
    /// first.
    PromptDetails {
        /// Whose.
        request: RequestId,
        /// What was asked, token by token.
        details: Vec<TokenDetails>,
    },
    /// A new token. Those of a search with beams come together, when it has ended.
    Token {
        /// Whose.
        request: RequestId,
        /// Which of the request's answers it belongs to: below `num_return_sequences`.
        index: usize,
        /// Its id.
        id: u32,
        /// What was asked about it.
        details: Option<Box<TokenDetails>>,
    },
    /// A search with beams has ended; the tokens of its answers and their ends follow.
    Beams {
        /// Whose.
        request: RequestId,
        /// What it found.
        found: Box<BeamOutput>,
    },
    /// An answer has ended. A request has ended with the last of its answers.
    Finished {
        /// Whose.
        request: RequestId,
        /// Which of the request's answers.
        index: usize,
        /// Why.
        reason: FinishReason,
        /// What it cost.
        usage: Usage,
    },
    /// The request failed; others go on.
    Failed {
        /// Whose.
        request: RequestId,
        /// Why.
        message: String,
    },
}

/// What a search with beams found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BeamOutput {
    /// For each answer, the sum of its tokens' scores divided by its length to the power of the length penalty.
    pub sequences_scores: Vec<f32>,
    /// For each answer and each of its tokens, the beam whose scores the token was chosen from.
    pub beam_indices: Vec<Vec<usize>>,
    /// For each step and beam, `[vocab_size]` logarithms of probabilities behind all processors, where asked.
    pub scores: Vec<Vec<Vec<f32>>>,
    /// For each step and beam, `[vocab_size]` logits of the model, where asked.
    pub logits: Vec<Vec<Vec<f32>>>,
}
