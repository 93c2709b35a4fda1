//! Products of small matrices in cache, tiled in registers.
//!
//! Both kernels define a result by its own operands: a value is the same whichever tile it was computed in.

// Loops over rows and vectors index several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;
use std::ops::Range;

use half::f16;

use super::{Eight, LANES, Simd, Wide};
use crate::cpu::ahead::{Parts, Trail};

/// A number type that kernels widen to f32 as they load it.
pub(crate) trait Lane: crate::cpu::view::Element {
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F32;
    /// # Safety
    /// As for [`Wide::load`].
    unsafe fn load_wide<W: Wide>(w: W, x: *const Self) -> W::F32;
    fn widen(self) -> f32;
}

impl Lane for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LANES]) -> S::F32 {
        s.load(x)
    }

    #[inline(always)]
    unsafe fn load_wide<W: Wide>(w: W, x: *const f32) -> W::F32 {
        // SAFETY: promised by the caller.
        unsafe { w.load(x) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Lane for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f16; LANES]) -> S::F32 {
        s.load_f16(x)
    }

    #[inline(always)]
    unsafe fn load_wide<W: Wide>(w: W, x: *const f16) -> W::F32 {
        // SAFETY: promised by the caller.
        unsafe { w.load_f16(x) }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Rows of equal distance in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    first: *const T,
    /// Values from `first` to the end of the last row.
    len: usize,
    stride: usize,
    memory: PhantomData<&'a [T]>,
}

impl<'a, T> Matrix<'a, T> {
    pub(crate) fn new(values: &'a [T], stride: usize) -> Self {
        Self { first: values.as_ptr(), len: values.len(), stride, memory: PhantomData }
    }

    /// Rows with gaps between them that may be in use elsewhere.
    ///
    /// # Safety
    /// While the matrix lives, the `width` values of each of `rows` rows, `stride` apart from `first` on, are
    /// readable and not written; only these are asked for.
    pub(crate) unsafe fn strided(first: *const T, rows: usize, width: usize, stride: usize) -> Self {
        let len = rows.checked_sub(1).map_or(0, |last| last * stride + width);
        Self { first, len, stride, memory: PhantomData }
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub(crate) fn rows_from(&self, row: usize) -> Self {
        let skipped = (row * self.stride).min(self.len);
        Self { first: self.first.wrapping_add(skipped), len: self.len - skipped, ..*self }
    }

    /// `width` values of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, width: usize) -> &'a [T] {
        let at = row * self.stride;
        assert!(at + width <= self.len);
        // SAFETY: within the rows (checked), which are readable and not written (promised to `strided`).
        unsafe { std::slice::from_raw_parts(self.first.add(at), width) }
    }

    /// Some rows that have no gaps between them, `width` values each.
    #[inline(always)]
    pub(crate) fn together(&self, rows: Range<usize>, width: usize) -> &'a [T] {
        assert!(self.stride == width || rows.len() <= 1);
        let (at, len) = (rows.start * self.stride, rows.len() * width);
        assert!(at + len <= self.len);
        // SAFETY: as in `row`.
        unsafe { std::slice::from_raw_parts(self.first.add(at), len) }
    }

    #[inline(always)]
    fn vectors(&self, row: usize, width: usize) -> &'a [[T; LANES]] {
        self.row(row, width).as_chunks::<LANES>().0
    }
}

/// The dot products of Q rows with K rows (`Q K = 8`): lane `a K + b` is `x[a] . y[b]`, whose lanes are
/// accumulated vector after vector and summed as [`Simd::sums`] does.
#[inline(always)]
fn dots<S: Simd, T: Lane, const Q: usize, const K: usize>(
    s: S,
    x: [&[[f32; LANES]]; Q],
    y: [&[[T; LANES]]; K],
) -> S::F32 {
    const { assert!(Q * K == LANES) };
    let vectors = x[0].len();
    assert!(x.iter().all(|row| row.len() == vectors) && y.iter().all(|row| row.len() == vectors));
    let mut sums = [s.splat(0.0); LANES];
    for i in 0..vectors {
        let mut other = [s.splat(0.0); K];
        for b in 0..K {
            other[b] = T::load(s, &y[b][i]);
        }
        for a in 0..Q {
            let one = s.load(&x[a][i]);
            for b in 0..K {
                sums[a * K + b] = s.mul_add(one, other[b], sums[a * K + b]);
            }
        }
    }
    s.sums(sums)
}

