//! The numeric heart of the delta rule: some consecutive rows of one chunk.
//!
//! Row i of a chunk that begins with S, with G the running sum of log decays:
//!
//! ```text
//! u_i = beta_i ((v_i - exp(G_i) a_i) - c_i0 u_0 - c_i1 u_1 ...)    a_i = S^T k_i,  c_ij = exp(G_i - G_j) k_j.k_i
//! o_i = exp(G_i) b_i + d_i0 u_0 + ... + d_ii u_i                   b_i = S^T q_i,  d_ij = exp(G_i - G_j) k_j.q_i
//! ```
//!
//! Each sum runs in the order of j (of the key's dimension for a and b) with fused multiplications, whether
//! rows come one at a time or all at once; so the bits are the same.

use std::ops::Range;

use crate::cpu::scratch::cut;
use crate::cpu::simd::{Factors, LANES, Matrix, Simd, add_products, dot, dot_products, exp, simd_fn};
use crate::cpu::view::{Input, Output};
use crate::{CHUNK, StateShape, StepSequence};

/// Rows whose sums over earlier rows are computed together.
const BLOCK: usize = 4;

/// Terms that are summed for all rows before the next ones are: what they read fits the first-level cache.
const TERMS: usize = 32;

/// Sizes of a layer, widths rounded up to whole vectors.
pub(super) struct Sizes {
    shape: StateShape,
    key_width: usize,
    value_width: usize,
}

impl Sizes {
    pub(super) fn of(shape: &StateShape) -> Self {
        let key_width = shape.key_dim.next_multiple_of(LANES);
        let value_width = shape.value_dim.next_multiple_of(LANES);
        Self { shape: *shape, key_width, value_width }
    }

    /// Whether rows in memory are whole vectors, so that kernels may read them where they lie.
    fn whole(&self) -> bool {
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
    pub(super) kept_keys: Input<'a, f32>,
}

/// What it writes: for each value head, rows of its own.
pub(super) struct Rings<'a> {
    /// `[matrices, Hv, Dk Dv]`.
    pub(super) matrix: Output<'a, f32>,
    /// `[slots, rows, Hv, Dv]`.
    pub(super) updates: Output<'a, f32>,
    /// `[slots, rows, Hv, 1]`.
    pub(super) decays: Output<'a, f32>,
    /// `[T, Hv, Dv]`.
    pub(super) out: Output<'a, f32>,
}

/// One piece: a key head of a sequence with the value heads `key_head + Hk * g` for the g of `groups`.
pub(super) struct Work<'a> {
    pub(super) sequence: &'a StepSequence,
    /// The step's token at the sequence's first.
    pub(super) first_token: usize,
    pub(super) key_head: usize,
    pub(super) groups: Range<usize>,
}

/// The part of a chunk that a step covers.
struct Part {
    chunk: usize,
    /// Rows of the chunk.
    rows: Range<usize>,
    /// The step's token at the first of them.
    token: usize,
}

impl Work<'_> {
    fn parts(&self) -> impl Iterator<Item = Part> {
        let (past, end) = (self.sequence.past, self.sequence.past + self.sequence.len);
        (past / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
            let border = chunk * CHUNK;
            let first = past.max(border);
            Part {
                chunk,
                rows: first - border..end.min(border + CHUNK) - border,
                token: self.first_token + first - past,
            }
        })
    }

    /// Index in a ring `[slots, rows, heads]` of a position.
    fn ring(&self, sizes: &Sizes, position: usize, heads: usize, head: usize) -> usize {
        let rows = sizes.shape.rows();
        (self.sequence.slot * rows + position % rows) * heads + head
    }

    /// The `len` first rows of a chunk in a ring: up to where it wraps, and behind.
    fn segments(&self, sizes: &Sizes, chunk: usize, len: usize) -> [Range<usize>; 2] {
        let rows = sizes.shape.rows();
        let before = (rows - chunk * CHUNK % rows).min(len);
        [0..before, before..len]
    }
}

/// Scratch of one piece. "New rows" are those of the part.
struct Memory<'s> {
    /// `[2 n, key_width]`: keys of the n new rows, then their queries.
    new: &'s mut [f32],
    /// `[CHUNK, key_width]`: keys of the chunk so far.
    keys: &'s mut [f32],
    /// `[CHUNK, key_width]`: keys with the decay to the chunk's end.
    decayed: &'s mut [f32],
    /// `[2 n, CHUNK]`: products of the new rows with the chunk's keys, and the same times decays.
    products: &'s mut [f32],
    factors: &'s mut [f32],
    /// `[2 n, value_width]`: a and b of the new rows; b becomes their output.
    from_state: &'s mut [f32],
    /// `[CHUNK, value_width]`: u of the chunk so far.
    updates: &'s mut [f32],
    /// `[CHUNK]`: G of the chunk so far; weights made of it.
    decays: &'s mut [f32],
    weights: &'s mut [f32],
    /// A padded copy of S where one is needed.
    state: &'s mut [f32],
}

