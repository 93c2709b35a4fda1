//! Sixteen lanes in AVX-512 registers; whatever has eight is done as with AVX2.

use std::arch::x86_64::*;

use half::f16;

use super::Wide;
use super::avx2::{Avx2, X86};

/// Proof of AVX-512 F and VL, besides what [`Avx2`] proves.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen(());

/// Eight lanes as in [`Avx2`], sixteen where lanes do not depend on each other.
pub(crate) type Avx512 = X86<Sixteen>;

impl Avx512 {
    /// The token, on machines that have the features.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let there = crate::Isa::Avx512Vnni.available();
        Avx2::detect().filter(|_| there).map(|narrow| narrow.with(Sixteen(())))
    }
}

/// Calls intrinsics whose features the token proves.
macro_rules! call {
    ($($body:tt)*) => {
        // SAFETY: a `Sixteen` exists only on machines with these features; what pointers lead to is promised by the
        // callers.
        unsafe { $($body)* }
    };
}

impl Wide for Sixteen {
    const LANES: usize = 16;
    type F32 = __m512;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        call!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn load(self, x: *const f32) -> __m512 {
        call!(_mm512_loadu_ps(x))
    }

    #[inline(always)]
    unsafe fn load_f16(self, x: *const f16) -> __m512 {
        call!(_mm512_cvtph_ps(_mm256_loadu_si256(x.cast())))
    }

    #[inline(always)]
    unsafe fn store(self, v: __m512, out: *mut f32) {
        call!(_mm512_storeu_ps(out, v))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        call!(_mm512_fmadd_ps(a, b, c))
    }
}
