//! A piece of work of the delta rule: what it reads and writes, and its scratch.

use std::ops::Range;

use crate::cpu::scratch::cut;
use crate::cpu::simd::{LANES, Matrix};
use crate::cpu::view::{Input, Output};
use crate::{CHUNK, StateShape, StepSequence};

/// Sizes of a layer, widths rounded up to whole vectors.
pub(super) struct Sizes {
    pub(super) shape: StateShape,
    pub(super) key_width: usize,
    pub(super) value_width: usize,
}

impl Sizes {
    pub(super) fn of(shape: &StateShape) -> Self {
        let key_width = shape.key_dim.next_multiple_of(LANES);
        let value_width = shape.value_dim.next_multiple_of(LANES);
        Self { shape: *shape, key_width, value_width }
    }

    /// Whether rows in memory are whole vectors, so that kernels may read them where they lie.
    pub(super) fn whole(&self) -> bool {
        self.key_width == self.shape.key_dim && self.value_width == self.shape.value_dim
    }

    /// Values of scratch that a piece takes.
    pub(super) fn scratch(&self) -> usize {
        4 * CHUNK * self.key_width
            + 4 * CHUNK * CHUNK
            + 3 * CHUNK * self.value_width
            + 2 * CHUNK
            + self.padded_state()
    }

    /// Values of a copy of S with padded rows, where one is needed.
    fn padded_state(&self) -> usize {
        if self.whole() { 0 } else { self.shape.key_dim * self.value_width }
    }
}

/// What the operation reads.
pub(super) struct Operands<'a> {
    pub(super) queries: Input<'a, f32>,
    pub(super) keys: Input<'a, f32>,
    pub(super) values: Input<'a, f32>,
    pub(super) decay: Input<'a, f32>,
    pub(super) beta: Input<'a, f32>,
    /// `[slots, Hk, rows, Dk]`.
    pub(super) kept_keys: Input<'a, f32>,
}

/// What it writes: for each value head, rows of its own.
pub(super) struct Rings<'a> {
    /// `[matrices, Hv, Dk Dv]`.
    pub(super) matrix: Output<'a, f32>,
    /// `[slots, Hv, rows, Dv]`.
    pub(super) updates: Output<'a, f32>,
    /// `[slots, Hv, rows]`.
    pub(super) decays: Output<'a, f32>,
    /// `[T, Hv, Dv]`.
    pub(super) out: Output<'a, f32>,
}

/// One piece: a key head of a sequence with the value heads `key_head + Hk * g` for the g of `groups`.
pub(super) struct Piece<'a> {
    pub(super) sizes: &'a Sizes,
    pub(super) operands: &'a Operands<'a>,
    pub(super) rings: &'a Rings<'a>,
    pub(super) sequence: &'a StepSequence,
    /// The step's token at the sequence's first.
    pub(super) first_token: usize,
    pub(super) key_head: usize,
    pub(super) groups: Range<usize>,
    /// The key head of the piece that the same thread computes next, of the same sequence.
    pub(super) following: Option<usize>,
}

/// The part of a chunk that a step covers.
pub(super) struct Part {
    pub(super) chunk: usize,
    /// Rows of the chunk.
    pub(super) rows: Range<usize>,
    /// The step's token at the first of them.
    pub(super) token: usize,
}

/// Scratch of one piece. "New rows" are the n of a part.
pub(super) struct Memory<'s> {
    /// `[2 n, key_width]`: keys of the new rows, then their queries.
    pub(super) new: &'s mut [f32],
    /// `[CHUNK, key_width]`: keys of the chunk so far.
    pub(super) keys: &'s mut [f32],
    /// `[CHUNK, key_width]`: keys with the decay to the chunk's end.
    pub(super) decayed: &'s mut [f32],
    /// `[2 n, CHUNK]`: products of the new rows with the chunk's keys.
    pub(super) products: &'s mut [f32],
    /// `[2 n, CHUNK]`: -c and d of the new rows.
    pub(super) factors: &'s mut [f32],
    /// `[2 n, value_width]`: a and b of the new rows; b becomes their output.
    pub(super) from_state: &'s mut [f32],
    /// `[CHUNK, value_width]`: u of the chunk so far.
    pub(super) updates: &'s mut [f32],
    /// `[CHUNK]`: G of the chunk so far.
    pub(super) decays: &'s mut [f32],
    /// `[CHUNK]`: beta of the new rows, then decays to the chunk's end.
    pub(super) weights: &'s mut [f32],
    /// A padded copy of S where one is needed.
    pub(super) state: &'s mut [f32],
}

