//! One job: some queries of one sequence against the pages of one key-value head.

use std::ops::Range;

use super::super::AttentionSpec;
use super::SPAN;
use super::cached::Cached;
use super::partial::Partial;
use crate::cpu::ahead::Trail;
use crate::cpu::scratch::cut;
use crate::cpu::simd::{
    Factors, LANES, Lane, Matrix, Simd, add_products, add_products_while, dot_products, dot_products_while,
    exp, simd_fn, tanh, wide_fn,
};
use crate::cpu::view::{Input, Output};
use crate::{KvLayer, PAGE_LEN, Tensor};

/// From this many rows on, a page is widened to f32 once instead of by every tile of four rows.
const WORTH_WIDENING: usize = 8;

/// Head counts and widths.
pub(super) struct Heads {
    /// Query heads.
    pub(super) all: usize,
    /// Key-value heads.
    pub(super) kv: usize,
    /// Query heads a key-value head.
    pub(super) group: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// Widths rounded up to whole vectors, as rows in scratch have them.
    key_width: usize,
    value_width: usize,
}

impl Heads {
    pub(super) fn of(queries: &Tensor, layer: &KvLayer, out: &Tensor) -> Self {
        let (all, kv) = (queries.shape()[1], layer.kv_heads());
        let (key_dim, value_dim) = (queries.shape()[2], out.shape()[2]);
        let key_width = key_dim.next_multiple_of(LANES);
        let value_width = value_dim.next_multiple_of(LANES);
        Self { all, kv, group: all / kv, key_dim, value_dim, key_width, value_width }
    }

    /// Values of a partial result: maximum, sum and weighted values of each row.
    pub(super) fn partial(&self, rows: usize) -> usize {
        rows * (2 + self.value_width)
    }

    /// Values of scratch that a job takes: scaled queries, scores, a widened page, two partial results.
    pub(super) fn scratch(&self, rows: usize) -> usize {
        rows * (self.key_width + PAGE_LEN)
            + PAGE_LEN * (self.key_width + self.value_width)
            + 2 * self.partial(rows)
    }
}

/// What all jobs read. Pages are rows of `PAGE_LEN` keys or values.
pub(super) struct Pools<'a, T> {
    pub(super) queries: &'a Input<'a, f32>,
    pub(super) keys: &'a Input<'a, T>,
    pub(super) values: &'a Input<'a, T>,
}

/// See the module.
pub(super) struct Job<'a> {
    /// The step's token at the first position.
    pub(super) first_token: usize,
    /// Positions of the queries in their sequence.
    pub(super) positions: Range<usize>,
    pub(super) kv_head: usize,
    pub(super) pages: &'a [u32],
    pub(super) group: usize,
    pub(super) spec: AttentionSpec,
}

impl Job<'_> {
    /// Rows: positions times heads of the group.
    pub(super) fn rows(&self) -> usize {
        self.positions.len() * self.group
    }

    /// Keys that the query of a row sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let end = self.positions.start + row / self.group + 1;
        self.spec.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Keys that any query sees.
    fn keys(&self) -> Range<usize> {
        self.visible(0).start..self.positions.end
    }

    /// Numbers of the spans with visible keys.
    pub(super) fn spans(&self) -> Range<usize> {
        let keys = self.keys();
        keys.start / SPAN..keys.end.div_ceil(SPAN)
    }

    /// Multiplications, about.
    pub(super) fn products(&self, heads: &Heads) -> usize {
        self.rows() * self.keys().len() * (heads.key_width + heads.value_width)
    }

    fn query_row(&self, row: usize, heads: &Heads) -> usize {
        (self.first_token + row / self.group) * heads.all + self.kv_head * self.group + row % self.group
    }
}

/// The keys of a page that a row sees, counted from the page's first.
fn within_page(visible: &Range<usize>, page: usize) -> Range<usize> {
    let clamp = |key: usize| key.saturating_sub(page * PAGE_LEN).min(PAGE_LEN);
    clamp(visible.start)..clamp(visible.end)
}

/// Scratch of one job.
struct Work<'s> {
    /// `[rows, key_width]`, scaled.
    queries: &'s mut [f32],
    /// `[rows, PAGE_LEN]`.
    scores: &'s mut [f32],
    /// `[PAGE_LEN, key_width]` and `[PAGE_LEN, value_width]`, where pages are widened.
    keys: &'s mut [f32],
    values: &'s mut [f32],
}

impl<'s> Work<'s> {
    fn in_scratch(heads: &Heads, rows: usize, scratch: &mut &'s mut [f32]) -> Self {
        Self {
            queries: cut(scratch, rows * heads.key_width),
            scores: cut(scratch, rows * PAGE_LEN),
            keys: cut(scratch, PAGE_LEN * heads.key_width),
            values: cut(scratch, PAGE_LEN * heads.value_width),
        }
    }

