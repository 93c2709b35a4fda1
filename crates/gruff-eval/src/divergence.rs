use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use crate::logits_file::SavedRow;
use crate::perplexity::begin;
use crate::softmax::{LogSoftmax, map_rows};
use crate::statistics::{Moments, percentile, share};
use crate::windows::Runner;
use crate::{Error, Estimate, Evaluator, LogitsReader, Result, Windows};

/// Saved log-probabilities at or below this are where the file's range ends: such ids do not count.
const LEAST_LOG_PROB: f32 = -16.0;

/// How far a model's predictions are from saved ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Positions compared.
    pub tokens: u64,
    /// The model's perplexity.
    pub perplexity: Estimate,
    /// The perplexity of the saved predictions.
    pub base_perplexity: Estimate,
    /// ln of the ratio of both.
    pub ln_ratio: Estimate,
    /// The ratio of both.
    pub ratio: Estimate,
    /// The difference of both.
    pub difference: Estimate,
    /// Correlation of the two negative log-likelihoods over positions.
    pub correlation: f64,
    /// Mean Kullback-Leibler divergence of the model's distribution from the saved one, in nats.
    pub kld: Estimate,
    /// How it is spread over positions.
    pub kld_percentiles: Percentiles,
    /// Mean change of the probability of the text's token.
    pub delta_p: Estimate,
    /// Root mean square of that change.
    pub rms_delta_p: Estimate,
    /// How it is spread over positions.
    pub delta_p_percentiles: Percentiles,
    /// Share of positions where both find the same id likeliest.
    pub same_top: Estimate,
    /// The way there, a value a window.
    pub chunks: Vec<ChunkDivergence>,
}

/// What is known after a window of the text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChunkDivergence {
    /// The window, counted from 1.
    pub chunk: usize,
    /// Windows in all.
    pub chunks: usize,
    /// The model's perplexity so far.
    pub perplexity: Estimate,
    /// ln of its ratio to that of the saved predictions.
    pub ln_ratio: Estimate,
    /// Mean divergence so far.
    pub kld: Estimate,
    /// Root mean square change of the probability of the text's token.
    pub rms_delta_p: Estimate,
    /// Share of positions where both find the same id likeliest.
    pub same_top: Estimate,
}

/// Values below which a share of all lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub minimum: f64,
    pub p0_1: f64,
    pub p1: f64,
    pub p5: f64,
    pub p10: f64,
    pub p25: f64,
    pub median: f64,
    pub p75: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub maximum: f64,
}

impl Percentiles {
    fn of(mut values: Vec<f32>) -> Self {
        values.sort_by(f32::total_cmp);
        let at = |fraction| percentile(&values, fraction);
        Self {
            minimum: at(0.0),
            p0_1: at(0.001),
            p1: at(0.01),
            p5: at(0.05),
            p10: at(0.1),
            p25: at(0.25),
            median: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            maximum: at(1.0),
        }
    }
}

/// Compares the model's predictions with those that [`save_logits`](crate::save_logits) or llama-perplexity
/// has saved of another one, on the tokens in the file; at most the first `chunks` windows. `on_chunk` hears
/// of each and may end it there.
///
/// # Errors
/// [`Error::LogitsFile`] for a file that is damaged or of another vocabulary, else as
/// [`perplexity`](crate::perplexity).
pub fn kl_divergence(
    evaluator: &Evaluator,
    path: &Path,
    chunks: Option<usize>,
    mut on_chunk: impl FnMut(&ChunkDivergence) -> ControlFlow<()>,
) -> Result<Divergence> {
    let mut base = LogitsReader::open(path)?;
    let width = evaluator.model().config().vocab_size;
    if base.vocabulary() != width {
        let fault = format!(
            "its logits are over a vocabulary of {}, the model's has {width}: only models with one vocabulary can \
             be compared",
            base.vocabulary()
        );
        return Err(Error::LogitsFile { path: path.to_owned(), fault });
    }
    let windows = Windows { ctx: base.ctx(), stride: None, chunks }.cut(base.tokens().len())?;
    let mut runner = Runner::new(evaluator, base.ctx())?;
    let mut sums = Sums::default();
    let mut so_far = Vec::with_capacity(windows.len());
    for (index, window) in windows.iter().enumerate() {
        base.next_window()?;
        let text = &base.tokens()[window.tokens.clone()];
        runner.run(&begin(evaluator, text), window.predicts.clone(), |first, logits| {
            let rows = map_rows(logits, width, |row, logits| -> Result<Position> {
                let saved = base.row(first + row - window.predicts.start)?;
                let fault = Error::Logits { window: index + 1, position: first + row };
                Position::new(logits, saved, text[first + row + 1] as usize).ok_or(fault)
            });
            rows.into_iter().try_for_each(|position| {
                sums.add(&position?);
                Ok(())
            })
        })?;
        let chunk = sums.chunk(index + 1, windows.len());
        so_far.push(chunk);
        if on_chunk(&chunk).is_break() {
            break;
        }
    }
    Ok(sums.finish(so_far))
}

