//! Answers on their way from the engine: tokens, and the text they make.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gruff::floors::text::chat::OutputFormat;
use gruff::floors::text::{Detokenizer, Tokenizer};
use gruff::{FinishReason, StopMatcher, Usage};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api_error::ApiError;
use crate::engine_thread::Update;
use crate::metrics::Metrics;
use crate::request_log::Record;
use crate::service::Service;

/// How far an answer has come for who reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Of its prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens that have come.
    pub(crate) tokens: usize,
    /// Whether it has been counted as a whole answer.
    pub(crate) ended: bool,
}

/// The answers to one request. Dropping it cancels what is still being generated.
pub(crate) struct Generation {
    pub(crate) updates: UnboundedReceiver<(usize, Update)>,
    pub(crate) cancelled: Vec<Arc<AtomicBool>>,
    /// How far each answer has come.
    pub(crate) progress: Vec<Progress>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) started: Instant,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) record: Arc<Record>,
    /// Keeps the model loaded.
    pub(crate) _service: Arc<Service>,
}

impl Generation {
    /// What comes next, and of which answer; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        let next = match self.deadline {
            None => self.updates.recv().await,
            // What waits to be told does not make up for the time that its reader took.
            Some(deadline) if deadline <= Instant::now() => return Err(ApiError::timeout()),
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), self.updates.recv()).await {
                Ok(next) => next,
                Err(_) => return Err(ApiError::timeout()),
            },
        };
        match &next {
            Some((choice, Update::Token(..))) => {
                if let Some(progress) = self.progress.get_mut(*choice) {
                    if progress.tokens == 0 {
                        let time = self.started.elapsed();
                        self.metrics.first_token(time);
                        self.record.first_token(progress.prompt_tokens, time);
                    }
                    progress.tokens += 1;
                    self.record.token();
                }
            }
            Some((_, Update::Failed(error))) => return Err(error.clone()),
            Some((_, Update::Prompt(_) | Update::Finished(..))) | None => {}
        }
        Ok(next)
    }

    /// Counts an answer that has ended, by what its request is told of it.
    pub(crate) fn ended(&mut self, choice: usize, usage: &Usage) {
        self.metrics.answer(usage, self.started.elapsed());
        if let Some(progress) = self.progress.get_mut(choice) {
            self.record.answer(usage, progress.tokens);
            progress.ended = true;
        }
    }

    /// Ends one answer; its [`Update::Finished`] still comes, and before it tokens that were computed meanwhile.
    pub(crate) fn cancel(&self, choice: usize) {
        if let Some(cancelled) = self.cancelled.get(choice) {
            cancelled.store(true, Ordering::Release);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for left in self.progress.iter().filter(|progress| !progress.ended && progress.tokens > 0) {
            self.metrics.left(left.tokens);
        }
    }
}

/// Turns the tokens of one answer into text, up to a stop string.
pub(crate) struct TextReader {
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    end_tokens: Arc<[u32]>,
    /// Special tokens that are marks of these formats are part of the text.
    format: OutputFormat,
    stop: StopMatcher,
}

impl TextReader {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        end_tokens: Arc<[u32]>,
        format: OutputFormat,
        stops: Vec<String>,
        continues: bool,
    ) -> Self {
        let detokenizer = Detokenizer::new(tokenizer, false);
        Self {
            tokenizer: tokenizer.clone(),
            detokenizer: if continues { detokenizer.continuing() } else { detokenizer },
            end_tokens,
            format,
            stop: StopMatcher::new(stops),
        }
    }

    /// The text that a token completes; `None` for a token that is no part of the text.
    pub(crate) fn token(&mut self, id: u32) -> Option<String> {
        let left_out = self.end_tokens.contains(&id)
            || (self.tokenizer.is_control(id)
                && !self.tokenizer.id_to_token(id).is_some_and(|token| self.format.uses(&token)));
        if left_out {
            return None;
        }
        Some(self.stop.push(self.detokenizer.push(id)))
    }

    /// What was held back, at the end.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = self.stop.push(self.detokenizer.finish());
        text.push_str(&self.stop.finish());
        text
    }

    /// The stop string that was found.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stop.found()
    }
}

/// Why an answer ended, in OpenAI's words.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::MaxNewTokens | FinishReason::Context | FinishReason::MaxTime => "length",
        // A cancelled answer has met its stop string, or its last allowed call.
        _ => "stop",
    }
}

/// The usage of an answer that ended with its token number `tokens`, whatever else was computed until the engine heard
/// of it; the rate is what was measured.
pub(crate) fn ended_with(tokens: usize, usage: Usage) -> Usage {
    let new_tokens = tokens.min(usage.new_tokens);
    let steps = |tokens: usize| tokens.saturating_sub(1) as f64;
    // A single token takes no time behind the first.
    let share = steps(new_tokens) / steps(usage.new_tokens).max(1.0);
    Usage { new_tokens, decode_time: usage.decode_time.mul_f64(share), ..usage }
}