    fn load_queries(&mut self, heads: &Heads, queries: &Input<f32>, job: &Job) {
        for (row, target) in self.queries.chunks_exact_mut(heads.key_width).enumerate() {
            let source = queries.row(job.query_row(row, heads));
            let (whole, padding) = target.split_at_mut(heads.key_dim);
            for (value, target) in source.iter().zip(whole) {
                *target = value * job.spec.scale;
            }
            padding.fill(0.0);
        }
    }
}

/// A page in f32, its rows padded to whole vectors.
#[inline(always)]
fn widen<S: Simd, T: Cached>(s: S, page: &[T], out: &mut [f32], width: usize) {
    for (row, target) in page.chunks_exact(page.len() / PAGE_LEN).zip(out.chunks_exact_mut(width)) {
        T::widen_row(s, row, target);
    }
}

/// Scores of a row's page to weights: masked, capped, and the partial result brought to the new maximum.
/// Returns the factor on the row's earlier values, if they need one.
#[inline(always)]
fn softmax_page<S: Simd>(
    s: S,
    scores: &mut [f32; PAGE_LEN],
    seen: Range<usize>,
    softcap: Option<f32>,
    largest: &mut f32,
    sum: &mut f32,
) -> Option<f32> {
    const VECTORS: usize = PAGE_LEN / LANES;
    const { assert!(VECTORS == 4) };
    if let Some(cap) = softcap {
        for vector in scores.as_chunks_mut::<LANES>().0 {
            let cap = s.splat(cap);
            s.store(s.mul(cap, tanh(s, s.div(s.load(vector), cap))), vector);
        }
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut v = [s.splat(0.0); VECTORS];
    for i in 0..VECTORS {
        v[i] = s.load(&vectors[i]);
    }
    let here = s.max_lane(s.max(s.max(v[0], v[2]), s.max(v[1], v[3])));
    let before = *largest;
    let now = if here > before { here } else { before };
    *largest = now;
    let shift = s.splat(now);
    for i in 0..VECTORS {
        v[i] = exp(s, s.sub(v[i], shift));
        s.store(v[i], &mut vectors[i]);
    }
    let added = s.sum(s.add(s.add(v[0], v[2]), s.add(v[1], v[3])));
    if now == before {
        *sum += added;
        return None;
    }
    let factor = super::partial::exp_of(s, before - now);
    *sum = sum.mul_add(factor, added);
    Some(factor)
}

/// The weighted sum of a page's values for all rows: rows that see the same keys together, four at a time.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn add_values<S: Simd, T: Lane>(
    s: S,
    job: &Job,
    page: usize,
    scores: &[f32],
    values: Matrix<T>,
    width: usize,
    sums: &mut [f32],
    mut trail: Trail,
) {
    const TOGETHER: usize = 4;
    let rows = job.rows();
    let seen = |row: usize| within_page(&job.visible(row), page);
    for first in (0..rows).step_by(TOGETHER) {
        let count = TOGETHER.min(rows - first);
        let (one, last) = (seen(first), seen(first + count - 1));
        // Later rows see later keys, so the first and the last row bound all.
        let common = if one.start == last.start { one.end } else { one.start };
        let scores = Matrix::new(&scores[first * PAGE_LEN..], PAGE_LEN);
        let factors = |row| Factors::rows(scores.rows_from(row));
        let sums = &mut sums[first * width..];
        add_products_while(s, factors(0), count, one.start..common, values, width, sums, width, trail);
        trail = Trail::NONE;
        if common == last.end {
            continue;
        }
        for row in 0..count {
            let keys = seen(first + row);
            let rest = keys.start.max(common)..keys.end;
            let sums = &mut sums[row * width..];
            add_products(s, factors(row), 1, rest, values, width, sums, width);
        }
    }
}

