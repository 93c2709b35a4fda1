use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use crate::softmax::{LogSoftmax, map_rows};
use crate::statistics::Moments;
use crate::windows::Runner;
use crate::{Error, Estimate, Evaluator, LogitsWriter, Result, Window, Windows, logits_file};

/// What is known after a window of the text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChunkPerplexity {
    /// The window, counted from 1.
    pub chunk: usize,
    /// Windows in all.
    pub chunks: usize,
    /// Perplexity of all windows so far.
    pub perplexity: Estimate,
    /// Perplexity of this window alone.
    pub own: f64,
}

/// How well a model foretells a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// e to the mean negative log-likelihood of a token, with its standard error.
    pub perplexity: Estimate,
    /// Mean negative log-likelihood of a token, in nats.
    pub nll: Estimate,
    /// Tokens scored.
    pub tokens: u64,
    /// Bytes of text that these tokens are.
    pub bytes: u64,
    /// Bits that the scored text costs a byte: unlike perplexity comparable between vocabularies. `None`
    /// where the scored tokens stand for no text.
    pub bits_per_byte: Option<f64>,
    /// The way there, a value a window.
    pub chunks: Vec<ChunkPerplexity>,
}

/// The perplexity of `tokens` ([`Evaluator::tokenize`]), window by window; `on_chunk` hears of each
/// and may end it there.
///
/// Every window begins with the model's begin-of-text token in the place of its first token, where the model
/// has one. These are llama-perplexity's windows.
///
/// # Errors
/// [`Error::ShortText`] and [`Error::Option`] when there is no window, [`Error::Engine`] when memory does not
/// suffice, [`Error::Logits`] when the model gives no numbers.
pub fn perplexity(
    evaluator: &Evaluator,
    tokens: &[u32],
    windows: &Windows,
    on_chunk: impl FnMut(&ChunkPerplexity) -> ControlFlow<()>,
) -> Result<Perplexity> {
    measure(evaluator, tokens, &windows.cut(tokens.len())?, windows.ctx, None, on_chunk)
}

/// As [`perplexity`], and writes the log-probabilities of every scored position to `path`, as a base for
/// [`kl_divergence`](crate::kl_divergence). The file is llama-perplexity's; it takes its name when it is whole,
/// so not when `on_chunk` ends it early.
///
/// # Errors
/// As [`perplexity`], [`Error::Option`] for windows with a stride, which the file cannot express, and
/// [`Error::Io`] when it cannot be written.
pub fn save_logits(
    evaluator: &Evaluator,
    tokens: &[u32],
    windows: &Windows,
    path: &Path,
    on_chunk: impl FnMut(&ChunkPerplexity) -> ControlFlow<()>,
) -> Result<Perplexity> {
    if windows.stride.is_some() {
        let fault = "saved logits are those of windows without a stride; leave it out".to_owned();
        return Err(Error::Option { option: "stride", fault });
    }
    let cut = windows.cut(tokens.len())?;
    let text = &tokens[..cut.len() * windows.ctx];
    let vocabulary = evaluator.model().config().vocab_size;
    let mut writer = LogitsWriter::create(path, windows.ctx, vocabulary, text)?;
    let result = measure(evaluator, tokens, &cut, windows.ctx, Some(&mut writer), on_chunk)?;
    if result.chunks.len() == cut.len() {
        writer.finish()?;
    }
    Ok(result)
}

fn measure(
    evaluator: &Evaluator,
    tokens: &[u32],
    windows: &[Window],
    ctx: usize,
    mut writer: Option<&mut LogitsWriter>,
    mut on_chunk: impl FnMut(&ChunkPerplexity) -> ControlFlow<()>,
) -> Result<Perplexity> {
    let width = evaluator.model().config().vocab_size;
    let mut runner = Runner::new(evaluator, ctx)?;
    let (mut all, mut bytes, mut chunks) = (Moments::default(), 0, Vec::with_capacity(windows.len()));
    for (index, window) in windows.iter().enumerate() {
        let text = &tokens[window.tokens.clone()];
        let mut own = Moments::default();
        runner.run(&begin(evaluator, text), window.predicts.clone(), |first, logits| {
            let saves = writer.is_some();
            let rows = map_rows(logits, width, |row, logits| {
                let softmax = LogSoftmax::new(logits)?;
                let nll = -softmax.log_prob(*logits.get(text[first + row + 1] as usize)?);
                let saved = if saves { logits_file::encode_row(logits, &softmax) } else { Vec::new() };
                Some((nll, saved))
            });
            for (row, result) in rows.into_iter().enumerate() {
                let fault = Error::Logits { window: index + 1, position: first + row };
                let (nll, saved) = result.filter(|(nll, _)| nll.is_finite()).ok_or(fault)?;
                own.add(nll);
                all.add(nll);
                if let Some(writer) = writer.as_mut() {
                    writer.write_row(&saved)?;
                }
            }
            Ok(())
        })?;
        let scored = window.predicts.start + 1..window.predicts.end + 1;
        bytes +=
            text[scored].iter().map(|id| evaluator.tokenizer().token_to_bytes(*id).len() as u64).sum::<u64>();
        let chunk = ChunkPerplexity {
            chunk: index + 1,
            chunks: windows.len(),
            perplexity: all.exp(),
            own: own.mean().exp(),
        };
        chunks.push(chunk);
        if on_chunk(&chunk).is_break() {
            break;
        }
    }
    let bits = all.sum / std::f64::consts::LN_2;
    Ok(Perplexity {
        perplexity: all.exp(),
        nll: all.estimate(),
        tokens: all.count,
        bytes,
        bits_per_byte: (bytes > 0).then(|| bits / bytes as f64),
        chunks,
    })
}

/// The tokens of a window as the model sees them.
pub(crate) fn begin(evaluator: &Evaluator, text: &[u32]) -> Vec<u32> {
    let mut tokens = text.to_vec();
    if let (Some(first), Some(start)) = (tokens.first_mut(), evaluator.window_start()) {
        *first = start;
    }
    tokens
}