impl<'s> Memory<'s> {
    fn in_scratch(sizes: &Sizes, scratch: &mut &'s mut [f32]) -> Self {
        Self {
            new: cut(scratch, 2 * CHUNK * sizes.key_width),
            keys: cut(scratch, CHUNK * sizes.key_width),
            decayed: cut(scratch, CHUNK * sizes.key_width),
            products: cut(scratch, 2 * CHUNK * CHUNK),
            factors: cut(scratch, 2 * CHUNK * CHUNK),
            from_state: cut(scratch, 2 * CHUNK * sizes.value_width),
            updates: cut(scratch, CHUNK * sizes.value_width),
            decays: cut(scratch, CHUNK),
            weights: cut(scratch, CHUNK),
            state: cut(scratch, sizes.padded_state()),
        }
    }
}

fn copy_padded(source: &[f32], target: &mut [f32]) {
    let (values, padding) = target.split_at_mut(source.len());
    values.copy_from_slice(source);
    padding.fill(0.0);
}

#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

/// `out = factor * x`, whole vectors.
#[inline(always)]
fn scaled<S: Simd>(s: S, factor: f32, x: &[f32], out: &mut [f32]) {
    let factor = s.splat(factor);
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        s.store(s.mul(s.load(x), factor), out);
    }
}

/// A piece, chunk by chunk.
#[inline(always)]
fn work_through<S: Simd>(
    s: S,
    sizes: &Sizes,
    operands: &Operands,
    rings: &Rings,
    work: &Work,
    mut scratch: &mut [f32],
) {
    let mut memory = Memory::in_scratch(sizes, &mut scratch);
    for part in work.parts() {
        // One row that does not end its chunk reads the rings where they lie.
        let gathered = part.rows.len() > 1 || part.rows.end == CHUNK || !sizes.whole();
        load_new(sizes, operands, work, &part, &mut memory);
        if gathered {
            gather_keys(sizes, operands, work, &part, &mut memory);
        }
        key_products(s, sizes, operands, work, &part, gathered, &mut memory);
        for group in work.groups.clone() {
            let head = work.key_head + group * sizes.shape.key_heads;
            value_head(s, sizes, operands, rings, work, &part, head, gathered, &mut memory);
        }
    }
}

/// Keys and queries of the new rows.
fn load_new(sizes: &Sizes, operands: &Operands, work: &Work, part: &Part, memory: &mut Memory) {
    let (width, n) = (sizes.key_width, part.rows.len());
    let (keys, queries) = memory.new[..2 * n * width].split_at_mut(n * width);
    for (operand, targets) in [(&operands.keys, keys), (&operands.queries, queries)] {
        for (i, target) in targets.chunks_exact_mut(width).enumerate() {
            copy_padded(operand.row((part.token + i) * sizes.shape.key_heads + work.key_head), target);
        }
    }
}

/// All keys of the chunk so far, in one place.
fn gather_keys(sizes: &Sizes, operands: &Operands, work: &Work, part: &Part, memory: &mut Memory) {
    let (width, heads) = (sizes.key_width, sizes.shape.key_heads);
    for (row, target) in memory.keys.chunks_exact_mut(width).take(part.rows.start).enumerate() {
        let ring = work.ring(sizes, part.chunk * CHUNK + row, heads, work.key_head);
        copy_padded(operands.kept_keys.row(ring), target);
    }
    let (start, n) = (part.rows.start * width, part.rows.len() * width);
    memory.keys[start..start + n].copy_from_slice(&memory.new[..n]);
}

/// Products of the new keys and queries with the chunk's keys up to each row.
#[inline(always)]
fn key_products<S: Simd>(
    s: S,
    sizes: &Sizes,
    operands: &Operands,
    work: &Work,
    part: &Part,
    gathered: bool,
    memory: &mut Memory,
) {
    let (width, rows) = (sizes.key_width, 2 * part.rows.len());
    let new = Matrix::new(&memory.new[..rows * width], width);
    if gathered {
        let keys = Matrix::new(&*memory.keys, width);
        dot_products(s, new, rows, keys, 0..part.rows.end, width, memory.products, CHUNK);
        return;
    }
    let heads = sizes.shape.key_heads;
    for segment in work.segments(sizes, part.chunk, part.rows.start) {
        // Eight rows at a time: the ring has them, whatever they hold behind the chunk's last.
        let overshot = segment.len().next_multiple_of(LANES);
        if overshot == 0 {
            continue;
        }
        let first = work.ring(sizes, part.chunk * CHUNK + segment.start, heads, work.key_head);
        let keys = operands.kept_keys.matrix(first, heads, overshot);
        let products = &mut memory.products[segment.start..];
        dot_products(s, new, rows, keys, 0..segment.len(), width, products, CHUNK);
    }
    let own = part.rows.start;
    memory.products[CHUNK + own] = dot(s, new.row(1, width), new.row(0, width));
}

