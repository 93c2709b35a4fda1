use std::ops::ControlFlow;

use serde::Serialize;

use crate::perplexity::begin;
use crate::softmax::{LogSoftmax, map_rows};
use crate::statistics::{Moments, share};
use crate::windows::Runner;
use crate::{Error, Estimate, Evaluator, Result, Windows};

/// How far a model's logits on a text are from another's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LogitsComparison {
    /// Positions compared.
    pub tokens: u64,
    /// Squared error over squared length, of all logits together.
    pub nmse: f64,
    /// Kullback-Leibler divergence of the second from the first, in nats.
    pub kld: Estimate,
    /// Share of positions where both find the same id likeliest.
    pub same_top: Estimate,
    /// The first model's perplexity on these positions.
    pub perplexity: Estimate,
    /// The second's.
    pub other_perplexity: Estimate,
}

/// Compares the logits of two models with one vocabulary on a text, at the positions that
/// [`perplexity`](crate::perplexity) scores; `on_chunk` hears of each window (how many are done, of how many)
/// and may end it there.
///
/// # Errors
/// [`Error::Vocabulary`] when the models read the text as different tokens, else as
/// [`perplexity`](crate::perplexity).
pub fn compare_logits(
    a: &Evaluator,
    b: &Evaluator,
    text: &str,
    windows: &Windows,
    mut on_chunk: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<LogitsComparison> {
    let widths = [a, b].map(|evaluator| evaluator.model().config().vocab_size);
    if widths[0] != widths[1] {
        let fault = format!("their vocabularies have {} and {} tokens", widths[0], widths[1]);
        return Err(Error::Vocabulary { fault });
    }
    let tokens = a.tokenize(text)?;
    if tokens != b.tokenize(text)? || a.window_start() != b.window_start() {
        return Err(Error::Vocabulary {
            fault: "their tokenizers make different tokens of the text".to_owned(),
        });
    }
    let cut = windows.cut(tokens.len())?;
    let (mut runner_a, mut runner_b) = (Runner::new(a, windows.ctx)?, Runner::new(b, windows.ctx)?);
    let mut sums = Sums::default();
    for (index, window) in cut.iter().enumerate() {
        let text = &tokens[window.tokens.clone()];
        let input = begin(a, text);
        // Steps of both are cut alike, since their vocabularies have one size.
        let mut first_logits = Vec::new();
        runner_a.run(&input, window.predicts.clone(), |first, logits| {
            first_logits.push((first, logits.to_vec()));
            Ok(())
        })?;
        let mut pieces = first_logits.into_iter();
        runner_b.run(&input, window.predicts.clone(), |first, other| {
            let logits = pieces.next().map_or_else(Vec::new, |(_, logits)| logits);
            let rows = map_rows(other, widths[0], |row, other| {
                let mine = logits.get(row * widths[0]..(row + 1) * widths[0])?;
                Position::new(mine, other, text[first + row + 1] as usize)
            });
            for (row, position) in rows.into_iter().enumerate() {
                let fault = Error::Logits { window: index + 1, position: first + row };
                sums.add(&position.ok_or(fault)?);
            }
            Ok(())
        })?;
        if on_chunk(index + 1, cut.len()).is_break() {
            break;
        }
    }
    Ok(sums.finish())
}

/// What one position says.
struct Position {
    nll: f64,
    other_nll: f64,
    error2: f64,
    length2: f64,
    kld: f64,
    same_top: bool,
}

impl Position {
    /// `None` when a model gave no numbers.
    fn new(mine: &[f32], other: &[f32], token: usize) -> Option<Self> {
        let (a, b) = (LogSoftmax::new(mine)?, LogSoftmax::new(other)?);
        let (mut error2, mut length2, mut kld) = (0.0, 0.0, 0.0);
        for (&x, &y) in mine.iter().zip(other) {
            let log_prob = a.log_prob(x);
            kld += log_prob.exp() * (log_prob - b.log_prob(y));
            error2 += (f64::from(x) - f64::from(y)).powi(2);
            length2 += f64::from(x).powi(2);
        }
        let (nll, other_nll) = (-a.log_prob(*mine.get(token)?), -b.log_prob(*other.get(token)?));
        let finite = [kld, error2, length2, nll, other_nll].iter().all(|value| value.is_finite());
        finite.then_some(Self { nll, other_nll, error2, length2, kld, same_top: a.top == b.top })
    }
}

#[derive(Default)]
struct Sums {
    nll: Moments,
    other_nll: Moments,
    kld: Moments,
    error2: f64,
    length2: f64,
    same_top: u64,
}

impl Sums {
    fn add(&mut self, position: &Position) {
        self.nll.add(position.nll);
        self.other_nll.add(position.other_nll);
        self.kld.add(position.kld);
        self.error2 += position.error2;
        self.length2 += position.length2;
        self.same_top += u64::from(position.same_top);
    }

    fn finish(self) -> LogitsComparison {
        LogitsComparison {
            tokens: self.nll.count,
            nmse: if self.error2 == 0.0 { 0.0 } else { self.error2 / self.length2 },
            kld: self.kld.estimate(),
            same_top: share(self.same_top, self.nll.count),
            perplexity: self.nll.exp(),
            other_perplexity: self.other_nll.exp(),
        }
    }
}
