//! Asking for weights ahead of their use.

use super::super::super::kernel::Panel;

pub(super) use crate::cpu::ahead::{Level, ask};

/// The packed rows of the next tile, to be asked for while one is multiplied.
pub(super) struct Ahead {
    first: *const u8,
    bytes: usize,
}

impl Ahead {
    /// A panel's rows from one on, `most` at most.
    pub(super) fn of(panel: &Panel, row: usize, most: usize) -> Self {
        let first = panel.first.wrapping_add(row * panel.row_bytes);
        Self { first, bytes: most.min(panel.rows - row) * panel.row_bytes }
    }

    /// Asks for a part's lines, of so many parts.
    #[inline(always)]
    pub(super) fn ask(&self, part: usize, parts: usize) {
        let (begin, end) = (self.bytes * part / parts, self.bytes * (part + 1) / parts);
        ask(self.first.wrapping_add(begin), end - begin, Level::Second);
    }
}
