//! Tiles on x86-64.

use std::arch::x86_64::*;

use super::super::dot::{Avx2, Vnni};
use super::super::{Form, Quants, each};
use super::{NEXT, Wide};

/// What 256-bit vectors have in common, whatever multiplies their bytes.
macro_rules! eight_lanes {
    () => {
        const LANES: usize = 8;
        type Ints = __m256i;
        type Floats = __m256;

        #[inline(always)]
        unsafe fn ints(value: i32) -> __m256i {
            // SAFETY: see above; so below.
            unsafe { _mm256_set1_epi32(value) }
        }

        #[inline(always)]
        unsafe fn shift_left(v: __m256i, by: u32) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_sllv_epi32(v, _mm256_set1_epi32(by as i32)) }
        }

        #[inline(always)]
        unsafe fn floats(value: f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, v: __m256) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to, v) }
        }

        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn add_scaled(c: __m256, a: __m256, b: __m256, sum: __m256i) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(_mm256_mul_ps(a, b), _mm256_cvtepi32_ps(sum), c) }
        }

        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
    };
}

impl Wide for Avx2 {
    const UNSIGNED: bool = false;
    const COLS: usize = 2;
    eight_lanes!();

    #[inline(always)]
    unsafe fn tile4<F: Form, const C: usize>(sums: &mut [[__m256i; 2]; C], w: *const u8, x: [*const i32; C]) {
        // How many pairs of products fit 16 bits together.
        let together = match F::QUANTS {
            Quants::Five => 4,
            Quants::Six => 2,
            Quants::Signed => 1,
        };
        // SAFETY: see above; `w` and `x` are readable as promised.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let w = w.cast::<__m256i>();
            let mut g = 0;
            while g < 4 {
                let mut pairs = [[_mm256_setzero_si256(); 2]; C];
                for i in 0..together {
                    let w = each!(|r: 2| w.add(2 * (g + i) + r).read());
                    for c in 0..C {
                        let x = _mm256_set1_epi32(x[c].add(NEXT * (g + i)).read());
                        for r in 0..2 {
                            let product = Self::pairs::<F>(w[r], x);
                            pairs[c][r] =
                                if i == 0 { product } else { _mm256_add_epi16(pairs[c][r], product) };
                        }
                    }
                }
                for c in 0..C {
                    for r in 0..2 {
                        sums[c][r] = _mm256_add_epi32(sums[c][r], _mm256_madd_epi16(pairs[c][r], ones));
                    }
                }
                g += together;
            }
        }
    }
}

/// AVX-VNNI: four products and their sum in one instruction, with the registers of AVX2. Its tiles are those of
/// [`Avx2`].
pub(in super::super) struct AvxVnni;

impl Wide for AvxVnni {
    const UNSIGNED: bool = true;
    const COLS: usize = 4;
    eight_lanes!();

    #[inline(always)]
    unsafe fn tile4<F: Form, const C: usize>(sums: &mut [[__m256i; 2]; C], w: *const u8, x: [*const i32; C]) {
        // SAFETY: see above; `w` and `x` are readable as promised.
        unsafe {
            let w = w.cast::<__m256i>();
            for g in 0..4 {
                let w = each!(|r: 2| {
                    let w = w.add(2 * g + r).read();
                    match F::QUANTS {
                        Quants::Signed => _mm256_xor_si256(w, _mm256_set1_epi8(-128)),
                        _ => w,
                    }
                });
                for c in 0..C {
                    let x = _mm256_set1_epi32(x[c].add(NEXT * g).read());
                    for r in 0..2 {
                        sums[c][r] = _mm256_dpbusd_avx_epi32(sums[c][r], w[r], x);
                    }
                }
            }
        }
    }
}

impl Wide for Vnni {
    const UNSIGNED: bool = true;
    const LANES: usize = 16;
    const COLS: usize = 4;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn ints(value: i32) -> __m512i {
        // SAFETY: see above; so below.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn shift_left(v: __m512i, by: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sllv_epi32(v, _mm512_set1_epi32(by as i32)) }
    }

    #[inline(always)]
    unsafe fn floats(value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add_scaled(c: __m512, a: __m512, b: __m512, sum: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(_mm512_mul_ps(a, b), _mm512_cvtepi32_ps(sum), c) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn tile4<F: Form, const C: usize>(sums: &mut [[__m512i; 2]; C], w: *const u8, x: [*const i32; C]) {
        // SAFETY: see above; `w` and `x` are readable as promised.
        unsafe {
            let w = w.cast::<__m512i>();
            for g in 0..4 {
                let w = each!(|r: 2| w.add(2 * g + r).read());
                for c in 0..C {
                    let x = _mm512_set1_epi32(x[c].add(NEXT * g).read());
                    for r in 0..2 {
                        sums[c][r] = _mm512_dpbusd_epi32(sums[c][r], w[r], x);
                    }
                }
            }
        }
    }
}
