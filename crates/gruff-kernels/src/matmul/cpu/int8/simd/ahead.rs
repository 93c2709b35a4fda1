//! Asking for memory ahead of its use.
//!
//! Processors look ahead by themselves along a stream, but not past the end of a page, where an address has to be
//! translated first; a hint does that too.

use super::super::super::kernel::Panel;

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

/// The cache that a line is wanted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The first level: it is used soon.
    First,
    /// The second level: something else fills the first meanwhile.
    Second,
}

/// Bytes of a line.
const LINE: usize = 64;

/// Asks for the lines of some bytes. Any address will do: a hint cannot fault.
#[inline(always)]
pub(super) fn ask(first: *const u8, bytes: usize, level: Level) {
    for offset in (0..bytes).step_by(LINE) {
        let line = first.wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has the instruction, which reads nothing that the program could see.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            match level {
                Level::First => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
                Level::Second => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every AArch64 has the instruction, which reads nothing that the program could see.
        unsafe {
            use std::arch::asm;
            match level {
                Level::First => {
                    asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
                }
                Level::Second => {
                    asm!("prfm pldl2keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
                }
            }
        }
    }
}
