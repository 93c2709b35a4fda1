//! Rows through the quantizer, in pieces, on several threads, into the file in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};

use gruff_blocks::BlockType;
use gruff_gguf::{FileWriter, Gguf};

use super::source::Source;
use super::{Plan, QuantizeOptions, TensorPlan, file_of};
use crate::{Error, Progress, Result};

/// Values that a piece has at most, unless one row has more: 1 MiB unpacked.
const PIECE: usize = 1 << 18;

/// Pieces that may be in work or wait for an earlier one, per thread.
const AHEAD: usize = 4;

/// Rows of one matrix of a tensor.
struct Piece {
    /// Which tensor.
    tensor: usize,
    /// Which of its matrices: the expert.
    matrix: usize,
    /// Values, counted from the tensor's first.
    values: Range<usize>,
}

/// Lets workers start a piece only when the writer is not too far behind.
struct Window {
    /// Pieces written, or the largest number when work is to stop.
    written: Mutex<usize>,
    moved: Condvar,
    ahead: usize,
}

impl Window {
    fn wait_for(&self, piece: usize) {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let near = |written: &mut usize| piece >= written.saturating_add(self.ahead);
        drop(self.moved.wait_while(written, near).unwrap_or_else(PoisonError::into_inner));
    }

    fn advance(&self, written: usize) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = written;
        self.moved.notify_all();
    }
}

/// Writes the data of every tensor of the plan to `file`.
pub(super) fn run(
    model: &Gguf,
    plan: &Plan,
    options: &QuantizeOptions,
    file: &mut FileWriter,
    progress: &dyn Progress,
) -> Result<()> {
    let pieces = pieces(plan, model)?;
    let threads = options.threads.get().min(pieces.len().max(1));
    let window = Window { written: Mutex::new(0), moved: Condvar::new(), ahead: AHEAD * threads };
    let next = AtomicUsize::new(0);
    progress.start(plan.tensors().iter().map(TensorPlan::values).sum());
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<(usize, Result<Vec<u8>>)>();
        for _ in 0..threads {
            let sender = sender.clone();
            let (pieces, window, next) = (&pieces, &window, &next);
            scope.spawn(move || {
                let (mut source, mut unpacked) = (Source::new(model), Vec::new());
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = pieces.get(at) else { break };
                    window.wait_for(at);
                    let tensor = &plan.tensors()[piece.tensor];
                    let packed = work(model, tensor, piece, options, &mut source, &mut unpacked);
                    if sender.send((at, packed)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut written = 0;
        let mut early = BTreeMap::new();
        let write_all = || {
            for (at, packed) in receiver {
                early.insert(at, packed);
                while let Some(packed) = early.remove(&written) {
                    let piece = &pieces[written];
                    file.write(&plan.tensors()[piece.tensor].name, &packed?)?;
                    written += 1;
                    window.advance(written);
                    progress.advance(piece.values.len() as u64);
                }
            }
            Ok(())
        };
        let outcome = write_all();
        window.advance(usize::MAX);
        progress.finish();
        outcome
    })
}

/// Divides the tensors into pieces of whole rows that do not cross matrices.
fn pieces(plan: &Plan, model: &Gguf) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for (tensor, planned) in plan.tensors().iter().enumerate() {
        let size = |at: usize| planned.shape.get(at).copied().unwrap_or(1);
        let row = usize::try_from(size(0)).ok();
        let matrix = row.and_then(|row| row.checked_mul(usize::try_from(size(1)).ok()?));
        let values = usize::try_from(planned.values()).ok();
        let (Some(row), Some(matrix), Some(values)) = (row, matrix, values) else {
            return Err(Error::tensor(&file_of(model), &planned.name, "is too large for this machine"));
        };
        let step = (PIECE / row).max(1) * row;
        for begin in (0..values).step_by(matrix) {
            let end = begin + matrix;
            for first in (begin..end).step_by(step) {
                pieces.push(Piece { tensor, matrix: begin / matrix, values: first..(first + step).min(end) });
            }
        }
    }
    Ok(pieces)
}

/// Makes the packed bytes of a piece.
fn work(
    model: &Gguf,
    tensor: &TensorPlan,
    piece: &Piece,
    options: &QuantizeOptions,
    source: &mut Source<'_>,
    unpacked: &mut Vec<f32>,
) -> Result<Vec<u8>> {
    let named = |error: gruff_blocks::Error| named(model, tensor, piece, error);
    let bytes = |block_type: BlockType, values: usize| block_type.row_bytes(values).map_err(named);
    let range = bytes(tensor.from, piece.values.start)?..bytes(tensor.from, piece.values.end)?;
    let source = source.read(model.require(&tensor.name)?, range)?;
    let floats = [BlockType::F32, BlockType::F16, BlockType::BF16].contains(&tensor.from);
    if tensor.from == tensor.to && !floats {
        return Ok(source.to_vec());
    }
    unpacked.resize(piece.values.len(), 0.0);
    tensor.from.unpack(source, unpacked).map_err(named)?;
    if tensor.from == tensor.to {
        gruff_blocks::check_finite(unpacked).map_err(named)?;
        return Ok(source.to_vec());
    }
    let row = tensor.shape.first().map_or(Ok(1), |row| usize::try_from(*row)).unwrap_or(usize::MAX);
    let importance =
        options.importance.as_ref().and_then(|matrix| matrix.of(&tensor.name, row, piece.matrix));
    let mut packed = vec![0; bytes(tensor.to, piece.values.len())?];
    tensor.to.quantize(unpacked, row, importance, &mut packed).map_err(named)?;
    Ok(packed)
}

/// An error of the blocks with the tensor's name and the place in the tensor.
fn named(model: &Gguf, tensor: &TensorPlan, piece: &Piece, error: gruff_blocks::Error) -> Error {
    let place = |at: usize| piece.values.start + at;
    let fault = match error {
        gruff_blocks::Error::NotFinite { at, value } => {
            format!("has {value} at value {}; the checkpoint is damaged or diverged in training", place(at))
        }
        gruff_blocks::Error::TooLarge { block_type, at, value } => {
            return Error::tensor(
                &file_of(model),
                &tensor.name,
                gruff_blocks::Error::TooLarge { block_type, at: place(at), value }.to_string(),
            );
        }
        other => format!("cannot be quantized: {other}"),
    };
    Error::tensor(&file_of(model), &tensor.name, fault)
}
