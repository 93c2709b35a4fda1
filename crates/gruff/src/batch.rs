//! The prompts of one call, on their way through the engine.

use std::ops::ControlFlow;

use gruff_engine::{Engine, Event, FinishReason, Request, RequestId, Usage};

use crate::model::{GenerateOutput, Streamed, StreamedToken};
use crate::{Error, Result};

/// Follows the requests of one call.
pub(crate) struct Batch {
    ids: Vec<RequestId>,
    output: GenerateOutput,
}

impl Batch {
    /// Submits all prompts, or none.
    pub(crate) fn submit(
        engine: &mut Engine,
        prompts: Vec<Vec<u32>>,
        request: impl Fn(Vec<u32>, usize) -> Request,
    ) -> Result<Self> {
        let mut ids = Vec::with_capacity(prompts.len());
        for (index, prompt) in prompts.iter().enumerate() {
            match engine.submit(request(prompt.clone(), index)) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| drop(engine.cancel(id)));
                    return Err(error.into());
                }
            }
        }
        let count = prompts.len();
        let output = GenerateOutput {
            sequences: prompts,
            finish_reasons: vec![FinishReason::Cancelled; count],
            usage: vec![Usage::default(); count],
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
            for event in engine.step()? {
                if let Some(streamed) = self.take(event)?
                    && on_event(streamed).is_break()
                    && let Some(event) = engine.cancel(self.ids[streamed.prompt()])
                {
                    self.take(event)?;
                }
            }
        }
        Ok(())
    }

    /// Takes an event in, and hands on what a caller may want to know.
    fn take(&mut self, event: Event) -> Result<Option<Streamed>> {
        let at = |id| self.ids.iter().position(|known| *known == id);
        match event {
            Event::Prompt { request, done, total } => {
                Ok(at(request).map(|prompt| Streamed::Prompt { prompt, done, total }))
            }
            Event::Token { request, id } => Ok(at(request).map(|prompt| {
                self.output.sequences[prompt].push(id);
                Streamed::Token(StreamedToken { prompt, id })
            })),
            Event::Finished { request, reason, usage } => {
                if let Some(prompt) = at(request) {
                    self.output.finish_reasons[prompt] = reason;
                    self.output.usage[prompt] = usage;
                }
                Ok(None)
            }
            Event::Failed { request, message } => match at(request) {
                Some(prompt) => Err(Error::Generation { prompt, message }),
                None => Ok(None),
            },
        }
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
        let request = |prompt, _| Request { max_new_tokens: Some(4), ..Request::new(prompt) };
        Batch::submit(engine, vec![vec![1], vec![2, 3], vec![4]], request).expect("three prompts")
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
