//! The importance matrix: the mean square of every input of every matrix, over a text.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gruff_blocks::BlockType;
use gruff_gguf::{Array, Metadata, Writer};
use gruff_kernels::Tensor;
use gruff_models::InputContext;

use crate::perplexity::begin;
use crate::windows::Runner;
use crate::{Evaluator, Result, Windows};

/// Sums of squares of the inputs of one matrix, or of a stack of them.
#[derive(Clone, Debug, PartialEq)]
pub struct InputStatistics {
    /// Inputs of a matrix.
    pub width: usize,
    /// `[matrices, width]`: sums over rows.
    pub sums: Vec<f64>,
    /// `[matrices]`: how many rows those are.
    pub counts: Vec<u64>,
}

impl InputStatistics {
    fn new(matrices: usize, width: usize) -> Self {
        Self { width, sums: vec![0.0; matrices * width], counts: vec![0; matrices] }
    }

    fn add(&mut self, matrix: usize, row: &[f32]) {
        let at = matrix * self.width;
        for (sum, value) in self.sums[at..at + self.width].iter_mut().zip(row) {
            *sum += f64::from(*value) * f64::from(*value);
        }
        self.counts[matrix] += 1;
    }
}

/// What is measured of a model's inputs on a text, by the names of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportanceMatrix {
    /// A tensor's statistics: `blk.0.ffn_up.weight`.
    pub tensors: BTreeMap<String, InputStatistics>,
    /// Windows of the text.
    pub chunks: usize,
    /// Tokens in a window.
    pub ctx: usize,
}

/// What an importance matrix is collected with.
#[derive(Clone, Copy, Debug)]
pub struct ImatrixOptions {
    /// Tokens in a window.
    pub ctx: usize,
    /// The first so many windows only.
    pub chunks: Option<usize>,
    /// Whether the inputs of the output matrix count, too.
    pub process_output: bool,
}

impl Default for ImatrixOptions {
    fn default() -> Self {
        Self { ctx: Windows::default().ctx, chunks: None, process_output: false }
    }
}

/// Puts `tokens` ([`Evaluator::tokenize`]) through the model, window by window, and collects the squares of
/// what enters every matrix of its blocks; `on_chunk` hears of each window (how many are done, of how many)
/// and may end it there.
///
/// # Errors
/// [`crate::Error::ShortText`] and [`crate::Error::Option`] when there is no window, [`crate::Error::Engine`] when
/// memory does not suffice, [`crate::Error::Model`] when an input is not finite.
pub fn importance_matrix(
    evaluator: &Evaluator,
    tokens: &[u32],
    options: &ImatrixOptions,
    mut on_chunk: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<ImportanceMatrix> {
    let ImatrixOptions { ctx, chunks, process_output } = *options;
    let windows = Windows { ctx, stride: None, chunks }.cut(tokens.len())?;
    let mut runner = Runner::new(evaluator, ctx)?;
    let model = evaluator.model();
    let names = model.names();
    let tensors = Arc::new(Mutex::new(BTreeMap::new()));
    let collected = tensors.clone();
    let _guard = model.hooks().on_input("*", move |context, x| {
        let Some(stem) = names.gguf(context.module) else { return Ok(()) };
        if process_output || stem.starts_with("blk.") {
            let mut tensors = collected.lock().unwrap_or_else(PoisonError::into_inner);
            collect(&mut tensors, format!("{stem}.weight"), context, x)?;
        }
        Ok(())
    })?;
    let mut done = 0;
    for window in &windows {
        // Without logits, unless what enters the output matrix is wanted for every token.
        let wanted = if process_output { 0..ctx } else { ctx..ctx };
        runner.run(&begin(evaluator, &tokens[window.tokens.clone()]), wanted, |_, _| Ok(()))?;
        done += 1;
        if on_chunk(done, windows.len()).is_break() {
            break;
        }
    }
    let tensors = std::mem::take(&mut *tensors.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(ImportanceMatrix { tensors, chunks: done, ctx })
}

type HookResult = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Adds the rows of `x` to the statistics of a tensor.
fn collect(
    tensors: &mut BTreeMap<String, InputStatistics>,
    tensor: String,
    context: &InputContext,
    x: &Tensor,
) -> HookResult {
    let width = x.shape()[1];
    let values = x.to_vec_f32()?;
    if values.iter().any(|value| !value.is_finite()) {
        return Err(format!("what enters {tensor} is not finite; the file may be damaged").into());
    }
    let matrices = context.experts.map_or(1, |experts| experts.count);
    let statistics = tensors.entry(tensor).or_insert_with(|| InputStatistics::new(matrices, width));
    match context.experts {
        None => values.chunks_exact(width).for_each(|row| statistics.add(0, row)),
        Some(experts) => {
            let ids = experts.ids.to_vec_i32()?;
            // One row a token, which all its experts read; or one a token and expert.
            let used = ids.len() / x.shape()[0].max(1);
            for (ids, row) in ids.chunks(used.max(1)).zip(values.chunks_exact(width)) {
                ids.iter().for_each(|id| statistics.add(*id as usize, row));
            }
        }
    }
    Ok(())
}

impl ImportanceMatrix {
    /// Tensors with experts that no token reached: how many of how many.
    pub fn partial(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        self.tensors.iter().filter_map(|(name, statistics)| {
            let empty = statistics.counts.iter().filter(|count| **count == 0).count();
            (empty > 0).then_some((name.as_str(), empty, statistics.counts.len()))
        })
    }

    /// Writes the GGUF form that llama-imatrix writes and llama-quantize reads: for each tensor `NAME.in_sum2`
    /// `[matrices, inputs]` and `NAME.counts` `[matrices, 1]`, sums and counts in f32; `datasets` are the names
    /// of the texts. The file takes its name when it is whole.
    ///
    /// # Errors
    /// [`crate::Error::Gguf`] when it cannot be written.
    pub fn write(&self, path: &Path, datasets: &[&str]) -> Result<()> {
        let mut metadata = Metadata::new();
        metadata.insert("general.type", "imatrix");
        metadata.insert("imatrix.datasets", Array::String(datasets.iter().copied().collect()));
        metadata.insert("imatrix.chunk_count", self.chunks as u32);
        metadata.insert("imatrix.chunk_size", self.ctx as u32);
        let mut writer = Writer::new(metadata);
        for (name, statistics) in &self.tensors {
            let matrices = statistics.counts.len() as u64;
            let shape =
                |row: usize| if matrices == 1 { vec![row as u64] } else { vec![row as u64, matrices] };
            writer.add(format!("{name}.in_sum2"), &shape(statistics.width), BlockType::F32)?;
            writer.add(format!("{name}.counts"), &shape(1), BlockType::F32)?;
        }
        let mut file = writer.create(path)?;
        for (name, statistics) in &self.tensors {
            let bytes = |values: &mut dyn Iterator<Item = f32>| {
                values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
            };
            let sums = bytes(&mut statistics.sums.iter().map(|sum| *sum as f32));
            let counts = bytes(&mut statistics.counts.iter().map(|count| *count as f32));
            file.write(&format!("{name}.in_sum2"), &sums)?;
            file.write(&format!("{name}.counts"), &counts)?;
        }
        file.finish()?;
        Ok(())
    }
}
