//! How products are cut into pieces of work, and what becomes of their results.

use std::cell::Cell;
use std::ops::Range;

use super::kernel::{COLUMNS, Kernel, Panel};
use crate::buffer::Buffer;
use crate::cpu::{CpuDevice, scratch};
use crate::elementwise::cpu::map::{GeluMul, SiluMul, map};
use crate::matmul::Glu;

/// Pieces a thread, so that one that starts late or loses its core holds up nobody for long.
const PIECES: usize = 8;

/// Bytes of weights of a piece that has few columns, unless that leaves a thread less than some pieces: where a piece begins,
/// memory gives nothing for about a microsecond, the time of some 30 KiB.
const WORTH_BEGINNING: usize = 128 << 10;
const LEAST_PIECES: usize = 2;

/// Rows of a piece that has many columns: at least a tile, and as many as keep so many results in the second-level cache.
const ROWS: Range<usize> = 32..256;
const RESULTS: usize = 16 << 10;

/// Columns from which kernels work on tiles of rows.
const ROWS_PAY: usize = 9;

/// Pieces a thread that there ought to be before pieces take more columns than usual.
const ENOUGH: usize = 4;

/// Bytes of activations of a piece that stay in the second-level cache while rows pass, where kernels need that.
const COLUMN_BYTES: usize = 512 << 10;

/// Bytes of weights, times columns, below which waking a thread does not pay: some microseconds.
const WORTH_WAKING: usize = 48 << 10;

/// Weights times columns.
pub(crate) struct Product {
    pub(super) kernel: Kernel,
    pub(super) panel: Panel,
    /// The scale beside the matrix.
    pub(super) scale: f32,
    pub(super) columns: Vec<*const u8>,
    /// Holds the columns.
    pub(super) _keep: Buffer,
}

impl Product {
    /// Columns of a piece, at most.
    fn most_columns(&self, threads: usize) -> usize {
        if self.kernel.rereads {
            let in_cache = COLUMN_BYTES / (size_of::<f32>() * self.panel.cols.max(1));
            return in_cache.clamp(12, self.kernel.columns);
        }
        let pieces = self.panel.rows.div_ceil(ROWS.start) * self.columns.len().div_ceil(self.kernel.columns);
        if pieces < ENOUGH * threads { COLUMNS } else { self.kernel.columns }
    }
}

/// What becomes of results.
#[derive(Clone, Copy)]
pub(crate) enum Finish {
    /// They are stored, after a bias (a value a row of weights) is added.
    Store {
        /// The bias.
        bias: Option<*const f32>,
    },
    /// They are added to what is there.
    Add,
    /// There are two products, and `glu(first) * second` is stored.
    Glu(Glu),
}

/// Products of equal shape whose results go to the same place.
pub(crate) struct Task {
    pub(crate) products: Vec<Product>,
    /// Where the results of each column go.
    pub(crate) outputs: Vec<*mut f32>,
    pub(crate) finish: Finish,
}

/// A part of a task.
struct Piece<'a> {
    task: &'a Task,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Pieces, on their way to other threads.
struct Pieces<'a>(Vec<Piece<'a>>);

// SAFETY: what the pointers of a task lead to is read only (weights, columns, bias), but for the outputs, of which
// every piece has a part of its own.
unsafe impl Sync for Pieces<'_> {}

/// Computes all tasks, together.
pub(crate) fn run(device: &CpuDevice, tasks: &[Task]) {
    let work: usize = tasks.iter().map(Task::work).sum();
    let threads = if work < WORTH_WAKING { 1 } else { device.pool().threads() };
    let share = work / (threads * PIECES);
    let mut pieces = Pieces(Vec::new());
    for task in tasks {
        task.cut(share, threads, &mut pieces.0);
    }
    let pieces = &pieces;
    if threads == 1 {
        pieces.0.iter().for_each(|piece| piece.compute(device));
    } else {
        device.pool().for_each(pieces.0.len(), |i| pieces.0[i].compute(device));
    }
}

impl Task {
    fn rows(&self) -> usize {
        self.products.first().map_or(0, |product| product.panel.rows)
    }

    fn row_bytes(&self) -> usize {
        self.products.iter().map(|product| product.panel.row_bytes.max(1)).sum()
    }

    fn work(&self) -> usize {
        self.rows() * self.row_bytes() * self.outputs.len()
    }

