//! `generate`: from prompts and parameters to requests, and back.

use std::ops::ControlFlow;
use std::sync::Arc;

use gruff_engine::logits::{LogitsProcessor, PrefixAllowedTokens};
use gruff_engine::speculation::{DraftModel, PromptLookup, Speculation};
use gruff_engine::stopping::StoppingCriteria;
use gruff_engine::{Guidance, Request};

use crate::batch::Batch;
use crate::stop_strings::StopStrings;
use crate::{
    AutoModelForCausalLM, Constraint, Error, GenerateOutput, GenerationConfig, Prompts, Result, Streamed,
    StreamedToken, Streamer,
};

/// What `generate` takes besides prompts and parameters, named as transformers' arguments.
///
/// ```no_run
/// use gruff::{AutoModelForCausalLM, GenerateOptions, GenerationConfig, processor_fn};
///
/// let model = AutoModelForCausalLM::from_pretrained("model.gguf").load()?;
/// let never_13 = processor_fn("never 13", |_, logits| {
///     logits[13] = f32::NEG_INFINITY;
///     Ok(())
/// });
/// let options = GenerateOptions { logits_processor: vec![never_13], ..Default::default() };
/// let output = model.generate_with_options(vec![1, 2, 3], &GenerationConfig::default(), options)?;
/// # Ok::<(), gruff::Error>(())
/// ```
#[derive(Default)]
pub struct GenerateOptions<'a> {
    /// Processors of one's own, run behind the built-in ones and before temperature and truncation.
    pub logits_processor: Vec<Box<dyn LogitsProcessor>>,
    /// Criteria of one's own that end an answer.
    pub stopping_criteria: Vec<Box<dyn StoppingCriteria>>,
    /// What may follow the tokens so far.
    pub prefix_allowed_tokens_fn: Option<PrefixAllowedTokens>,
    /// Prompts that `guidance_scale` leads away from: one for all prompts, or one for each. Without them it is the
    /// prompt's last token.
    pub negative_prompt_ids: Option<Prompts>,
    /// A smaller model with the same vocabulary that drafts tokens. The answer is the same without.
    pub assistant_model: Option<&'a AutoModelForCausalLM>,
    /// Is told of the answer as it comes; for one prompt with one answer.
    pub streamer: Option<&'a mut dyn Streamer>,
}

fn refuse<T>(field: &str, fault: impl std::fmt::Display) -> Result<T> {
    Err(Error::Option(format!("{field}: {fault}")))
}

impl AutoModelForCausalLM {
    /// Answers every prompt, all of them together.
    ///
    /// # Errors
    /// [`Error::Engine`] or [`Error::Option`] for a prompt or parameter that cannot be served,
    /// [`Error::Generation`] for an answer that failed.
    pub fn generate(&self, prompts: impl Into<Prompts>, config: &GenerationConfig) -> Result<GenerateOutput> {
        self.generate_with(prompts, config, |_| ControlFlow::Continue(()))
    }