/// `out[a][j] = x[a] . y[j]` for `rows` rows of x and the rows `columns` of y, all `width` long (a multiple of
/// [`LANES`]). `columns` begins at a multiple of [`LANES`] and may be overshot to the next one: y has those
/// rows, and out that space.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn dot_products<S: Simd, T: Lane>(
    s: S,
    x: Matrix<f32>,
    rows: usize,
    y: Matrix<T>,
    columns: Range<usize>,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    dot_products_while(s, x, rows, y, columns, width, out, out_stride, Trail::NONE);
}

/// As [`dot_products`], asking for what is used behind it while the first rows of x are multiplied.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn dot_products_while<S: Simd, T: Lane>(
    s: S,
    x: Matrix<f32>,
    rows: usize,
    y: Matrix<T>,
    columns: Range<usize>,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
    trail: Trail,
) {
    let trail = trail.in_parts(columns.len().div_ceil(2).max(1));
    let first_column = columns.start;
    let ask = |row: usize, column: usize, pairs: usize| {
        if row == 0 {
            let part = (column - first_column) / 2;
            (part..part + pairs).for_each(|part| trail.ask(part));
        }
    };
    let mut row = 0;
    while row < rows {
        let taken = match rows - row {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        for column in columns.clone().step_by(LANES) {
            let row_of = |a: usize| x.vectors(row + a, width);
            let mut lanes = [0.0; LANES];
            match taken {
                1 => {
                    ask(row, column, 4);
                    let y = std::array::from_fn(|b| y.vectors(column + b, width));
                    s.store(dots::<S, T, 1, 8>(s, [row_of(0)], y), &mut lanes);
                    out[row * out_stride + column..][..LANES].copy_from_slice(&lanes);
                }
                2 => {
                    for part in [0, 4] {
                        ask(row, column + part, 2);
                        let y = std::array::from_fn(|b| y.vectors(column + part + b, width));
                        s.store(dots::<S, T, 2, 4>(s, [row_of(0), row_of(1)], y), &mut lanes);
                        for a in 0..2 {
                            out[(row + a) * out_stride + column + part..][..4]
                                .copy_from_slice(&lanes[4 * a..4 * a + 4]);
                        }
                    }
                }
                _ => {
                    for part in [0, 2, 4, 6] {
                        ask(row, column + part, 1);
                        let y = std::array::from_fn(|b| y.vectors(column + part + b, width));
                        let x = [row_of(0), row_of(1), row_of(2), row_of(3)];
                        s.store(dots::<S, T, 4, 2>(s, x, y), &mut lanes);
                        for a in 0..4 {
                            out[(row + a) * out_stride + column + part..][..2]
                                .copy_from_slice(&lanes[2 * a..2 * a + 2]);
                        }
                    }
                }
            }
        }
        row += taken;
    }
}

/// Factors `c[a][j]` of row a and term j.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    matrix: Matrix<'a, f32>,
    transposed: bool,
}

impl<'a> Factors<'a> {
    /// Terms along a row of the matrix.
    pub(crate) fn rows(matrix: Matrix<'a, f32>) -> Self {
        Self { matrix, transposed: false }
    }

    /// Terms down a column of the matrix.
    pub(crate) fn columns(matrix: Matrix<'a, f32>) -> Self {
        Self { matrix, transposed: true }
    }

    #[inline(always)]
    fn row_step(&self) -> usize {
        if self.transposed { 1 } else { self.matrix.stride }
    }

    #[inline(always)]
    fn term_step(&self) -> usize {
        if self.transposed { self.matrix.stride } else { 1 }
    }

    #[inline(always)]
    fn from(&self, row: usize) -> Self {
        let skipped = row * self.row_step();
        let matrix = Matrix {
            first: self.matrix.first.wrapping_add(skipped),
            len: self.matrix.len - skipped,
            ..self.matrix
        };
        Self { matrix, ..*self }
    }
}

/// The dot product of two rows, the bits of [`dot_products`].
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y.as_chunks::<LANES>().0) {
        sum = s.mul_add(s.load(x), s.load(y), sum);
    }
    s.sum(sum)
}

