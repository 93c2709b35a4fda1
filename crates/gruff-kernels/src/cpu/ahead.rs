//! Asking for memory ahead of its use.
//!
//! Processors look ahead by themselves along a stream, but not past the end of a page, where an address has to be
//! translated first, nor into a stream that has not begun; a hint does both.

/// The cache that a line is wanted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The first level: it is used soon.
    First,
    /// The second level: something else fills the first meanwhile.
    Second,
}

/// Bytes of a line.
const LINE: usize = 64;

/// Asks for the lines of some bytes. Any address will do: a hint cannot fault.
#[inline(always)]
pub(crate) fn ask(first: *const u8, bytes: usize, level: Level) {
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
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = (line, level);
    }
}

/// Bytes in one or two places that are asked for bit by bit, while something else is computed: all at once they would fill
/// the queues of the processor, and behind them memory would have nothing to do.
#[derive(Clone, Copy)]
pub(crate) struct Trail([(*const u8, usize); 2]);

impl Trail {
    /// Nothing.
    pub(crate) const NONE: Self = Self([(std::ptr::null(), 0); 2]);

    /// Some values.
    pub(crate) fn of<T>(values: &[T]) -> Self {
        Self::NONE.and(values)
    }

    /// The same, and other values if it has one place so far.
    pub(crate) fn and<T>(self, values: &[T]) -> Self {
        let new = (values.as_ptr().cast(), size_of_val(values));
        if self.0[0].1 == 0 { Self([new, self.0[1]]) } else { Self([self.0[0], new]) }
    }

    /// Cut into so many parts.
    #[inline(always)]
    pub(crate) fn in_parts(self, parts: usize) -> Parts {
        Parts { trail: self, step: self.0.map(|(_, bytes)| bytes.div_ceil(parts).next_multiple_of(LINE)) }
    }
}

/// A [`Trail`] in parts of whole lines.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    trail: Trail,
    step: [usize; 2],
}

impl Parts {
    /// Asks for a part.
    #[inline(always)]
    pub(crate) fn ask(&self, part: usize) {
        for ((first, bytes), step) in self.trail.0.into_iter().zip(self.step) {
            let begin = part * step;
            ask(first.wrapping_add(begin), step.min(bytes.saturating_sub(begin)), Level::First);
        }
    }
}

/// [`ask`] for values that are used soon.
#[inline(always)]
pub(crate) fn ask_for<T>(values: &[T]) {
    ask(values.as_ptr().cast(), size_of_val(values), Level::First);
}
