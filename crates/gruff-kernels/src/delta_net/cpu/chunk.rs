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

use super::piece::{Memory, Part, Piece, copy_padded};
use crate::CHUNK;
use crate::cpu::ahead::{Trail, ask_for};
use crate::cpu::simd::{
    Factors, LANES, Matrix, Simd, add_products, add_products_while, dot, dot_products, dot_products_while,
    exp, wide_fn,
};

/// Rows whose sums over earlier rows are computed together.
const BLOCK: usize = 4;

/// Terms that are summed for all rows before the next ones are: what they read fits the first-level cache.
const TERMS: usize = 32;

/// Rows of a matrix that a single row's products take at a time, in the order of memory, so that it arrives as
/// fast as memory gives it; and how many rows ahead of their use they are asked for.
const STREAMED: usize = 16;

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

/// `row *= factor`, whole vectors.
#[inline(always)]
fn times<S: Simd>(s: S, factor: f32, row: &mut [f32]) {
    let factor = s.splat(factor);
    for vector in row.as_chunks_mut::<LANES>().0 {
        s.store(s.mul(s.load(vector), factor), vector);
    }
}

/// Rows that a decode step reads, which lie together, far away in memory.
#[derive(Clone, Copy)]
struct Stream<'a> {
    rows: Matrix<'a, f32>,
    count: usize,
    width: usize,
}

impl<'a> Stream<'a> {
    /// Some of its rows, as far as there are.
    #[inline(always)]
    fn part(self, rows: std::ops::Range<usize>) -> &'a [f32] {
        let (first, end) = (rows.start.min(self.count), rows.end.min(self.count));
        if first == end { &[] } else { self.rows.together(first..end, self.width) }
    }

    /// What is to be asked for while its rows from `first` to `end` are read: as many rows, [`STREAMED`] further on, where
    /// those of the next stream stand behind its own.
    #[inline(always)]
    fn trail(self, rows: std::ops::Range<usize>, next: Option<Self>) -> Trail {
        let (first, end) = (rows.start + STREAMED, rows.end + STREAMED);
        let own = Trail::of(self.part(first..end));
        match next {
            Some(next) => {
                own.and(next.part(first.max(self.count) - self.count..end.max(self.count) - self.count))
            }
            None => own,
        }
    }

    /// Asks for the first rows, and those of the next stream where it has fewer than are under way.
    #[inline(always)]
    fn begin(self, next: Option<Self>) {
        ask_for(self.part(0..STREAMED));
        self.begin_next(next);
    }

    #[inline(always)]
    fn begin_next(self, next: Option<Self>) {
        if let Some(next) = next {
            ask_for(next.part(0..STREAMED.saturating_sub(self.count)));
        }
    }
}

/// [`add_products`] of the two rows of a decode step with those of x, whose first have been asked for. Afterwards those of
/// the next stream are.
#[inline(always)]
fn add_streamed<S: Simd>(s: S, c: Factors, x: Stream, next: Option<Stream>, out: &mut [f32]) {
    x.begin_next(next);
    for first in (0..x.count).step_by(STREAMED) {
        let terms = first..(first + STREAMED).min(x.count);
        let trail = x.trail(terms.clone(), next);
        add_products_while(s, c, 2, terms, x.rows, x.width, out, x.width, trail);
    }
}

/// A piece, chunk by chunk.
#[inline(always)]
fn work_through<S: Simd>(s: S, piece: &Piece, scratch: &mut [f32]) {
    let mut memory = Memory::in_scratch(piece.sizes, scratch);
    for part in piece.parts() {
        // One row that does not end its chunk reads the rings where they lie.
        let gathered = part.rows.len() > 1 || part.rows.end == CHUNK || !piece.sizes.whole();
        piece.load_new(&part, &mut memory);
        if gathered {
            piece.gather_keys(&part, &mut memory);
        }
        let heads = piece.groups.clone().map(|group| piece.key_head + group * piece.sizes.shape.key_heads);
        let state = |head: Option<usize>| head.and_then(|head| state_stream(piece, &part, head));
        key_products(s, piece, &part, gathered, state(heads.clone().next()), &mut memory);
        let mut heads = heads.peekable();
        while let Some(head) = heads.next() {
            let next = match heads.peek() {
                Some(head) => state(Some(*head)),
                None => piece.following.map(|head| key_stream(piece, &part, head)),
            };
            value_head(s, piece, &part, head, gathered, next, &mut memory);
        }
    }
}

