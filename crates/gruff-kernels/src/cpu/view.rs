//! Tensors as CPU kernels see them: rows behind a pointer, bounds checked once a row.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use half::f16;

use crate::cpu::simd::Matrix;
use crate::{DType, MAX_RANK, Tensor};

/// A number type that tensors hold.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// Where the rows of a tensor lie: all but the last dimension counted as one, in order.
struct Rows<'a, T> {
    base: *mut T,
    rows: usize,
    width: usize,
    /// Lengths and strides of the outer dimensions, innermost first; unused ones have length 1.
    outer: [(usize, usize); MAX_RANK - 1],
    tensor: PhantomData<&'a Tensor>,
}

impl<'a, T: Element> Rows<'a, T> {
    fn of(tensor: &'a Tensor) -> Self {
        assert_eq!(tensor.dtype(), T::DTYPE);
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let last = shape.len() - 1;
        let mut outer = [(1, 0); MAX_RANK - 1];
        for (i, axis) in (0..last).rev().enumerate() {
            outer[i] = (shape[axis], strides[axis]);
        }
        let memory = tensor.buffer().cpu();
        assert!(tensor.offset() + tensor.span_bytes() <= memory.len());
        let base = memory.pointer().wrapping_add(tensor.offset()).cast::<T>();
        assert!(base.is_aligned(), "devices align the memory of dense tensors");
        Self { base, rows: shape[..last].iter().product(), width: shape[last], outer, tensor: PhantomData }
    }

    /// The row's first value. The `width` values from there are inside the tensor.
    #[inline]
    fn row(&self, row: usize) -> *mut T {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let mut rest = row;
        let mut at = 0;
        for (len, stride) in self.outer {
            if rest < len {
                return self.base.wrapping_add(at + rest * stride);
            }
            at += rest % len * stride;
            rest /= len;
        }
        self.base.wrapping_add(at)
    }

    /// # Safety
    /// As for [`Matrix::strided`].
    unsafe fn matrix(&self, first: usize, step: usize, count: usize) -> Matrix<'a, T> {
        if count == 0 {
            return Matrix::new(&[], 0);
        }
        let distance = |from: usize, to: usize| self.row(to) as usize - self.row(from) as usize;
        let last = first + (count - 1) * step;
        let bytes = if count > 1 { distance(first, first + step) } else { 0 };
        assert_eq!(distance(first, last), (count - 1) * bytes, "rows at equal distances");
        // SAFETY: first and last row are in bounds (checked by `row`), so are those between; the rest is
        // promised by the caller.
        unsafe { Matrix::strided(self.row(first), count, self.width, bytes / size_of::<T>()) }
    }
}

/// An operand that an operation reads and does not write.
pub(crate) struct Input<'a, T>(Rows<'a, T>);

// SAFETY: the values are only read while an `Input` exists (promised to `Input::of`).
unsafe impl<T: Element> Sync for Input<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Send for Input<'_, T> {}

impl<'a, T: Element> Input<'a, T> {
    /// # Safety
    /// The caller runs an operation on the tensor's device (and so holds its stream), and nothing writes the
    /// tensor's memory while this lives: the operation's checks found it disjoint from all outputs, or the
    /// operation's outputs reach it only behind this.
    pub(crate) unsafe fn of(tensor: &'a Tensor) -> Self {
        Self(Rows::of(tensor))
    }

    /// Rows: the product of all but the last dimension.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.0.rows
    }

    /// Values of a row.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        self.0.width
    }

    /// One row; `[t, h]` of `[T, H, D]` is row `t * H + h`.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        // SAFETY: in bounds and aligned (checked), initialised (device memory always is), not written
        // (promised to `of`).
        unsafe { std::slice::from_raw_parts(self.0.row(row), self.0.width) }
    }

    /// `count` rows, every `step`-th from `first` on, which lie at equal distances.
    pub(crate) fn matrix(&self, first: usize, step: usize, count: usize) -> Matrix<'a, T> {
        // SAFETY: as for `row`; the distances are checked.
        unsafe { self.0.matrix(first, step, count) }
    }
}