    /// Cuts into pieces of about `share`, by the task's shape. Results do not depend on how.
    fn cut<'a>(&'a self, share: usize, threads: usize, pieces: &mut Vec<Piece<'a>>) {
        let (rows, columns) = (self.rows(), self.outputs.len());
        if rows == 0 || columns == 0 {
            return;
        }
        let most = self.products.iter().map(|product| product.most_columns(threads)).min().unwrap_or(columns);
        let together = self.products.iter().map(|product| product.kernel.together).max().unwrap_or(1);
        let column_step = columns.div_ceil(columns.div_ceil(most)).next_multiple_of(together);
        let share = if columns < ROWS_PAY {
            share.max((WORTH_BEGINNING * columns).min(share * PIECES / LEAST_PIECES))
        } else {
            share
        };
        let wanted = share / (self.row_bytes() * column_step.min(columns)).max(1);
        let row_step = match (columns, threads) {
            (1, 1) => rows.min(1024),
            (1, _) => wanted.clamp(2, 256).next_multiple_of(2),
            (..ROWS_PAY, _) => wanted.clamp(4, 256).next_multiple_of(4),
            _ => {
                let most = (RESULTS / column_step).clamp(2 * ROWS.start, ROWS.end);
                wanted.clamp(ROWS.start, most).next_multiple_of(ROWS.start)
            }
        };
        for first_column in (0..columns).step_by(column_step) {
            let columns = first_column..(first_column + column_step).min(columns);
            for first_row in (0..rows).step_by(row_step) {
                let rows = first_row..(first_row + row_step).min(rows);
                pieces.push(Piece { task: self, rows, columns: columns.clone() });
            }
        }
    }
}

impl Piece<'_> {
    fn compute(&self, device: &CpuDevice) {
        let count = self.rows.len() * self.columns.len();
        scratch::with(|scratch| {
            let (_, results) = scratch.split::<(), f32>(2 * count);
            // SAFETY: that much was asked for; any bytes are floats.
            let results = unsafe { std::slice::from_raw_parts_mut(results, 2 * count) };
            let (first, second) = results.split_at_mut(count);
            for (product, out) in self.task.products.iter().zip([&mut *first, &mut *second]) {
                self.multiply(product, out);
            }
            if let Finish::Glu(glu) = self.task.finish {
                let out = Cell::from_mut(&mut *first).as_slice_of_cells();
                let inputs = [out, Cell::from_mut(second).as_slice_of_cells()];
                match glu {
                    Glu::Silu => map(device.isa(), SiluMul, inputs, out),
                    Glu::GeluTanh => map(device.isa(), GeluMul, inputs, out),
                }
            }
            self.store(first);
        });
    }

    fn multiply(&self, product: &Product, out: &mut [f32]) {
        let first = product.panel.first.wrapping_add(self.rows.start * product.panel.row_bytes);
        let panel = Panel { first, rows: self.rows.len(), ..product.panel };
        // SAFETY: the kernel was chosen for this device, whose instruction set the machine has; rows and columns lie
        // in the memory of operands that live while the operation runs; `out` has a value for each.
        scratch::with(|scratch| unsafe {
            (product.kernel.compute)(&panel, &product.columns[self.columns.clone()], out, scratch)
        });
        if product.scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= product.scale);
        }
    }

    fn store(&self, results: &[f32]) {
        let rows = self.rows.len();
        for (results, column) in results.chunks_exact(rows).zip(self.columns.clone()) {
            // SAFETY: the output row has a value for every row of weights; this piece alone has these.
            let out = unsafe {
                std::slice::from_raw_parts_mut(self.task.outputs[column].add(self.rows.start), rows)
            };
            match self.task.finish {
                Finish::Store { bias: None } | Finish::Glu(_) => out.copy_from_slice(results),
                Finish::Store { bias: Some(bias) } => {
                    // SAFETY: the bias has a value for every row of weights, and is disjoint from the outputs.
                    let bias = unsafe { std::slice::from_raw_parts(bias.add(self.rows.start), rows) };
                    for ((out, result), bias) in out.iter_mut().zip(results).zip(bias) {
                        *out = result + bias;
                    }
                }
                Finish::Add => out.iter_mut().zip(results).for_each(|(out, result)| *out += result),
            }
        }
    }
}