/// S of a value head, as it lies in memory.
#[inline(always)]
fn state_stream<'a>(piece: &'a Piece, part: &Part, head: usize) -> Option<Stream<'a>> {
    let shape = &piece.sizes.shape;
    // SAFETY: it is written only when nothing of this is used any more; what is asked for is not read.
    let state = (part.chunk > 0).then(|| unsafe { &*piece.matrix(part.chunk, head) })?;
    let rows = Matrix::new(state, shape.value_dim);
    Some(Stream { rows, count: shape.key_dim, width: shape.value_dim })
}

/// The keys of the chunk so far, up to where the ring wraps.
#[inline(always)]
fn key_stream<'a>(piece: &'a Piece, part: &Part, key_head: usize) -> Stream<'a> {
    let (rows, ring_row) = &piece.segments(part.chunk, part.rows.start)[0];
    let (count, width) = (rows.len(), piece.sizes.shape.key_dim);
    Stream { rows: piece.kept_keys(key_head, *ring_row, count), count, width }
}

/// The updates of a value head in the chunk so far, up to where the ring wraps.
#[inline(always)]
fn update_stream<'a>(piece: &'a Piece, part: &Part, head: usize) -> Stream<'a> {
    let (rows, ring_row) = &piece.segments(part.chunk, part.rows.start)[0];
    let (count, width) = (rows.len(), piece.sizes.shape.value_dim);
    Stream { rows: piece.kept_updates(head, *ring_row, count), count, width }
}

/// Products of the new keys and queries with the chunk's keys up to each row.
#[inline(always)]
fn key_products<S: Simd>(
    s: S,
    piece: &Piece,
    part: &Part,
    gathered: bool,
    next: Option<Stream>,
    memory: &mut Memory,
) {
    let (width, rows) = (piece.sizes.key_width, 2 * part.rows.len());
    let new = Matrix::new(&memory.new[..rows * width], width);
    if gathered {
        let keys = Matrix::new(&*memory.keys, width);
        let n = part.rows.len();
        for first in (0..n).step_by(LANES) {
            let end = (first + LANES).min(n);
            for line in [first, n + first] {
                let products = &mut memory.products[line * CHUNK..];
                let columns = 0..part.rows.start + end;
                dot_products(s, new.rows_from(line), end - first, keys, columns, width, products, CHUNK);
            }
        }
        return;
    }
    let stream = key_stream(piece, part, piece.key_head);
    stream.begin(next);
    for (segment, ring_row) in piece.segments(part.chunk, part.rows.start) {
        // Eight rows at a time: the ring has them, whatever they hold behind the chunk's last.
        let overshot = segment.len().next_multiple_of(LANES);
        let keys = piece.kept_keys(piece.key_head, ring_row, overshot);
        let products = &mut memory.products[segment.start..];
        for first in (0..segment.len()).step_by(LANES) {
            let columns = first..first + LANES;
            let trail = if segment.start == 0 { stream.trail(columns.clone(), next) } else { Trail::NONE };
            dot_products_while(s, new, rows, keys, columns, width, products, CHUNK, trail);
        }
    }
    memory.products[CHUNK + part.rows.start] = dot(s, new.row(1, width), new.row(0, width));
}

/// One value head's new rows, and the new S where they end the chunk.
#[inline(always)]
fn value_head<S: Simd>(
    s: S,
    piece: &Piece,
    part: &Part,
    head: usize,
    gathered: bool,
    next: Option<Stream>,
    memory: &mut Memory,
) {
    let width = piece.sizes.value_width;
    piece.sum_decays(part, head, memory);
    let updates = (!gathered).then(|| update_stream(piece, part, head));
    state_products(s, piece, part, head, updates, memory);
    row_factors(s, part, memory);
    for i in 0..part.rows.len() {
        let row = (part.token + i) * piece.sizes.shape.value_heads + head;
        start_row(s, part, width, i, piece.operands.values.row(row), memory);
        memory.weights[i] = piece.operands.beta.row(part.token + i)[head];
    }
    if gathered {
        piece.gather_updates(part, head, memory);
        substitute(s, part, width, memory);
    } else {
        single_row(s, piece, part, head, next, memory);
    }
    piece.write_rows(part, head, memory);
    if part.rows.end == CHUNK {
        fold(s, piece, part, head, memory);
    }
}