/// Works through the pages of one span.
#[inline(always)]
fn span_pages<S: Simd, T: Cached>(
    s: S,
    heads: &Heads,
    pools: &Pools<T>,
    job: &Job,
    span: usize,
    partial: &mut Partial,
    work: &mut Work,
) {
    partial.clear();
    let keys = job.keys();
    let first = keys.start.max(span * SPAN) / PAGE_LEN;
    let end = keys.end.min((span + 1) * SPAN).div_ceil(PAGE_LEN);
    let rows = job.rows();
    let padded = heads.key_width != heads.key_dim || heads.value_width != heads.value_dim;
    let widened = padded || (rows >= WORTH_WIDENING && T::DTYPE != crate::DType::F32);
    for page in first..end {
        let row = job.pages[page] as usize * heads.kv + job.kv_head;
        let (page_keys, page_values) = (pools.keys.row(row), pools.values.row(row));
        let direct = if widened { None } else { T::direct(page_keys).zip(T::direct(page_values)) };
        if direct.is_none() {
            widen(s, page_keys, work.keys, heads.key_width);
            widen(s, page_values, work.values, heads.value_width);
        }
        let queries = Matrix::new(&*work.queries, heads.key_width);
        let columns = 0..(keys.end - page * PAGE_LEN).min(PAGE_LEN);
        let width = heads.key_width;
        if let Some((keys, values)) = direct {
            let keys = Matrix::new(keys, width);
            let trail = Trail::of(values);
            dot_products_while(s, queries, rows, keys, columns, width, work.scores, PAGE_LEN, trail);
        } else {
            let keys = Matrix::new(&*work.keys, width);
            dot_products(s, queries, rows, keys, columns, width, work.scores, PAGE_LEN);
        }
        let scores = work.scores.as_chunks_mut::<PAGE_LEN>().0;
        for (row, scores) in scores.iter_mut().enumerate() {
            let seen = within_page(&job.visible(row), page);
            if seen.is_empty() {
                continue;
            }
            let (largest, sum, sums) = partial.row(row);
            if let Some(factor) = softmax_page(s, scores, seen, job.spec.softcap, largest, sum) {
                let factor = s.splat(factor);
                for vector in sums.as_chunks_mut::<LANES>().0 {
                    s.store(s.mul(s.load(vector), factor), vector);
                }
            }
        }
        let width = heads.value_width;
        if let Some((_, values)) = direct {
            let values = Matrix::new(values, width);
            let trail = if page + 1 < end {
                let next = job.pages[page + 1] as usize * heads.kv + job.kv_head;
                Trail::of(pools.keys.row(next))
            } else {
                Trail::NONE
            };
            add_values(s, job, page, work.scores, values, width, partial.sums, trail);
        } else {
            let values = Matrix::new(&*work.values, width);
            add_values(s, job, page, work.scores, values, width, partial.sums, Trail::NONE);
        }
    }
}

#[inline(always)]
fn whole_job<S: Simd, T: Cached>(
    s: S,
    heads: &Heads,
    pools: &Pools<T>,
    job: &Job,
    out: &Output<f32>,
    mut scratch: &mut [f32],
) {
    let rows = job.rows();
    let mut work = Work::in_scratch(heads, rows, &mut scratch);
    let mut total = Partial::in_memory(cut(&mut scratch, heads.partial(rows)), rows);
    let mut next = Partial::in_memory(cut(&mut scratch, heads.partial(rows)), rows);
    work.load_queries(heads, pools.queries, job);
    for (i, span) in job.spans().enumerate() {
        if i == 0 {
            span_pages(s, heads, pools, job, span, &mut total, &mut work);
        } else {
            span_pages(s, heads, pools, job, span, &mut next, &mut work);
            total.merge(s, &next);
        }
    }
    write_rows(s, heads, job, &mut total, out);
}

#[inline(always)]
fn one_span<S: Simd, T: Cached>(
    s: S,
    heads: &Heads,
    pools: &Pools<T>,
    job: &Job,
    span: usize,
    partial: &mut [f32],
    mut scratch: &mut [f32],
) {
    let rows = job.rows();
    let mut work = Work::in_scratch(heads, rows, &mut scratch);
    work.load_queries(heads, pools.queries, job);
    let mut partial = Partial::in_memory(&mut partial[..heads.partial(rows)], rows);
    span_pages(s, heads, pools, job, span, &mut partial, &mut work);
}

#[inline(always)]
fn merge_spans<S: Simd>(s: S, heads: &Heads, job: &Job, partials: Vec<&mut [f32]>, out: &Output<f32>) {
    let rows = job.rows();
    let mut spans =
        partials.into_iter().map(|memory| Partial::in_memory(&mut memory[..heads.partial(rows)], rows));
    let Some(mut total) = spans.next() else { return };
    for next in spans {
        total.merge(s, &next);
    }
    write_rows(s, heads, job, &mut total, out);
}

#[inline(always)]
fn write_rows<S: Simd>(_: S, heads: &Heads, job: &Job, total: &mut Partial, out: &Output<f32>) {
    for row in 0..job.rows() {
        let (_, sum, sums) = total.row(row);
        let factor = 1.0 / *sum;
        // SAFETY: within the operation, a query's row belongs to one job, and that to one thread.
        let out = unsafe { out.row(job.query_row(row, heads)) };
        for (value, target) in sums.iter().zip(out) {
            *target = value * factor;
        }
    }
}

wide_fn! {
    /// A job from queries to output rows.
    pub(super) fn attend = whole_job[T: Cached](
        heads: &Heads, pools: &Pools<T>, job: &Job, out: &Output<f32>, scratch: &mut [f32]
    )
}
wide_fn! {
    /// One span of a job, into a partial result.
    pub(super) fn attend_span = one_span[T: Cached](
        heads: &Heads, pools: &Pools<T>, job: &Job, span: usize, partial: &mut [f32], scratch: &mut [f32]
    )
}
simd_fn! {
    /// Merges the partial results of a job's spans, in order, into its output rows.
    pub(super) fn finish = merge_spans(heads: &Heads, job: &Job, partials: Vec<&mut [f32]>, out: &Output<f32>)
}
