//! The processors that a request asks for, in transformers' order.

use super::{
    BadWords, BeginSuppressTokens, DryPenalty, DynamicTemperature, EncoderNoRepeatNGram,
    EncoderRepetitionPenalty, EpsilonCutoff, EtaCutoff, ExponentialDecayLengthPenalty, ForcedBosToken,
    ForcedEosToken, LogitBias, LogitsProcessor, MinLength, MinNewTokens, MinP, MirostatSampler,
    NoRepeatNGram, OccurrencePenalty, RemoveInvalidValues, Renormalize, RepetitionPenalty, SequenceBias,
    SuppressTokens, Temperature, TokenContext, TopH, TopK, TopNSigma, TopP, TypicalP, Watermark, XtcSampler,
};
use crate::{Error, FinishReason, Result, SamplingParams};

/// Processors that run one after the other on the logits of one sequence.
#[derive(Clone, Debug, Default)]
pub struct ProcessorList {
    list: Vec<Box<dyn LogitsProcessor>>,
    /// So many come before those that only sampling has.
    head: usize,
    /// Whether the others are what a device's sampler does by itself.
    fused_tail: bool,
    /// Whether the device's sampler does everything.
    fused: bool,
}

impl ProcessorList {
    /// What `params` ask for, `own` processors of the request among them, for a prompt of `prompt_len` tokens.
    /// Truncation keeps at least `min_tokens_to_keep` tokens (more than one for beams, which must be able to go on).
    pub fn new(
        params: &SamplingParams,
        own: &[Box<dyn LogitsProcessor>],
        prompt_len: usize,
        end_tokens: &[u32],
        min_tokens_to_keep: usize,
    ) -> Self {
        let mut list = Vec::new();
        params.push_head(&mut list, prompt_len, end_tokens);
        let built_in = list.len();
        let penalizes = params.repetition_penalty != 1.0;
        list.extend(own.iter().cloned());
        let head = list.len();
        params.push_tail(&mut list, min_tokens_to_keep);
        let fused_tail = params.tail_is_fused() && min_tokens_to_keep == 1;
        let fused = fused_tail && own.is_empty() && built_in == usize::from(penalizes);
        Self { list, head, fused_tail, fused }
    }

    /// A list of these processors.
    pub fn from_processors(list: Vec<Box<dyn LogitsProcessor>>) -> Self {
        Self { head: list.len(), list, fused_tail: false, fused: false }
    }

    /// Whether a device's sampler does all of it, so that logits need not be looked at.
    pub fn is_fused(&self) -> bool {
        self.fused
    }

    /// Whether a device's sampler does what comes behind [`process_head`](Self::process_head).
    pub(crate) fn has_fused_tail(&self) -> bool {
        self.fused_tail
    }

    /// The processors' names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.list.iter().map(|processor| processor.name()).collect()
    }

    /// Runs all of them.
    ///
    /// # Errors
    /// What a processor returns; [`Error::RuledOut`] with their names when none of the tokens that could be said
    /// before can be said after.
    pub fn process(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        self.run(self.list.len(), context, logits)
    }

    /// Runs those that do not belong to sampling.
    pub(crate) fn process_head(&mut self, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        self.run(self.head, context, logits)
    }

    fn run(&mut self, count: usize, context: &TokenContext<'_>, logits: &mut [f32]) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let usable = |logits: &[f32]| logits.iter().any(|x| super::spread::alive(*x));
        let before = usable(logits);
        for processor in &mut self.list[..count] {
            processor.process(context, logits)?;
        }
        if before && !usable(logits) {
            let names = self.list[..count].iter().map(|processor| processor.name().to_owned());
            return Err(Error::RuledOut { position: context.tokens.len(), processors: names.collect() });
        }
        Ok(())
    }

    /// Tells all of them that the answer ends.
    ///
    /// # Errors
    /// The first objection.
    pub fn finish(&mut self, context: &TokenContext<'_>, reason: FinishReason) -> Result<()> {
        self.list.iter_mut().try_for_each(|processor| processor.finish(context, reason))
    }
}