/// a and b of the new rows: their products with S.
#[inline(always)]
fn state_products<S: Simd>(
    s: S,
    piece: &Piece,
    part: &Part,
    head: usize,
    next: Option<Stream>,
    memory: &mut Memory,
) {
    let sizes = piece.sizes;
    let (rows, width) = (2 * part.rows.len(), sizes.value_width);
    memory.from_state[..rows * width].fill(0.0);
    if part.chunk == 0 {
        return;
    }
    // SAFETY: it is not borrowed elsewhere until this returns.
    let state = unsafe { &*piece.matrix(part.chunk, head) };
    let state = if sizes.whole() {
        state
    } else {
        let targets = memory.state.chunks_exact_mut(width);
        state
            .chunks_exact(sizes.shape.value_dim)
            .zip(targets)
            .for_each(|(row, target)| copy_padded(row, target));
        &*memory.state
    };
    let new = Factors::rows(Matrix::new(&memory.new[..rows * sizes.key_width], sizes.key_width));
    let state = Matrix::new(state, width);
    let terms = sizes.shape.key_dim;
    if rows == 2 {
        let state = Stream { rows: state, count: terms, width };
        add_streamed(s, new, state, next, memory.from_state);
        return;
    }
    for first in (0..terms).step_by(TERMS) {
        let block = first..(first + TERMS).min(terms);
        add_products(s, new, rows, block, state, width, memory.from_state, width);
    }
}

/// -c and d of the new rows: products of keys times decays.
#[inline(always)]
fn row_factors<S: Simd>(s: S, part: &Part, memory: &mut Memory) {
    let n = part.rows.len();
    let decays = memory.decays.as_chunks::<LANES>().0;
    let products = memory.products.as_chunks::<LANES>().0;
    let factors = memory.factors.as_chunks_mut::<LANES>().0;
    const VECTORS: usize = CHUNK / LANES;
    let zero = s.splat(0.0);
    for (i, row) in part.rows.clone().enumerate() {
        let here = s.splat(memory.decays[row]);
        // Vectors up to the row's own column; what they hold behind it is not used.
        for (j, decay) in decays.iter().enumerate().take(row / LANES + 1) {
            let decay = exp(s, s.sub(here, s.load(decay)));
            let (c, d) = (i * VECTORS + j, (n + i) * VECTORS + j);
            s.store(s.sub(zero, s.mul(s.load(&products[c]), decay)), &mut factors[c]);
            s.store(s.mul(s.load(&products[d]), decay), &mut factors[d]);
        }
    }
}

/// New row i before the sums over earlier rows: `v - exp(G) a` as its update, `exp(G) b` as its output.
#[inline(always)]
fn start_row<S: Simd>(s: S, part: &Part, width: usize, i: usize, values: &[f32], memory: &mut Memory) {
    let row = part.rows.start + i;
    let decay = exp_of(s, memory.decays[row]);
    let update = &mut memory.updates[row * width..][..width];
    copy_padded(values, update);
    let (a, b) = memory.from_state.split_at_mut(part.rows.len() * width);
    let factor = s.splat(decay);
    for (a, update) in a[i * width..].as_chunks::<LANES>().0.iter().zip(update.as_chunks_mut::<LANES>().0) {
        s.store(s.neg_mul_add(factor, s.load(a), s.load(update)), update);
    }
    times(s, decay, &mut b[i * width..][..width]);
}

