//! The prompts of one call, on their way through the engine.

use std::ops::ControlFlow;
use std::sync::Arc;

use gruff_engine::{Engine, Event, FinishReason, Request, RequestId, Usage};

use crate::model::{Streamed, StreamedToken};
use crate::{Error, GenerateOutput, Result};

/// Follows the requests of one call.
pub(crate) struct Batch {
    ids: Vec<RequestId>,
    output: GenerateOutput,
}

impl Batch {
    /// Submits all requests, or none. Each has so many `answers`; `trims` end an answer's text.
    pub(crate) fn submit(
        engine: &mut Engine,
        requests: Vec<Request>,
        answers: usize,
        trims: Vec<String>,
    ) -> Result<Self> {
        let rows = requests.len() * answers;
        let repeated = |request: &Request| std::iter::repeat_n(request.prompt.clone(), answers);
        let sequences: Vec<Vec<u32>> = requests.iter().flat_map(repeated).collect();
        let searches = requests.iter().any(|request| request.beams.is_some());
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match engine.submit(request) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| drop(engine.cancel(id)));
                    return Err(error.into());
                }
            }
        }
        let output = GenerateOutput {
            prompt_lengths: sequences.iter().map(Vec::len).collect(),
            sequences,
            finish_reasons: vec![FinishReason::Cancelled; rows],
            usage: vec![Usage::default(); rows],
            details: vec![Vec::new(); rows],
            sequences_scores: searches.then(|| vec![0.0; rows]),
            beam_indices: searches.then(|| vec![Vec::new(); rows]),
            beams: Vec::new(),
            answers,
            trims: Arc::new(trims),
        };
        Ok(Self { ids, output })
    }

    /// Runs until every prompt is answered. Whatever becomes of it, none of the batch stays in the engine.
    pub(crate) fn finish(
        mut self,
        engine: &mut Engine,
        on_event: impl FnMut(Streamed) -> ControlFlow<()>,
    ) -> Result<GenerateOutput> {
        let done = self.run(engine, on_event);
        for id in &self.ids {
            engine.cancel(*id);
        }
        done.map(|()| self.output)
    }

    fn run(
        &mut self,
        engine: &mut Engine,
        mut on_event: impl FnMut(Streamed) -> ControlFlow<()>,
    ) -> Result<()> {
        while !engine.is_idle() {
            let mut cancelled = Vec::new();
            for event in engine.step()? {
                if let Some(streamed) = self.take(event, &cancelled)?
                    && on_event(streamed).is_break()
                {
                    cancelled.push(self.ids[streamed.prompt()]);
                    if let Some(event) = engine.cancel(self.ids[streamed.prompt()]) {
                        self.take(event, &[])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes an event in, and hands on what a caller may want to know. What a step still brought for a request that
    /// was `cancelled` meanwhile does not count.
    fn take(&mut self, event: Event, cancelled: &[RequestId]) -> Result<Option<Streamed>> {
        let answers = self.output.answers;
        let at = |id| self.ids.iter().position(|known| *known == id && !cancelled.contains(&id));
        match event {
            Event::Prompt { request, done, total } => {
                Ok(at(request).map(|prompt| Streamed::Prompt { prompt, done, total }))
            }
            Event::Token { request, index, id, details } => Ok(at(request).map(|prompt| {
                let sequence = prompt * answers + index;
                self.output.sequences[sequence].push(id);
                if let Some(details) = details {
                    self.output.details[sequence].push(*details);
                }
                Streamed::Token(StreamedToken { prompt, sequence, id })
            })),
            Event::PromptDetails { .. } => Ok(None),
            Event::Beams { request, found } => {
                if let Some(prompt) = at(request) {
                    self.take_beams(prompt, *found);
                }
                Ok(None)
            }
            Event::Finished { request, index, reason, usage } => {
                if let Some(prompt) = at(request) {
                    self.output.finish_reasons[prompt * answers + index] = reason;
                    self.output.usage[prompt * answers + index] = usage;
                }
                Ok(None)
            }
            Event::Failed { request, message } => match at(request) {
                Some(prompt) => Err(Error::Generation { prompt, message }),
                None => Ok(None),
            },
        }
    }

    fn take_beams(&mut self, prompt: usize, found: gruff_engine::BeamOutput) {
        let first = prompt * self.output.answers;
        for (index, score) in found.sequences_scores.iter().enumerate() {
            if let Some(scores) = &mut self.output.sequences_scores {
                scores[first + index] = *score;
            }
        }
        for (index, beams) in found.beam_indices.iter().enumerate() {
            if let Some(indices) = &mut self.output.beam_indices {
                indices[first + index].clone_from(beams);
            }
        }
        self.output.beams.resize(self.ids.len(), gruff_engine::BeamOutput::default());
        self.output.beams[prompt] = found;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use gruff_engine::{Context, EngineOptions};
    use gruff_kernels::{Activations, Device, Step, Tensor};
    use gruff_models::{CachePlan, Caches, LayerCache, Model, ModelBase, ModelConfig, Names};

    use super::*;

    const VOCABULARY: usize = 8;

    /// Always says 5; while `broken`, the logits of every sequence's last row are not numbers.
    struct Five {
        base: ModelBase,
        broken: AtomicBool,
    }

    impl Model for Five {
        fn base(&self) -> &ModelBase {
            &self.base
        }

        fn forward(&self, step: &Step, _: &mut Caches) -> gruff_models::Result<Tensor> {
            let rows = step.output_rows().len();
            let mut logits = vec![0.0; rows * VOCABULARY];
            for (row, logits) in logits.chunks_exact_mut(VOCABULARY).enumerate() {
                logits[5] = 1.0;
                if self.broken.load(Ordering::Relaxed) && row + 1 == rows {
                    logits.fill(f32::NAN);
                }
            }
            Ok(self.base.device.tensor_f32(&logits, &[rows, VOCABULARY])?)
        }
    }

    fn five() -> (Arc<Five>, Engine) {
        let kv = LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 };
        let config = ModelConfig {
            architecture: "five".into(),
            name: None,
            num_hidden_layers: 1,
            hidden_size: 8,
            vocab_size: VOCABULARY,
            max_position_embeddings: 64,
            num_parameters: 1,
            weight_bytes: 4,
            caches: CachePlan::new(vec![kv]),
        };
        let device = Device::reference(Activations::F32);
        let base = ModelBase::new(config, device, Names(&[]));
        let model = Arc::new(Five { base, broken: AtomicBool::new(false) });
        let options =
            EngineOptions { context: Context::Tokens(64), max_sequences: 3, ..EngineOptions::default() };
        let engine = Engine::new(model.clone(), options).expect("a small engine");
        (model, engine)
    }

    fn submit(engine: &mut Engine) -> Batch {
        let request = |prompt| Request { max_new_tokens: Some(4), ..Request::new(prompt) };
        let requests = [vec![1], vec![2, 3], vec![4]].map(request);
        Batch::submit(engine, requests.into(), 1, Vec::new()).expect("three prompts")
    }

    #[test]
    fn a_failure_names_its_prompt_and_leaves_nothing_behind() {
        let (model, mut engine) = five();
        let mut tokens = 0;
        let failed = submit(&mut engine).finish(&mut engine, |streamed| {
            tokens += usize::from(matches!(streamed, Streamed::Token(_)));
            model.broken.store(tokens == 3, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        match failed {
            Err(Error::Generation { prompt: 2, message }) => assert!(message.contains("logits"), "{message}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(tokens, 5, "the other two had a token of the step that failed");
        assert!(engine.is_idle(), "the others were taken out");

        model.broken.store(false, Ordering::Relaxed);
        let output =
            submit(&mut engine).finish(&mut engine, |_| ControlFlow::Continue(())).expect("it is mended");
        assert_eq!(output.sequences, [vec![1, 5, 5, 5, 5], vec![2, 3, 5, 5, 5, 5], vec![4, 5, 5, 5, 5]]);
    }

    #[test]
    fn a_break_ends_one_prompt_alone() {
        let (_, mut engine) = five();
        let output = submit(&mut engine).finish(&mut engine, |streamed| match streamed {
            Streamed::Token(token) if token.prompt == 1 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        let output = output.expect("nothing fails");
        assert_eq!(output.sequences, [vec![1, 5, 5, 5, 5], vec![2, 3, 5], vec![4, 5, 5, 5, 5]]);
        assert_eq!(output.finish_reasons[1], FinishReason::Cancelled);
    }
}