/// What one position says.
struct Position {
    nll: f64,
    base_nll: f64,
    kld: f64,
    same_top: bool,
}

impl Position {
    /// `None` when the model gave no numbers.
    fn new(logits: &[f32], saved: SavedRow, token: usize) -> Option<Self> {
        let softmax = LogSoftmax::new(logits)?;
        let (mut kld, mut top, mut base_nll) = (0.0, (0, f32::NEG_INFINITY), 0.0);
        for (id, (base, &logit)) in saved.log_probs().zip(logits).enumerate() {
            if base > top.1 {
                top = (id, base);
            }
            if id == token {
                base_nll = -f64::from(base);
            }
            if base > LEAST_LOG_PROB {
                kld += f64::from(base.exp()) * (f64::from(base) - softmax.log_prob(logit));
            }
        }
        let nll = -softmax.log_prob(*logits.get(token)?);
        (nll.is_finite() && kld.is_finite()).then_some(Self {
            nll,
            base_nll,
            kld,
            same_top: top.0 == softmax.top,
        })
    }
}

/// Sums over positions.
#[derive(Default)]
struct Sums {
    nll: Moments,
    base_nll: Moments,
    nll_base_nll: f64,
    kld: Moments,
    delta_p: Moments,
    delta_p2: Moments,
    same_top: u64,
    klds: Vec<f32>,
    delta_ps: Vec<f32>,
}

impl Sums {
    fn add(&mut self, position: &Position) {
        let Position { nll, base_nll, kld, same_top } = *position;
        let delta_p = (-nll).exp() - (-base_nll).exp();
        self.nll.add(nll);
        self.base_nll.add(base_nll);
        self.nll_base_nll += nll * base_nll;
        self.kld.add(kld);
        self.delta_p.add(delta_p);
        self.delta_p2.add(delta_p * delta_p);
        self.same_top += u64::from(same_top);
        self.klds.push(kld as f32);
        self.delta_ps.push(delta_p as f32);
    }

    /// Covariance of the means of both negative log-likelihoods.
    fn covariance(&self) -> f64 {
        let count = self.nll.count as f64;
        (self.nll_base_nll / count - self.nll.mean() * self.base_nll.mean()) / (count - 1.0).max(1.0)
    }

    fn ln_ratio(&self) -> Estimate {
        let (nll, base) = (self.nll.estimate(), self.base_nll.estimate());
        let variance = nll.error * nll.error + base.error * base.error - 2.0 * self.covariance();
        Estimate { value: nll.value - base.value, error: variance.max(0.0).sqrt() }
    }

    fn rms_delta_p(&self) -> Estimate {
        let square = self.delta_p2.estimate();
        let value = square.value.sqrt();
        Estimate { value, error: if value > 0.0 { 0.5 / value * square.error } else { 0.0 } }
    }

    fn chunk(&self, chunk: usize, chunks: usize) -> ChunkDivergence {
        ChunkDivergence {
            chunk,
            chunks,
            perplexity: self.nll.exp(),
            ln_ratio: self.ln_ratio(),
            kld: self.kld.estimate(),
            rms_delta_p: self.rms_delta_p(),
            same_top: share(self.same_top, self.nll.count),
        }
    }

    fn finish(self, chunks: Vec<ChunkDivergence>) -> Divergence {
        let (perplexity, base_perplexity, ln_ratio) = (self.nll.exp(), self.base_nll.exp(), self.ln_ratio());
        let ratio = ln_ratio.value.exp();
        let covariance = self.covariance();
        let variance = perplexity.error * perplexity.error + base_perplexity.error * base_perplexity.error
            - 2.0 * perplexity.value * base_perplexity.value * covariance;
        let spread = self.nll.estimate().error * self.base_nll.estimate().error;
        Divergence {
            tokens: self.nll.count,
            perplexity,
            base_perplexity,
            ln_ratio,
            ratio: Estimate { value: ratio, error: ratio * ln_ratio.error },
            difference: Estimate {
                value: perplexity.value - base_perplexity.value,
                error: variance.max(0.0).sqrt(),
            },
            correlation: if spread > 0.0 { covariance / spread } else { 0.0 },
            kld: self.kld.estimate(),
            delta_p: self.delta_p.estimate(),
            rms_delta_p: self.rms_delta_p(),
            same_top: share(self.same_top, self.nll.count),
            kld_percentiles: Percentiles::of(self.klds),
            delta_p_percentiles: Percentiles::of(self.delta_ps),
            chunks,
        }
    }
}
