//! From rows of logits to tokens.

use gruff_kernels::sampling::{self, SampleSpec};
use gruff_kernels::{DType, Tensor};

use crate::logits::{log_softmax, most_likely, only_infinite};
use crate::sequence::Sequence;
use crate::{Error, OutputOptions, Result, TokenDetails};

/// A chosen token with what was asked about it.
pub(crate) struct Chosen {
    pub(crate) id: u32,
    pub(crate) details: Option<Box<TokenDetails>>,
}

/// Draws from row `[1, vocab_size]`.
fn draw(row: &Tensor, spec: SampleSpec) -> Result<Option<u32>> {
    let ids = row.device().scratch(DType::I32, &[1])?;
    sampling::sample(row, &[spec], &ids)?;
    Ok(ids.to_vec_i32()?.first().and_then(|id| u32::try_from(*id).ok()))
}

/// Row `index` of the logits, `[1, vocab_size]`.
fn row_of(logits: &Tensor, index: usize) -> Result<Tensor> {
    Ok(logits.narrow(0, index, 1)?)
}

/// The values of row `index`.
pub(crate) fn values(logits: &Tensor, index: usize) -> Result<Vec<f32>> {
    Ok(row_of(logits, index)?.to_vec_f32()?)
}

impl Sequence {
    /// Whether the device chooses the sequence's token without anybody looking at logits.
    pub(crate) fn is_fused(&self, outputs: OutputOptions) -> bool {
        self.chain.is_fused() && !outputs.reads_logits()
    }

    /// Chooses the next token from row `index` of the logits.
    pub(crate) fn choose(&mut self, logits: &Tensor, index: usize, outputs: OutputOptions) -> Result<Chosen> {
        if self.chain.is_fused() && !outputs.scores {
            let id = draw(&row_of(logits, index)?, self.sampling.spec(&self.tokens))?;
            let id = id.ok_or(Error::Logits { position: self.tokens.len() })?;
            let details = if outputs.reads_logits() {
                Some(describe(&values(logits, index)?, None, id, outputs))
            } else {
                None
            };
            return Ok(Chosen { id, details });
        }
        let raw = values(logits, index)?;
        self.choose_from(&raw, raw.clone(), logits, outputs)
    }

    /// Chooses the next token from `row` on the host, which the model's own logits `raw` became; `like` is on the
    /// device that draws.
    pub(crate) fn choose_from(
        &mut self,
        raw: &[f32],
        mut row: Vec<f32>,
        like: &Tensor,
        outputs: OutputOptions,
    ) -> Result<Chosen> {
        let position = self.tokens.len();
        let spec = if self.chain.has_fused_tail() && !outputs.scores {
            self.process(&mut row, true)?;
            self.sampling.tail_spec(position)
        } else {
            self.process(&mut row, false)?;
            self.sampling.draw_spec(position)
        };
        if !raw.contains(&f32::INFINITY) {
            only_infinite(&mut row);
        }
        let processed = like.device().tensor_f32(&row, &[1, row.len()])?;
        let id = draw(&processed, spec)?.ok_or(Error::Logits { position })?;
        let details = outputs.reads_logits().then(|| describe(raw, Some(row), id, outputs));
        Ok(Chosen { id, details })
    }
}

/// What was asked about token `id`, by the logits that lead to it.
pub(crate) fn describe(
    raw: &[f32],
    scores: Option<Vec<f32>>,
    id: u32,
    outputs: OutputOptions,
) -> Box<TokenDetails> {
    let mut details = TokenDetails {
        scores: scores.filter(|_| outputs.scores),
        logits: outputs.logits.then(|| raw.to_vec()),
        ..TokenDetails::default()
    };
    if let Some(count) = outputs.logprobs {
        details.logprob = log_softmax(raw).get(id as usize).map(|log| *log as f32);
        details.top = most_likely(raw, count);
    }
    Box::new(details)
}