/// `usage` of several answers, `each` to one prompt after the other, of prompts that have `prompt_tokens` together;
/// `reasoning_tokens` of the answers were reasoning, where they are told from the others.
///
/// A prompt's tokens are told once, however many answers it has. So its cached ones are those that were computed for none
/// of its answers: all but one of them find what that one computed.
pub(crate) fn usage(
    prompt_tokens: usize,
    usages: &[Usage],
    each: usize,
    reasoning_tokens: Option<usize>,
) -> serde_json::Value {
    let completion: usize = usages.iter().map(|usage| usage.new_tokens).sum();
    let saved = |answers: &[Usage]| answers.iter().map(|usage| usage.cached_tokens).min().unwrap_or(0);
    let cached: usize = usages.chunks(each.max(1)).map(saved).sum();
    let mut usage = serde_json::json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    });
    if let Some(reasoning) = reasoning_tokens {
        usage["completion_tokens_details"] = serde_json::json!({"reasoning_tokens": reasoning});
    }
    usage
}

/// `timings` as llama-server gives them, of one answer.
pub(crate) fn timings(usage: &Usage) -> serde_json::Value {
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
    serde_json::json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": usage.prompt_tokens - usage.cached_tokens,
        "prompt_ms": millis(usage.prompt_time),
        "prompt_per_second": usage.prompt_per_second(),
        "predicted_n": usage.new_tokens,
        "predicted_ms": millis(usage.decode_time),
        "predicted_per_second": usage.decode_per_second(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, Context, GenerationConfig};

    use super::*;
    use crate::ServedModel;
    use crate::service::Shared;

    #[tokio::test]
    async fn what_is_generated_holds_no_place_though_nobody_reads_it() {
        let from = AutoModelForCausalLM::from_pretrained(BUNDLED);
        let model = Arc::new(from.context(Context::Tokens(256)).threads(1).load().unwrap());
        let tokenizer = AutoTokenizer::from_pretrained(BUNDLED).load().unwrap();
        let shared = Shared { options: Arc::default(), metrics: Arc::default(), responses: Arc::default() };
        let options = shared.options.engine(&model);
        let served = ServedModel::new(BUNDLED, model, tokenizer);
        let service = Arc::new(Service::start(served, options, &shared).unwrap());
        let prompt = service.tokenizer.encode("A cat").unwrap();
        let config = GenerationConfig { max_new_tokens: Some(3), ..service.generation_config.clone() };
        let prompt_tokens = prompt.len();
        let requests = service.requests(&[prompt], 2, &config).unwrap();
        let mut generation = service.begin(requests).unwrap();
        for _ in 0..1000 {
            if service.in_progress() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(service.in_progress(), 0);
        assert!(generation.next().await.unwrap().is_some());
        generation.deadline = Some(Instant::now());
        assert_eq!(generation.next().await.unwrap_err(), ApiError::timeout());

        // One token was told; the answer it is of is left.
        let (metrics, record) = (generation.metrics.clone(), generation.record.clone());
        drop(generation);
        let text = metrics.text(&crate::metrics::Now::default());
        for line in
            ["gruff_left_answers_total 1", "gruff_left_tokens_total 1", "gruff_generated_tokens_total 0"]
        {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert_eq!(record.tokens(), (prompt_tokens as u64, 0, 1));
    }

    #[test]
    fn a_whole_answer_counts_by_its_usage() {
        let record = Record::default();
        record.first_token(9, Duration::from_secs(1));
        (0..5).for_each(|_| record.token());
        assert_eq!(record.tokens(), (9, 0, 5));
        let usage = Usage { prompt_tokens: 9, cached_tokens: 8, new_tokens: 3, ..Usage::default() };
        record.answer(&usage, 5);
        assert_eq!(record.tokens(), (9, 8, 3));
        record.answer(&usage, 0);
        assert_eq!(record.tokens(), (18, 16, 6), "an answer without a token of its own");
    }

    #[test]
    fn cached_tokens_are_those_that_no_answer_computed() {
        let with =
            |cached_tokens| Usage { prompt_tokens: 9, cached_tokens, new_tokens: 2, ..Usage::default() };
        let cached = |usages: &[Usage], each| {
            usage(18, usages, each, None)["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        // One computes the prompt and the others share it.
        assert_eq!(cached(&[with(0), with(8), with(8)], 3), 0);
        // The second request finds it.
        assert_eq!(cached(&[with(8), with(8), with(8)], 3), 8);
        assert_eq!(cached(&[with(8), with(4), with(3), with(7)], 2), 7);
        assert_eq!(cached(&[with(8), with(4), with(3), with(7)], 1), 22);
        assert_eq!(cached(&[], 0), 0);
    }

    #[test]
    fn tokens_behind_the_end_are_not_told() {
        let measured = Usage { new_tokens: 11, decode_time: Duration::from_secs(10), ..Usage::default() };
        let told = ended_with(6, measured);
        assert_eq!((told.new_tokens, told.decode_time), (6, Duration::from_secs(5)));
        assert_eq!(told.decode_per_second(), measured.decode_per_second());
        assert_eq!(ended_with(11, measured), measured);
        assert_eq!(ended_with(12, measured), measured);
        assert_eq!(ended_with(0, measured).decode_time, Duration::ZERO);
        let single = Usage { new_tokens: 1, ..measured };
        assert_eq!(ended_with(0, single), Usage { new_tokens: 0, decode_time: Duration::ZERO, ..measured });
    }
}