    /// [`generate`](Self::generate) under the name that transformers gives to its batch interface.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_batch(
        &self,
        prompts: Vec<Vec<u32>>,
        config: &GenerationConfig,
    ) -> Result<GenerateOutput> {
        self.generate(prompts, config)
    }

    /// As [`generate`](Self::generate), handing out each token as soon as it is there.
    /// [`ControlFlow::Break`] ends that prompt's answers; the tokens so far are kept.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_with(
        &self,
        prompts: impl Into<Prompts>,
        config: &GenerationConfig,
        mut on_token: impl FnMut(StreamedToken) -> ControlFlow<()>,
    ) -> Result<GenerateOutput> {
        self.generate_streaming(prompts, config, |event| match event {
            Streamed::Token(token) => on_token(token),
            Streamed::Prompt { .. } => ControlFlow::Continue(()),
        })
    }

    /// As [`generate_with`](Self::generate_with), telling of parts of long prompts too: an answer can be ended
    /// before it begins.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_streaming(
        &self,
        prompts: impl Into<Prompts>,
        config: &GenerationConfig,
        on_event: impl FnMut(Streamed) -> ControlFlow<()>,
    ) -> Result<GenerateOutput> {
        self.generate_streaming_with_options(prompts, config, GenerateOptions::default(), on_event)
    }

    /// As [`generate`](Self::generate), with processors, criteria, a draft model or a streamer.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and what the streamer says.
    pub fn generate_with_options(
        &self,
        prompts: impl Into<Prompts>,
        config: &GenerationConfig,
        options: GenerateOptions<'_>,
    ) -> Result<GenerateOutput> {
        self.generate_streaming_with_options(prompts, config, options, |_| ControlFlow::Continue(()))
    }

    /// As [`generate_streaming`](Self::generate_streaming) and
    /// [`generate_with_options`](Self::generate_with_options) together.
    ///
    /// # Errors
    /// As those.
    pub fn generate_streaming_with_options(
        &self,
        prompts: impl Into<Prompts>,
        config: &GenerationConfig,
        mut options: GenerateOptions<'_>,
        mut on_event: impl FnMut(Streamed) -> ControlFlow<()>,
    ) -> Result<GenerateOutput> {
        let Prompts(prompts) = prompts.into();
        let config = config.clone().or(self.generation_config());
        let mut streamer = options.streamer.take();
        let several = config.answers() > 1 || config.num_beams.is_some_and(|beams| beams > 1);
        if streamer.is_some() && (prompts.len() != 1 || several) {
            return refuse(
                "streamer",
                "it follows one answer: give one prompt, without beams and further sequences",
            );
        }
        let requests = self.requests(&prompts, &config, &options)?;
        let rollback = self.rollback_for(&requests);
        let width = config.width();
        let mut engine = self.lock()?;
        let engine = self.ready(&mut engine, prompts.len().saturating_mul(width), width, rollback)?;
        let keeps = config.include_stop_str_in_output.unwrap_or(false);
        let trims = if keeps { Vec::new() } else { config.stop_strings.clone().unwrap_or_default() };
        let batch = Batch::submit(engine, requests, config.answers(), trims)?;
        let mut told = Ok(());
        if let Some(streamer) = &mut streamer {
            told = prompts.iter().flatten().try_for_each(|id| streamer.on_token(*id, true));
        }
        let output = batch.finish(engine, |event| {
            if let (Some(streamer), Streamed::Token(token)) = (&mut streamer, event)
                && told.is_ok()
                && !self.ends(&config, token.id)
            {
                told = streamer.on_token(token.id, false);
            }
            if told.is_err() {
                return ControlFlow::Break(());
            }
            on_event(event)
        })?;
        told?;
        if let Some(streamer) = streamer {
            streamer.end()?;
        }
        Ok(output)
    }

    fn ends(&self, config: &GenerationConfig, id: u32) -> bool {
        config.eos_token_id.as_deref().unwrap_or(self.end_tokens()).contains(&id)
    }

    /// Tokens that the engine must be able to take back. Without recurrent state it always can.
    pub(crate) fn rollback_for(&self, requests: &[Request]) -> usize {
        if !self.model().config().caches.is_recurrent() {
            return 0;
        }
        requests
            .iter()
            .filter_map(|request| request.speculation.as_ref())
            .map(|s| s.most())
            .max()
            .unwrap_or(0)
    }

    /// The engine's requests for a batch of prompts, with everything that `config` and `options` ask for (the
    /// streamer aside), for those who run an engine of their own.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), before any token.
    pub fn requests(
        &self,
        prompts: &[Vec<u32>],
        config: &GenerationConfig,
        options: &GenerateOptions<'_>,
    ) -> Result<Vec<Request>> {
        config.validate()?;
        let speculation = self.speculation(config, options)?;
        let mut processors = options.logits_processor.clone();
        if let Some(constraint) = &config.constraint {
            processors.push(self.constraint(constraint)?);
        }
        let mut stopping = options.stopping_criteria.clone();
        if let Some(stops) = config.stop_strings.as_ref().filter(|stops| !stops.is_empty()) {
            stopping.push(Box::new(self.stop_strings(stops)?));
        }
        let negative = options.negative_prompt_ids.as_ref().map(|Prompts(negative)| negative.as_slice());
        if let Some(negative) = negative
            && negative.len() != 1
            && negative.len() != prompts.len()
        {
            return refuse(
                "negative_prompt_ids",
                format_args!(
                    "{} of them for {} prompts; give one, or one for each",
                    negative.len(),
                    prompts.len()
                ),
            );
        }
        let request = |(index, prompt): (usize, &Vec<u32>)| -> Result<Request> {
            config.validate_prompt(prompt.len())?;
            let mut request = config.request(prompt.clone(), index, self.end_tokens());
            request.borders =
                self.text_tokenizer().map(|text| text.message_borders(prompt)).unwrap_or_default();
            request.sampling.prefix_allowed_tokens.clone_from(&options.prefix_allowed_tokens_fn);
            request.processors.clone_from(&processors);
            request.stopping.clone_from(&stopping);
            request.speculation.clone_from(&speculation);
            if let Some(scale) = config.guidance_scale.filter(|_| config.guides()) {
                let own = negative.and_then(|all| all.get(index.min(all.len() - 1)));
                request.guidance =
                    Some(Guidance { scale, negative_prompt: own.cloned().unwrap_or_default() });
            }
            Ok(request)
        };
        prompts.iter().enumerate().map(request).collect()
    }

    /// The processor that holds an answer to a constraint, for those who run an engine of their own.
    ///
    /// # Errors
    /// [`Error::GrammarSize`] for one that is too large, [`Error::Option`] for a grammar that is not one or asks for what
    /// cannot be honoured.
    pub fn constraint(&self, constraint: &Constraint) -> Result<Box<dyn LogitsProcessor>> {
        Ok(Box::new(self.grammars()?.compile(constraint)?))
    }

    fn stop_strings(&self, stops: &[String]) -> Result<StopStrings> {
        let Some(tokenizer) = self.text_tokenizer() else {
            return refuse(
                "stop_strings",
                "the checkpoint has no vocabulary that can be read, so there is no text",
            );
        };
        // A token has at least one byte of text, mostly more.
        let context = self.longest_context();
        let longest = stops.iter().find(|stop| {
            let ids =
                tokenizer.encode(stop, gruff_text::EncodeOptions { add_special: false, parse_special: true });
            ids.is_ok_and(|ids| ids.len() > context)
        });
        if longest.is_some() {
            return refuse(
                "stop_strings",
                format_args!("one is longer than the context of {context} tokens"),
            );
        }
        Ok(StopStrings::new(tokenizer, stops.to_vec()))
    }

    fn speculation(
        &self,
        config: &GenerationConfig,
        options: &GenerateOptions<'_>,
    ) -> Result<Option<Arc<dyn Speculation>>> {
        let lookup = config.prompt_lookup_num_tokens.filter(|count| *count > 0);
        if config.num_beams.is_some_and(|beams| beams > 1) {
            for (field, asked) in [
                ("assistant_model", options.assistant_model.is_some()),
                ("prompt_lookup_num_tokens", lookup.is_some()),
            ] {
                if asked {
                    return refuse(field, "drafts do not serve a search with beams; leave num_beams out");
                }
            }
        }
        // What recurrent state can be rolled back, and logits that a step has room for.
        let most = gruff_kernels::CHUNK;
        if let Some(assistant) = options.assistant_model {
            if lookup.is_some() {
                return refuse(
                    "prompt_lookup_num_tokens",
                    "a draft model drafts already; leave one of them out",
                );
            }
            let sizes = [self, assistant].map(|model| model.text_tokenizer().map(|text| text.vocab_size()));
            if sizes[0].is_some() && sizes[1].is_some() && sizes[0] != sizes[1] {
                return refuse(
                    "assistant_model",
                    "its vocabulary differs; a draft model must have the same tokens",
                );
            }
            let mut draft = DraftModel::new(assistant.model().clone());
            let given = config.num_assistant_tokens.unwrap_or(draft.num_assistant_tokens);
            draft.num_assistant_tokens = given.min(most);
            draft.schedule = config.schedule()?;
            draft.confidence_threshold =
                config.assistant_confidence_threshold.unwrap_or(draft.confidence_threshold);
            draft.kv_dtype = assistant.engine_options().kv_dtype;
            return Ok(Some(Arc::new(draft)));
        }
        let Some(num_tokens) = lookup else { return Ok(None) };
        let max_matching_ngram_size = config.max_matching_ngram_size.unwrap_or(2);
        Ok(Some(Arc::new(PromptLookup { num_tokens: num_tokens.min(most), max_matching_ngram_size })))
    }
}