impl SamplingParams {
    fn push_head(&self, list: &mut Vec<Box<dyn LogitsProcessor>>, prompt_len: usize, end_tokens: &[u32]) {
        let mut push = |wanted: bool, make: &dyn Fn() -> Box<dyn LogitsProcessor>| {
            if wanted {
                list.push(make());
            }
        };
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        push(!self.sequence_bias.is_empty(), &|| Box::new(SequenceBias(self.sequence_bias.clone())));
        push(!self.logit_bias.is_empty(), &|| Box::new(LogitBias(self.logit_bias.clone())));
        let encoder = self.encoder_repetition_penalty;
        push(encoder != 1.0, &|| Box::new(EncoderRepetitionPenalty(encoder)));
        push(self.repetition_penalty != 1.0, &|| Box::new(RepetitionPenalty(self.repetition_penalty)));
        push(presence != 0.0 || frequency != 0.0, &|| Box::new(OccurrencePenalty { presence, frequency }));
        let dry = self.dry.as_ref().filter(|dry| dry.multiplier != 0.0);
        push(dry.is_some(), &|| Box::new(DryPenalty(dry.cloned().unwrap_or_default())));
        push(self.no_repeat_ngram_size > 0, &|| Box::new(NoRepeatNGram(self.no_repeat_ngram_size)));
        let size = self.encoder_no_repeat_ngram_size;
        push(size > 0, &|| Box::new(EncoderNoRepeatNGram(size)));
        push(!self.bad_words_ids.is_empty(), &|| Box::new(BadWords::new(&self.bad_words_ids, end_tokens)));
        push(self.min_length > 0, &|| Box::new(MinLength(self.min_length)));
        push(self.min_new_tokens > 0, &|| Box::new(MinNewTokens(self.min_new_tokens)));
        let allowed = self.prefix_allowed_tokens.as_ref();
        if let Some(allowed) = allowed {
            push(true, &|| Box::new(allowed.clone()));
        }
        if let Some(id) = self.forced_bos_token_id {
            push(true, &|| Box::new(ForcedBosToken(id)));
        }
        let forced = &self.forced_eos_token_id;
        push(!forced.is_empty(), &|| Box::new(ForcedEosToken(forced.clone())));
        push(self.remove_invalid_values, &|| Box::new(RemoveInvalidValues));
        if let Some((start, factor)) = self.exponential_decay_length_penalty {
            push(true, &|| Box::new(ExponentialDecayLengthPenalty { start, factor }));
        }
        push(!self.suppress_tokens.is_empty(), &|| Box::new(SuppressTokens(self.suppress_tokens.clone())));
        // Behind a prompt of one token, a forced one still belongs to the beginning.
        let begin = prompt_len + usize::from(prompt_len <= 1 && self.forced_bos_token_id.is_some());
        let ids = &self.begin_suppress_tokens;
        push(!ids.is_empty(), &|| Box::new(BeginSuppressTokens { ids: ids.clone(), begin }));
    }

    fn push_tail(&self, list: &mut Vec<Box<dyn LogitsProcessor>>, min_tokens_to_keep: usize) {
        let mut push = |wanted: bool, make: &dyn Fn() -> Box<dyn LogitsProcessor>| {
            if wanted {
                list.push(make());
            }
        };
        let temperature = self.temperature;
        if temperature > 0.0 {
            match self.dynamic_temperature.filter(|range| range.range > 0.0) {
                Some(range) => push(true, &|| Box::new(DynamicTemperature { temperature, range })),
                None => push(temperature != 1.0, &|| Box::new(Temperature(temperature))),
            }
            push(self.top_n_sigma > 0.0, &|| Box::new(TopNSigma(self.top_n_sigma)));
            if let Some(h) = self.top_h {
                push(true, &|| Box::new(TopH(h)));
            }
            push(self.top_k > 0, &|| Box::new(TopK { k: self.top_k.max(min_tokens_to_keep) }));
            push(self.top_p < 1.0, &|| Box::new(TopP { p: self.top_p, min_tokens_to_keep }));
            push(self.min_p > 0.0, &|| Box::new(MinP { p: self.min_p, min_tokens_to_keep }));
            push(self.typical_p < 1.0, &|| Box::new(TypicalP { mass: self.typical_p, min_tokens_to_keep }));
            let epsilon = self.epsilon_cutoff;
            push(epsilon > 0.0, &|| Box::new(EpsilonCutoff { epsilon, min_tokens_to_keep }));
            let epsilon = self.eta_cutoff;
            push(epsilon > 0.0, &|| Box::new(EtaCutoff { epsilon, min_tokens_to_keep }));
            if let Some(xtc) = self.xtc.filter(|xtc| xtc.probability > 0.0) {
                push(true, &|| Box::new(XtcSampler(xtc)));
            }
            if let Some(mirostat) = self.mirostat {
                push(true, &|| Box::new(MirostatSampler::new(mirostat)));
            }
        }
        if let Some(watermark) = self.watermark {
            push(true, &|| Box::new(Watermark::new(watermark)));
        }
        push(self.renormalize_logits, &|| Box::new(Renormalize));
    }

    /// Whether sampling needs nothing but what [`gruff_kernels::sampling::sample`] does.
    fn tail_is_fused(&self) -> bool {
        let plain = self.watermark.is_none() && !self.renormalize_logits;
        let greedy = self.temperature == 0.0;
        let simple = self.dynamic_temperature.is_none_or(|range| range.range <= 0.0)
            && self.top_n_sigma <= 0.0
            && self.top_h.is_none()
            && self.typical_p >= 1.0
            && self.epsilon_cutoff <= 0.0
            && self.eta_cutoff <= 0.0
            && self.xtc.is_none_or(|xtc| xtc.probability <= 0.0)
            && self.mirostat.is_none();
        plain && (greedy || simple)
    }
}