/// One value head's new rows, and the new S where they end the chunk.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn value_head<S: Simd>(
    s: S,
    sizes: &Sizes,
    operands: &Operands,
    rings: &Rings,
    work: &Work,
    part: &Part,
    head: usize,
    gathered: bool,
    memory: &mut Memory,
) {
    let heads = sizes.shape.value_heads;
    let n = part.rows.len();
    let width = sizes.value_width;
    let position = part.chunk * CHUNK;
    for row in 0..part.rows.start {
        let ring = work.ring(sizes, position + row, heads, head);
        // SAFETY: within the operation, this head's rows of the slot belong to this piece alone.
        memory.decays[row] = unsafe { rings.decays.row(ring) }[0];
    }
    let mut sum = if part.rows.start == 0 { 0.0 } else { memory.decays[part.rows.start - 1] };
    for (i, row) in part.rows.clone().enumerate() {
        sum += operands.decay.row(part.token + i)[head];
        memory.decays[row] = sum;
    }
    memory.decays[part.rows.end..].fill(0.0);
    state_products(s, sizes, rings, work, part, head, memory);
    row_factors(s, part, memory);
    let kept = if gathered {
        gather_updates(sizes, rings, work, part, head, memory);
        None
    } else {
        Some(work.segments(sizes, part.chunk, part.rows.start).map(|segment| {
            let first = work.ring(sizes, position + segment.start, heads, head);
            // SAFETY: within the operation, this head's rows of the slot belong to this piece alone, which
            // writes some when it is done with these.
            (segment.clone(), unsafe { rings.updates.matrix(first, heads, segment.len()) })
        }))
    };
    for i in 0..n {
        let (values, beta) =
            (operands.values.row((part.token + i) * heads + head), operands.beta.row(part.token + i)[head]);
        start_row(s, part, width, i, values, memory);
        memory.weights[i] = beta;
    }
    match &kept {
        Some(segments) => single_row(s, part, width, segments, memory),
        None => substitute(s, part, width, memory),
    }
    write_rows(sizes, rings, work, part, head, memory);
    if part.rows.end == CHUNK {
        fold(s, sizes, rings, work, part, head, memory);
    }
}

/// a and b of the new rows: their products with S.
#[inline(always)]
fn state_products<S: Simd>(
    s: S,
    sizes: &Sizes,
    rings: &Rings,
    work: &Work,
    part: &Part,
    head: usize,
    memory: &mut Memory,
) {
    let rows = 2 * part.rows.len();
    let (width, dim) = (sizes.value_width, sizes.shape.value_dim);
    memory.from_state[..rows * width].fill(0.0);
    if part.chunk == 0 {
        return;
    }
    // SAFETY: within the operation, this head's S belongs to this piece alone.
    let state = unsafe { &*rings.matrix.row(matrix_row(sizes, work, part.chunk, head)) };
    let state = if sizes.whole() {
        state
    } else {
        for (row, target) in state.chunks_exact(dim).zip(memory.state.chunks_exact_mut(width)) {
            copy_padded(row, target);
        }
        &*memory.state
    };
    let new = Factors::rows(Matrix::new(&memory.new[..rows * sizes.key_width], sizes.key_width));
    let state = Matrix::new(state, width);
    for first in (0..sizes.shape.key_dim).step_by(TERMS) {
        let terms = first..(first + TERMS).min(sizes.shape.key_dim);
        add_products::<S, f32, false>(s, new, rows, terms, state, width, memory.from_state, width);
    }
}

fn matrix_row(sizes: &Sizes, work: &Work, chunk: usize, head: usize) -> usize {
    let matrices = sizes.shape.matrices();
    (work.sequence.slot * matrices + chunk % matrices) * sizes.shape.value_heads + head
}

