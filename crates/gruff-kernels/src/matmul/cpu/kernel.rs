//! What a kernel computes: rows of one packed matrix times columns.

use gruff_blocks::BlockType;

use crate::Isa;
use crate::cpu::scratch::Scratch;

/// Consecutive rows of a packed matrix.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) block_type: BlockType,
    /// The device's.
    pub(super) isa: Isa,
    /// The first row's first byte.
    pub(super) first: *const u8,
    pub(super) row_bytes: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// Columns of a piece of work for most kernels.
pub(super) const COLUMNS: usize = 256;

/// A kernel for one block type.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) name: &'static str,
    /// Whether all columns are read again for every few rows, so that they ought to stay in the second-level cache.
    pub(super) rereads: bool,
    /// Columns that are multiplied together: those of a piece are a multiple.
    pub(super) together: usize,
    /// Columns of a piece of work at most: so many that unpacking weights is a small part of multiplying them.
    pub(super) columns: usize,
    /// `out[c * panel.rows + r]` becomes the product of row r and column c.
    ///
    /// # Safety
    /// The machine has the instruction set that the kernel was chosen for; the panel's rows are readable; every
    /// column points to a row of activations of `panel.cols` values in the form that the kernel takes; `out` holds
    /// `panel.rows` values a column.
    pub(super) compute:
        unsafe fn(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch),
}