/// An operand that an operation writes.
pub(crate) struct Output<'a, T>(Rows<'a, T>);

// SAFETY: rows are reached through unsafe methods that demand exclusive use of each.
unsafe impl<T: Element> Sync for Output<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Send for Output<'_, T> {}

impl<'a, T: Element> Output<'a, T> {
    pub(crate) fn of(tensor: &'a Tensor) -> Self {
        assert!(tensor.buffer().writable());
        Self(Rows::of(tensor))
    }

    /// Rows: the product of all but the last dimension.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.0.rows
    }

    /// Values of a row.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        self.0.width
    }

    /// One row.
    ///
    /// # Safety
    /// The caller runs an operation on the tensor's device, and no other reference to any of the row's memory
    /// is used while the slice lives, by this thread or another.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row(&self, row: usize) -> &'a mut [T] {
        // SAFETY: in bounds and aligned (checked), exclusive (promised by the caller).
        unsafe { std::slice::from_raw_parts_mut(self.0.row(row), self.0.width) }
    }

    /// Some values of a row.
    ///
    /// # Safety
    /// As for [`row`](Self::row), of these values alone.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        assert!(columns.start <= columns.end && columns.end <= self.0.width);
        // SAFETY: in bounds and aligned (checked), exclusive (promised by the caller).
        unsafe { std::slice::from_raw_parts_mut(self.0.row(row).add(columns.start), columns.len()) }
    }

    /// Writes one value of a row.
    ///
    /// # Safety
    /// As for [`row`](Self::row), of this value alone.
    #[inline]
    pub(crate) unsafe fn set(&self, row: usize, column: usize, value: T) {
        assert!(column < self.0.width);
        // SAFETY: in bounds and aligned (checked), exclusive (promised by the caller).
        unsafe { *self.0.row(row).add(column) = value }
    }

    /// `count` rows, every `step`-th from `first` on, which lie at equal distances, to be read.
    ///
    /// # Safety
    /// The caller runs an operation on the tensor's device, and nothing writes these rows while the matrix
    /// lives; rows between them may be in use.
    pub(crate) unsafe fn matrix(&self, first: usize, step: usize, count: usize) -> Matrix<'a, T> {
        // SAFETY: promised by the caller.
        unsafe { self.0.matrix(first, step, count) }
    }

    /// One row that this thread may reach through other cells too (an input that is the output).
    ///
    /// # Safety
    /// The caller runs an operation on the tensor's device, and the row's memory is reached only through
    /// cells, by this thread, while the slice lives.
    #[inline]
    pub(crate) unsafe fn cells(&self, row: usize) -> &'a [Cell<T>] {
        // SAFETY: in bounds and aligned (checked); `Cell<T>` has the layout of `T`.
        unsafe { std::slice::from_raw_parts(self.0.row(row).cast::<Cell<T>>(), self.0.width) }
    }
}

/// An operand that an operation reads, whose memory may be the output's: reached through cells.
pub(crate) struct Shared<'a, T>(Rows<'a, T>);

// SAFETY: rows are reached through an unsafe method that demands use by one thread.
unsafe impl<T: Element> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Send for Shared<'_, T> {}

impl<'a, T: Element> Shared<'a, T> {
    pub(crate) fn of(tensor: &'a Tensor) -> Self {
        Self(Rows::of(tensor))
    }

    /// One row, to be read.
    ///
    /// # Safety
    /// As for [`Output::cells`], and the cells are not set (the memory may be read-only).
    #[inline]
    pub(crate) unsafe fn cells(&self, row: usize) -> &'a [Cell<T>] {
        // SAFETY: in bounds and aligned (checked); `Cell<T>` has the layout of `T`.
        unsafe { std::slice::from_raw_parts(self.0.row(row).cast::<Cell<T>>(), self.0.width) }
    }
}