/// `out[a][..width] += sum_j c[a][j] x[j][..width]` over the j of `terms`, one fused multiplication and
/// addition a term, in order. `width` is a multiple of [`LANES`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn add_products<S: Simd, T: Lane>(
    s: S,
    c: Factors,
    rows: usize,
    terms: Range<usize>,
    x: Matrix<T>,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    add_products_while(s, c, rows, terms, x, width, out, out_stride, Trail::NONE);
}

/// As [`add_products`], asking for what is used behind it while the first tile is computed.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(crate) fn add_products_while<S: Simd, T: Lane>(
    s: S,
    c: Factors,
    rows: usize,
    terms: Range<usize>,
    x: Matrix<T>,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
    trail: Trail,
) {
    let nothing = Trail::NONE.in_parts(1);
    let mut trail = trail.in_parts(terms.len().max(1));
    let mut row = 0;
    while row < rows {
        let c = c.from(row);
        let out = &mut out[row * out_stride..];
        let mut column = 0;
        let mut left = width;
        let taken = match rows - row {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        let (wide, eight) = (s.wide(), Eight(s));
        macro_rules! tile {
            ($vectors:ident, $rows:literal, $count:literal) => {
                let step = $count * lanes(&$vectors);
                while left >= step {
                    tile::<_, T, $rows, $count>(
                        $vectors,
                        c,
                        terms.clone(),
                        x,
                        column,
                        out,
                        out_stride,
                        trail,
                    );
                    trail = nothing;
                    column += step;
                    left -= step;
                }
            };
        }
        // The largest tile that fits: sixteen accumulators with sixteen lanes, of whose registers there are twice as many,
        // and eight with eight.
        let sixteen = S::Wide::LANES > LANES;
        match taken {
            1 => {
                tile!(wide, 1, 8);
                tile!(wide, 1, 4);
                tile!(wide, 1, 1);
                if sixteen {
                    tile!(eight, 1, 1);
                }
            }
            2 => {
                if sixteen {
                    tile!(wide, 2, 8);
                }
                tile!(wide, 2, 4);
                tile!(wide, 2, 1);
                if sixteen {
                    tile!(eight, 2, 1);
                }
            }
            _ => {
                if sixteen {
                    tile!(wide, 4, 4);
                }
                tile!(wide, 4, 2);
                tile!(wide, 4, 1);
                if sixteen {
                    tile!(eight, 4, 1);
                }
            }
        }
        row += taken;
    }
}

const fn lanes<W: Wide>(_: &W) -> usize {
    W::LANES
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn tile<W: Wide, T: Lane, const Q: usize, const N: usize>(
    w: W,
    c: Factors,
    terms: Range<usize>,
    x: Matrix<T>,
    column: usize,
    out: &mut [f32],
    out_stride: usize,
    trail: Parts,
) {
    if terms.is_empty() {
        return;
    }
    let first = terms.start;
    let last = terms.end - 1;
    assert!(c.matrix.len > (Q - 1) * c.row_step() + last * c.term_step());
    assert!(x.len >= last * x.stride + column + N * W::LANES);
    assert!(out.len() >= (Q - 1) * out_stride + column + N * W::LANES);
    let mut sums = [[w.splat(0.0); N]; Q];
    for a in 0..Q {
        for n in 0..N {
            // SAFETY: `a < Q` and `n < N`, so the vector is inside out (asserted); so below.
            sums[a][n] = unsafe { w.load(out.as_ptr().add(a * out_stride + column + n * W::LANES)) };
        }
    }
    for j in terms {
        trail.ask(j - first);
        let mut row = [w.splat(0.0); N];
        for (n, vector) in row.iter_mut().enumerate() {
            // SAFETY: `j <= last`, so the vector ends within x (asserted).
            *vector = unsafe { T::load_wide(w, x.first.add(j * x.stride + column + n * W::LANES)) };
        }
        for (a, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `j <= last` and `a < Q`, so the index is within c (asserted).
            let factor = w.splat(unsafe { *c.matrix.first.add(a * c.row_step() + j * c.term_step()) });
            for (sum, vector) in sums.iter_mut().zip(row) {
                *sum = w.mul_add(factor, vector, *sum);
            }
        }
    }
    for a in 0..Q {
        for n in 0..N {
            // SAFETY: as above.
            unsafe { w.store(sums[a][n], out.as_mut_ptr().add(a * out_stride + column + n * W::LANES)) };
        }
    }
}
