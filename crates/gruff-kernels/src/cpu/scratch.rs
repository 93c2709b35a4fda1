//! Memory of a thread for intermediate results of a piece of work.

use std::cell::RefCell;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// One piece of memory for each level of nesting.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Memory whose content is undefined, kept from one piece of work to the next.
pub(crate) struct Scratch<'a>(&'a mut Vec<Line>);

impl Scratch<'_> {
    /// Room for one `A` and then `count` of `B`. **Their content is undefined.**
    ///
    /// # Panics
    /// If a cache line is not aligned enough.
    pub(crate) fn split<A, B>(&mut self, count: usize) -> (*mut A, *mut B) {
        assert!(align_of::<A>() <= 64 && align_of::<B>() <= 64);
        let a = size_of::<A>().div_ceil(64);
        let b = (size_of::<B>() * count).div_ceil(64);
        if self.0.len() < a + b {
            self.0.resize(a + b, Line([0; 64]));
        }
        let lines = self.0.as_mut_ptr();
        (lines.cast(), lines.wrapping_add(a).cast())
    }
}

/// Lends memory of the thread. A call from inside `work` gets other memory.
pub(crate) fn with<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    let result = work(&mut Scratch(&mut lines));
    FREE.with_borrow_mut(|free| free.push(lines));
    result
}

/// As [`with`], for `len` values of undefined content.
pub(crate) fn with_scratch<T>(len: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
    with(|scratch| {
        let (_, values) = scratch.split::<(), f32>(len);
        // SAFETY: that much was asked for, is initialised memory, and is this call's alone.
        work(unsafe { std::slice::from_raw_parts_mut(values, len) })
    })
}

/// Cuts the first `len` values off a scratch.
pub(crate) fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    first
}