/// The sums of a single new row, over earlier updates where they lie.
#[inline(always)]
fn single_row<S: Simd>(
    s: S,
    piece: &Piece,
    part: &Part,
    head: usize,
    next: Option<Stream>,
    memory: &mut Memory,
) {
    let (row, width) = (part.rows.start, piece.sizes.value_width);
    let update = &mut memory.updates[row * width..][..width];
    // The update in the place of a, beside the output, so that one pass serves both.
    memory.from_state[..width].copy_from_slice(update);
    for (segment, ring_row) in piece.segments(part.chunk, row) {
        let factors = Factors::rows(Matrix::new(&memory.factors[segment.start..], CHUNK));
        let rows = piece.kept_updates(head, ring_row, segment.len());
        let kept = Stream { rows, count: segment.len(), width };
        add_streamed(s, factors, kept, next, memory.from_state);
    }
    scaled(s, memory.weights[0], &memory.from_state[..width], update);
    let own = Factors::rows(Matrix::new(&memory.factors[CHUNK + row..], CHUNK));
    let output = &mut memory.from_state[width..];
    add_products(s, own, 1, 0..1, Matrix::new(&*update, width), width, output, width);
}

/// The sums of all new rows: forward substitution for the updates, then the outputs.
#[inline(always)]
fn substitute<S: Simd>(s: S, part: &Part, width: usize, memory: &mut Memory) {
    let (start, n) = (part.rows.start, part.rows.len());
    let line = |line: usize, column: usize| {
        Factors::rows(Matrix::new(&memory.factors[line * CHUNK + column..], CHUNK))
    };
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        let (done, open) = memory.updates.split_at_mut((start + first) * width);
        let earlier = Matrix::new(&*done, width);
        add_products(s, line(first, 0), count, 0..start + first, earlier, width, open, width);
        for i in 0..count {
            let (block, rest) = open.split_at_mut(i * width);
            let own = line(first + i, start + first);
            add_products(s, own, 1, 0..i, Matrix::new(&*block, width), width, rest, width);
            times(s, memory.weights[first + i], &mut rest[..width]);
        }
    }
    let updates = Matrix::new(&*memory.updates, width);
    let outputs = &mut memory.from_state[n * width..];
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        let common = start + first + 1;
        let out = &mut outputs[first * width..];
        add_products(s, line(n + first, 0), count, 0..common, updates, width, out, width);
        for i in 1..count {
            let out = &mut outputs[(first + i) * width..];
            add_products(s, line(n + first + i, 0), 1, common..common + i, updates, width, out, width);
        }
    }
}

/// S at the next chunk's border: `exp(G) S + sum_j exp(G - G_j) k_j u_j^T`, G at the chunk's end.
#[inline(always)]
fn fold<S: Simd>(s: S, piece: &Piece, part: &Part, head: usize, memory: &mut Memory) {
    let sizes = piece.sizes;
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
    let in_place = piece.matrix_row(part.chunk, head) == piece.matrix_row(part.chunk + 1, head);
    // SAFETY: the old one is borrowed beside it only where it is another.
    let target = unsafe { piece.matrix(part.chunk + 1, head) };
    let state = if sizes.whole() { &mut *target } else { &mut *memory.state };
    if part.chunk == 0 {
        state.fill(0.0);
    } else if sizes.whole() && !in_place {
        // SAFETY: not the one that is written.
        scaled(s, exp_of(s, last), unsafe { &*piece.matrix(part.chunk, head) }, state);
    } else {
        // In place; or in the padded copy, which holds the old S since the products with it.
        times(s, exp_of(s, last), state);
    }
    let factors = Factors::columns(Matrix::new(&*memory.decayed, key_width));
    let updates = Matrix::new(&*memory.updates, width);
    for first in (0..CHUNK).step_by(TERMS) {
        add_products(s, factors, key_dim, first..first + TERMS, updates, width, state, width);
    }
    if !sizes.whole() {
        for (row, target) in memory.state.chunks_exact(width).zip(target.chunks_exact_mut(dim)) {
            target.copy_from_slice(&row[..dim]);
        }
    }
}

wide_fn! {
    /// Works through a piece: outputs, rings and matrices of its value heads.
    pub(super) fn advance = work_through(piece: &Piece, scratch: &mut [f32])
}
