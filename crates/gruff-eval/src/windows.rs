//! How a text is cut into windows, and how windows go through a model.

use std::ops::Range;

use gruff_kernels::{PAGE_LEN, Step, StepSequence};
use gruff_models::Caches;

use crate::error::refuse;
use crate::{Error, Evaluator, Result};

/// The least context: one token is predicted from the second half of a window.
const LEAST_CTX: usize = 3;
/// Tokens that go through the model at once.
const STEP_TOKENS: usize = 512;
/// Bytes of logits that a step may make.
const LOGITS_BYTES: usize = 64 << 20;
/// Rows of logits that a step makes even if they are more than that.
const LEAST_ROWS: usize = 16;

/// How a text is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens in a window.
    pub ctx: usize,
    /// Tokens from one window's beginning to the next one's, of which the last so many of each window are
    /// scored. `None` puts windows one after the other and scores the second half of each, so that every
    /// prediction has at least half a window of context.
    pub stride: Option<usize>,
    /// The first so many windows only.
    pub chunks: Option<usize>,
}

impl Default for Windows {
    fn default() -> Self {
        Self { ctx: 512, stride: None, chunks: None }
    }
}

/// One window of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its tokens in the text.
    pub tokens: Range<usize>,
    /// Tokens of the window whose successors are predicted.
    pub predicts: Range<usize>,
}

impl Windows {
    /// The windows of a text of `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Option`] for numbers that make no windows, [`Error::ShortText`] for a text without a whole one.
    pub fn cut(&self, tokens: usize) -> Result<Vec<Window>> {
        let Self { ctx, stride, chunks } = *self;
        if ctx < LEAST_CTX {
            return refuse(
                "ctx",
                format!("{ctx} tokens are no context to predict from; take {LEAST_CTX} or more"),
            );
        }
        if chunks == Some(0) {
            return refuse("chunks", "0 chunks of a text say nothing; take 1 or more");
        }
        let (step, predicts, count, needed) = match stride {
            None => (ctx, ctx / 2..ctx - 1, tokens / ctx, ctx),
            Some(stride) if stride == 0 || stride >= ctx => {
                return refuse(
                    "stride",
                    format!("{stride} is not between 1 and {}, one less than ctx", ctx - 1),
                );
            }
            Some(stride) => {
                let count = tokens.saturating_sub(ctx).div_ceil(stride);
                (stride, ctx - 1 - stride..ctx - 1, count, ctx + 1)
            }
        };
        if count == 0 {
            return Err(Error::ShortText { found: tokens, needed });
        }
        let count = chunks.map_or(count, |chunks| chunks.min(count));
        let window = |index| Window { tokens: index * step..index * step + ctx, predicts: predicts.clone() };
        Ok((0..count).map(window).collect())
    }
}

/// Rows of logits that a step may make.
pub(crate) fn most_rows(evaluator: &Evaluator) -> usize {
    (LOGITS_BYTES / 4 / evaluator.model().config().vocab_size.max(1)).max(LEAST_ROWS)
}

/// One sequence at a time, each from empty caches.
pub(crate) struct Runner<'a> {
    evaluator: &'a Evaluator,
    caches: Caches,
    pages: Vec<u32>,
}

impl<'a> Runner<'a> {
    /// Takes memory for sequences of up to `capacity` tokens.
    pub(crate) fn new(evaluator: &'a Evaluator, capacity: usize) -> Result<Self> {
        let pages = (0..).take(capacity.div_ceil(PAGE_LEN)).collect();
        Ok(Self { evaluator, caches: evaluator.caches(1, capacity, 0)?, pages })
    }

    /// Puts `tokens` through and hands the logits `[rows, vocab_size]` after the tokens `wanted` to `on_rows`,
    /// some rows at a time with the index of their first token.
    pub(crate) fn run(
        &mut self,
        tokens: &[u32],
        wanted: Range<usize>,
        mut on_rows: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let most_rows = most_rows(self.evaluator);
        let mut past = 0;
        while past < tokens.len() {
            // Tokens before the first wanted row go through without logits.
            let len = if past < wanted.start {
                (wanted.start - past).min(STEP_TOKENS)
            } else if past < wanted.end {
                (wanted.end - past).min(STEP_TOKENS).min(most_rows)
            } else {
                return Ok(());
            };
            let rows = if past < wanted.start { Vec::new() } else { (0..len as u32).collect() };
            self.step(&tokens[past..past + len], past, rows, &mut on_rows)?;
            past += len;
        }
        Ok(())
    }

    fn step(
        &mut self,
        tokens: &[u32],
        past: usize,
        rows: Vec<u32>,
        on_rows: &mut impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let sequence = StepSequence { len: tokens.len(), past, slot: 0, pages: self.pages.clone() };
        let wanted = !rows.is_empty();
        let step = Step::text(tokens.to_vec(), vec![sequence])?.with_output_rows(rows)?;
        let logits = self.evaluator.model().forward(&step, &mut self.caches)?;
        if wanted { on_rows(past, &logits.to_vec_f32()?) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_one_another() {
        let windows = Windows { ctx: 8, ..Windows::default() }.cut(30).unwrap();
        let tokens: Vec<_> = windows.iter().map(|window| window.tokens.clone()).collect();
        assert_eq!(tokens, [0..8, 8..16, 16..24]);
        assert!(windows.iter().all(|window| window.predicts == (4..7)));
        let two = Windows { ctx: 8, chunks: Some(2), stride: None };
        assert_eq!(two.cut(30).unwrap(), windows[..2]);
        assert_eq!(Windows { chunks: Some(9), ..two }.cut(30).unwrap(), windows);
    }

    #[test]
    fn strided_windows_predict_each_token_once() {
        let windows = Windows { ctx: 8, stride: Some(3), chunks: None }.cut(20).unwrap();
        let predicted: Vec<usize> = windows
            .iter()
            .flat_map(|window| window.predicts.clone().map(|row| window.tokens.start + row + 1))
            .collect();
        assert_eq!(predicted, (5..17).collect::<Vec<_>>());
        assert!(windows.iter().all(|window| window.tokens.end <= 20));
    }

    #[test]
    fn what_makes_no_window_is_refused() {
        let message = |ctx, stride, chunks, tokens| {
            Windows { ctx, stride, chunks }.cut(tokens).unwrap_err().to_string()
        };
        assert!(message(512, None, None, 511).contains("511 tokens, but 512 are needed"));
        assert!(message(512, Some(256), None, 512).contains("513 are needed"));
        assert!(message(2, None, None, 100).starts_with("ctx:"));
        assert!(message(8, Some(8), None, 100).starts_with("stride:"));
        assert!(message(8, Some(0), None, 100).starts_with("stride:"));
        assert!(message(8, None, Some(0), 100).starts_with("chunks:"));
    }
}