/// c and d of the new rows: products of keys times decays.
#[inline(always)]
fn row_factors<S: Simd>(s: S, part: &Part, memory: &mut Memory) {
    let n = part.rows.len();
    for (i, row) in part.rows.clone().enumerate() {
        let here = s.splat(memory.decays[row]);
        // Vectors up to the row's own column; what they hold behind it is not used.
        for column in (0..=row).step_by(LANES) {
            let lanes = column..column + LANES;
            let decays = &memory.decays[lanes.clone()].as_chunks::<LANES>().0[0];
            let decay = exp(s, s.sub(here, s.load(decays)));
            for line in [i, n + i] {
                let range = line * CHUNK + lanes.start..line * CHUNK + lanes.end;
                let product = &memory.products[range.clone()].as_chunks::<LANES>().0[0];
                let factor = &mut memory.factors[range].as_chunks_mut::<LANES>().0[0];
                s.store(s.mul(s.load(product), decay), factor);
            }
        }
    }
}

/// The updates of the chunk's earlier rows, in one place.
fn gather_updates(sizes: &Sizes, rings: &Rings, work: &Work, part: &Part, head: usize, memory: &mut Memory) {
    for (row, target) in memory.updates.chunks_exact_mut(sizes.value_width).take(part.rows.start).enumerate()
    {
        let ring = work.ring(sizes, part.chunk * CHUNK + row, sizes.shape.value_heads, head);
        // SAFETY: within the operation, this head's rows of the slot belong to this piece alone.
        copy_padded(unsafe { &*rings.updates.row(ring) }, target);
    }
}

/// New row i before the sums over earlier rows: `v - exp(G) a` as its update, `exp(G) b` as its output.
#[inline(always)]
fn start_row<S: Simd>(s: S, part: &Part, width: usize, i: usize, values: &[f32], memory: &mut Memory) {
    let n = part.rows.len();
    let row = part.rows.start + i;
    let decay = s.splat(exp_of(s, memory.decays[row]));
    let update = &mut memory.updates[row * width..][..width];
    copy_padded(values, update);
    let (a, b) = memory.from_state.split_at_mut(n * width);
    let a = a[i * width..][..width].as_chunks::<LANES>().0;
    for (a, update) in a.iter().zip(update.as_chunks_mut::<LANES>().0) {
        s.store(s.neg_mul_add(decay, s.load(a), s.load(update)), update);
    }
    for b in b[i * width..][..width].as_chunks_mut::<LANES>().0 {
        s.store(s.mul(decay, s.load(b)), b);
    }
}

#[inline(always)]
fn times<S: Simd>(s: S, factor: f32, row: &mut [f32]) {
    let factor = s.splat(factor);
    for vector in row.as_chunks_mut::<LANES>().0 {
        s.store(s.mul(factor, s.load(vector)), vector);
    }
}

/// The sums of a single new row, over earlier updates where they lie.
#[inline(always)]
fn single_row<S: Simd>(
    s: S,
    part: &Part,
    width: usize,
    kept: &[(Range<usize>, Matrix<f32>); 2],
    memory: &mut Memory,
) {
    let row = part.rows.start;
    let update = &mut memory.updates[row * width..][..width];
    let output = &mut memory.from_state[width..2 * width];
    for (segment, updates) in kept {
        let of_line = |line: usize| {
            Factors::rows(Matrix::new(
                &memory.factors[line * CHUNK + segment.start..][..segment.len()],
                CHUNK,
            ))
        };
        let terms = 0..segment.len();
        add_products::<S, f32, true>(s, of_line(0), 1, terms.clone(), *updates, width, update, width);
        add_products::<S, f32, false>(s, of_line(1), 1, terms, *updates, width, output, width);
    }
    times(s, memory.weights[0], update);
    let own = Factors::rows(Matrix::new(&memory.factors[CHUNK + row..][..1], CHUNK));
    let update = Matrix::new(&*update, width);
    add_products::<S, f32, false>(s, own, 1, 0..1, update, width, output, width);
}

/// The sums of all new rows: forward substitution for the updates, then the outputs.
#[inline(always)]
fn substitute<S: Simd>(s: S, part: &Part, width: usize, memory: &mut Memory) {
    let (start, n) = (part.rows.start, part.rows.len());
    let line = |line: usize| Factors::rows(Matrix::new(&memory.factors[line * CHUNK..], CHUNK));
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        let (done, open) = memory.updates.split_at_mut((start + first) * width);
        let earlier = Matrix::new(&*done, width);
        add_products::<S, f32, true>(s, line(first), count, 0..start + first, earlier, width, open, width);
        for i in 0..count {
            let (block, rest) = open.split_at_mut(i * width);
            let own = Factors::rows(Matrix::new(
                &memory.factors[(first + i) * CHUNK + start + first..][..i],
                CHUNK,
            ));
            let update = &mut rest[..width];
            add_products::<S, f32, true>(s, own, 1, 0..i, Matrix::new(&*block, width), width, update, width);
            times(s, memory.weights[first + i], update);
        }
    }
    let updates = Matrix::new(&*memory.updates, width);
    let outputs = &mut memory.from_state[n * width..];
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        let common = start + first + 1;
        let out = &mut outputs[first * width..];
        add_products::<S, f32, false>(s, line(n + first), count, 0..common, updates, width, out, width);
        for i in 1..count {
            let out = &mut outputs[(first + i) * width..];
            let terms = common..common + i;
            add_products::<S, f32, false>(s, line(n + first + i), 1, terms, updates, width, out, width);
        }
    }
}

