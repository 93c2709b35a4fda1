//! The widest vectors of an instruction set, for kernels whose lanes do not depend on each other: their results have the
//! same bits whatever the width.

use half::f16;

use super::{LANES, Simd};

/// Vectors of [`LANES`](Wide::LANES) f32, which is a multiple of [`LANES`](super::LANES).
///
/// Like a [`Simd`], one is proof of the instruction set.
pub(crate) trait Wide: Copy + Send + Sync + 'static {
    const LANES: usize;
    type F32: Copy;

    fn splat(self, x: f32) -> Self::F32;
    /// # Safety
    /// Like all pointers below: to [`LANES`](Wide::LANES) values, which may be read.
    unsafe fn load(self, x: *const f32) -> Self::F32;
    /// # Safety
    /// As for [`load`](Self::load).
    unsafe fn load_f16(self, x: *const f16) -> Self::F32;
    /// # Safety
    /// As for [`load`](Self::load), but written.
    unsafe fn store(self, v: Self::F32, out: *mut f32);
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
}

/// The eight lanes that every instruction set has.
#[derive(Clone, Copy)]
pub(crate) struct Eight<S>(pub(super) S);

impl<S: Simd> Wide for Eight<S> {
    const LANES: usize = LANES;
    type F32 = S::F32;

    #[inline(always)]
    fn splat(self, x: f32) -> S::F32 {
        self.0.splat(x)
    }

    #[inline(always)]
    unsafe fn load(self, x: *const f32) -> S::F32 {
        // SAFETY: promised by the caller.
        self.0.load(unsafe { &*x.cast() })
    }

    #[inline(always)]
    unsafe fn load_f16(self, x: *const f16) -> S::F32 {
        // SAFETY: promised by the caller.
        self.0.load_f16(unsafe { &*x.cast() })
    }

    #[inline(always)]
    unsafe fn store(self, v: S::F32, out: *mut f32) {
        // SAFETY: promised by the caller.
        self.0.store(v, unsafe { &mut *out.cast() })
    }

    #[inline(always)]
    fn mul_add(self, a: S::F32, b: S::F32, c: S::F32) -> S::F32 {
        self.0.mul_add(a, b, c)
    }
}