impl<'s> Memory<'s> {
    pub(super) fn in_scratch(sizes: &Sizes, mut scratch: &'s mut [f32]) -> Self {
        let mut cut = |len| cut(&mut scratch, len);
        Self {
            new: cut(2 * CHUNK * sizes.key_width),
            keys: cut(CHUNK * sizes.key_width),
            decayed: cut(CHUNK * sizes.key_width),
            products: cut(2 * CHUNK * CHUNK),
            factors: cut(2 * CHUNK * CHUNK),
            from_state: cut(2 * CHUNK * sizes.value_width),
            updates: cut(CHUNK * sizes.value_width),
            decays: cut(CHUNK),
            weights: cut(CHUNK),
            state: cut(sizes.padded_state()),
        }
    }
}

pub(super) fn copy_padded(source: &[f32], target: &mut [f32]) {
    let (values, padding) = target.split_at_mut(source.len());
    values.copy_from_slice(source);
    padding.fill(0.0);
}

impl Piece<'_> {
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        let (past, end) = (self.sequence.past, self.sequence.past + self.sequence.len);
        let first_token = self.first_token;
        (past / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
            let border = chunk * CHUNK;
            let first = past.max(border);
            Part {
                chunk,
                rows: first - border..end.min(border + CHUNK) - border,
                token: first_token + first - past,
            }
        })
    }

    /// The first row of a ring `[slots, heads, rows]` that belongs to a head.
    fn ring(&self, heads: usize, head: usize) -> usize {
        (self.sequence.slot * heads + head) * self.sizes.shape.rows()
    }

    /// The row of a position within the ring of a head.
    fn ring_row(&self, position: usize) -> usize {
        position % self.sizes.shape.rows()
    }

    /// The `len` first rows of a chunk in a ring: up to where it wraps, and behind, each with its ring row.
    pub(super) fn segments(&self, chunk: usize, len: usize) -> [(Range<usize>, usize); 2] {
        let start = self.ring_row(chunk * CHUNK);
        let before = (self.sizes.shape.rows() - start).min(len);
        [(0..before, start), (before..len, 0)]
    }

    /// Keys of a head in the ring, `count` rows from `row` on.
    pub(super) fn kept_keys(&self, key_head: usize, row: usize, count: usize) -> Matrix<'_, f32> {
        let ring = self.ring(self.sizes.shape.key_heads, key_head);
        self.operands.kept_keys.matrix(ring + row, 1, count)
    }

    /// Updates of a value head in the ring, `count` rows from `row` on, which must not be written meanwhile.
    pub(super) fn kept_updates(&self, head: usize, row: usize, count: usize) -> Matrix<'_, f32> {
        let ring = self.ring(self.sizes.shape.value_heads, head);
        // SAFETY: within the operation, this head's rows of the slot belong to this piece alone, which writes
        // rows of later positions only, when it is done with these.
        unsafe { self.rings.updates.matrix(ring + row, 1, count) }
    }

    /// S of a value head at a chunk's first position.
    ///
    /// # Safety
    /// No other reference to it is used while this one lives; other pieces have none.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn matrix(&self, chunk: usize, head: usize) -> &mut [f32] {
        // SAFETY: within the operation, a value head's matrices belong to one piece; the rest is promised.
        unsafe { self.rings.matrix.row(self.matrix_row(chunk, head)) }
    }

    pub(super) fn matrix_row(&self, chunk: usize, head: usize) -> usize {
        let matrices = self.sizes.shape.matrices();
        (self.sequence.slot * matrices + chunk % matrices) * self.sizes.shape.value_heads + head
    }

    /// Keys and queries of the new rows.
    pub(super) fn load_new(&self, part: &Part, memory: &mut Memory) {
        let (width, n) = (self.sizes.key_width, part.rows.len());
        let (keys, queries) = memory.new[..2 * n * width].split_at_mut(n * width);
        for (operand, targets) in [(&self.operands.keys, keys), (&self.operands.queries, queries)] {
            for (i, target) in targets.chunks_exact_mut(width).enumerate() {
                let row = (part.token + i) * self.sizes.shape.key_heads + self.key_head;
                copy_padded(operand.row(row), target);
            }
        }
    }

    /// All keys of the chunk so far, in one place.
    pub(super) fn gather_keys(&self, part: &Part, memory: &mut Memory) {
        let width = self.sizes.key_width;
        let ring = self.ring(self.sizes.shape.key_heads, self.key_head);
        for (row, target) in memory.keys.chunks_exact_mut(width).take(part.rows.start).enumerate() {
            let kept = ring + self.ring_row(part.chunk * CHUNK + row);
            copy_padded(self.operands.kept_keys.row(kept), target);
        }
        let (start, n) = (part.rows.start * width, part.rows.len() * width);
        memory.keys[start..start + n].copy_from_slice(&memory.new[..n]);
    }

    /// The updates of the chunk's earlier rows, in one place.
    pub(super) fn gather_updates(&self, part: &Part, head: usize, memory: &mut Memory) {
        let ring = self.ring(self.sizes.shape.value_heads, head);
        let targets = memory.updates.chunks_exact_mut(self.sizes.value_width).take(part.rows.start);
        for (row, target) in targets.enumerate() {
            let kept = ring + self.ring_row(part.chunk * CHUNK + row);
            // SAFETY: within the operation, this head's rows of the slot belong to this piece alone.
            copy_padded(unsafe { &*self.rings.updates.row(kept) }, target);
        }
    }

    /// G of the chunk up to the last new row.
    pub(super) fn sum_decays(&self, part: &Part, head: usize, memory: &mut Memory) {
        let slot = self.sequence.slot * self.sizes.shape.value_heads + head;
        // SAFETY: within the operation, this head's ring belongs to this piece alone.
        let ring = unsafe { &*self.rings.decays.row(slot) };
        for (row, decay) in memory.decays.iter_mut().take(part.rows.start).enumerate() {
            *decay = ring[self.ring_row(part.chunk * CHUNK + row)];
        }
        let mut sum = part.rows.start.checked_sub(1).map_or(0.0, |last| memory.decays[last]);
        for (i, row) in part.rows.clone().enumerate() {
            sum += self.operands.decay.row(part.token + i)[head];
            memory.decays[row] = sum;
        }
        memory.decays[part.rows.end..].fill(0.0);
    }

    /// Outputs to their place; updates and decays into the ring, as far as it goes back from the step's end.
    pub(super) fn write_rows(&self, part: &Part, head: usize, memory: &Memory) {
        let Sizes { shape, value_width: width, .. } = self.sizes;
        let (heads, dim, n) = (shape.value_heads, shape.value_dim, part.rows.len());
        let end = self.sequence.past + self.sequence.len;
        for (i, row) in part.rows.clone().enumerate() {
            // SAFETY: within the operation, a token's row of this head belongs to this piece alone.
            let out = unsafe { self.rings.out.row((part.token + i) * heads + head) };
            out.copy_from_slice(&memory.from_state[(n + i) * width..][..dim]);
            let position = part.chunk * CHUNK + row;
            if position + shape.rows() < end {
                continue;
            }
            let kept = self.ring_row(position);
            let slot = self.sequence.slot * heads + head;
            // SAFETY: within the operation, this head's rows of the slot belong to this piece alone.
            let (update, decays) = unsafe {
                (self.rings.updates.row(self.ring(heads, head) + kept), self.rings.decays.row(slot))
            };
            update.copy_from_slice(&memory.updates[row * width..][..dim]);
            decays[kept] = memory.decays[row];
        }
    }
}