/// Outputs to their place; updates and decays into the ring, as far as it goes back from the step's end.
fn write_rows(sizes: &Sizes, rings: &Rings, work: &Work, part: &Part, head: usize, memory: &Memory) {
    let (heads, width, dim) = (sizes.shape.value_heads, sizes.value_width, sizes.shape.value_dim);
    let n = part.rows.len();
    let end = work.sequence.past + work.sequence.len;
    for (i, row) in part.rows.clone().enumerate() {
        // SAFETY: within the operation, a token's row of this head belongs to this piece alone.
        let out = unsafe { rings.out.row((part.token + i) * heads + head) };
        out.copy_from_slice(&memory.from_state[(n + i) * width..][..dim]);
        let position = part.chunk * CHUNK + row;
        if position + sizes.shape.rows() < end {
            continue;
        }
        let ring = work.ring(sizes, position, heads, head);
        // SAFETY: within the operation, this head's rows of the slot belong to this piece alone.
        let (update, decay) = unsafe { (rings.updates.row(ring), rings.decays.row(ring)) };
        update.copy_from_slice(&memory.updates[row * width..][..dim]);
        decay[0] = memory.decays[row];
    }
}

/// S at the next chunk's border: `exp(G) S + sum_j exp(G - G_j) k_j u_j^T`, G at the chunk's end.
#[inline(always)]
fn fold<S: Simd>(
    s: S,
    sizes: &Sizes,
    rings: &Rings,
    work: &Work,
    part: &Part,
    head: usize,
    memory: &mut Memory,
) {
    let (key_dim, dim) = (sizes.shape.key_dim, sizes.shape.value_dim);
    let (key_width, width) = (sizes.key_width, sizes.value_width);
    let last = memory.decays[CHUNK - 1];
    let decays = memory.decays.as_chunks::<LANES>().0;
    for (decay, weight) in decays.iter().zip(memory.weights.as_chunks_mut::<LANES>().0) {
        s.store(exp(s, s.sub(s.splat(last), s.load(decay))), weight);
    }
    let rows = memory.keys.chunks_exact(key_width).zip(memory.decayed.chunks_exact_mut(key_width));
    for ((key, decayed), weight) in rows.zip(&*memory.weights) {
        scaled(s, *weight, key, decayed);
    }
    let (from, to) =
        (matrix_row(sizes, work, part.chunk, head), matrix_row(sizes, work, part.chunk + 1, head));
    // SAFETY: within the operation, both matrices of this head belong to this piece alone; the new one is
    // borrowed when the old one, which may be the same, no longer is.
    let state = if sizes.whole() { unsafe { rings.matrix.row(to) } } else { &mut *memory.state };
    if part.chunk == 0 {
        state.fill(0.0);
    } else {
        let factor = exp_of(s, last);
        if sizes.whole() && from != to {
            // SAFETY: as above; the two are not the same.
            scaled(s, factor, unsafe { &*rings.matrix.row(from) }, state);
        } else {
            // In place; or in the padded copy, which holds the old S since the products with it.
            times(s, factor, state);
        }
    }
    let factors = Factors::columns(Matrix::new(&*memory.decayed, key_width));
    let updates = Matrix::new(&*memory.updates, width);
    for first in (0..CHUNK).step_by(TERMS) {
        let terms = first..first + TERMS;
        add_products::<S, f32, false>(s, factors, key_dim, terms, updates, width, state, width);
    }
    if !sizes.whole() {
        // SAFETY: as above.
        let target = unsafe { rings.matrix.row(to) };
        for (row, target) in memory.state.chunks_exact(width).zip(target.chunks_exact_mut(dim)) {
            target.copy_from_slice(&row[..dim]);
        }
    }
}

simd_fn! {
    /// Works through a piece: outputs, rings and matrices of its value heads.
    pub(super) fn advance = work_through(
        sizes: &Sizes, operands: &Operands, rings: &Rings, work: &Work, scratch: &mut [f32]
    )
}
