//! Memory of a thread for the intermediate values of one piece of work.

use std::cell::Cell;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Lends `len` values of undefined content, aligned to whatever f32 are; taken once a thread and kept.
pub(crate) fn with_scratch<T>(len: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut memory = SCRATCH.take();
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    let result = work(&mut memory[..len]);
    SCRATCH.set(memory);
    result
}

/// Cuts the first `len` values off a scratch.
pub(crate) fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(len);
    *scratch = rest;
    first
}
