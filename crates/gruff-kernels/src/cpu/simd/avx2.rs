//! Vectors in AVX2 registers.

use std::arch::x86_64::*;

use half::f16;

use super::{LANES, Simd, Wide};

/// Proof of AVX2, FMA and F16C, and of what `W` needs.
#[derive(Clone, Copy)]
pub(crate) struct X86<W>(W);

/// Eight lanes at most.
pub(crate) type Avx2 = X86<Widest>;

/// Proof of AVX2, FMA and F16C, as the widest vectors.
#[derive(Clone, Copy)]
pub(crate) struct Widest(());

impl Avx2 {
    /// The token, on machines that have the features.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        crate::Isa::Avx2.available().then_some(X86(Widest(())))
    }

    /// With wider vectors besides.
    #[inline]
    pub(super) fn with<W>(self, wide: W) -> X86<W> {
        X86(wide)
    }
}

/// Calls intrinsics whose features the token proves.
macro_rules! call {
    ($($body:tt)*) => {
        // SAFETY: an `X86` exists only on machines with these features; loads and stores go through
        // references to arrays of the vector's size, or pointers that the callers promise to be as good.
        unsafe { $($body)* }
    };
}

impl Wide for Widest {
    const LANES: usize = LANES;
    type F32 = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        call!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    unsafe fn load(self, x: *const f32) -> __m256 {
        call!(_mm256_loadu_ps(x))
    }

    #[inline(always)]
    unsafe fn load_f16(self, x: *const f16) -> __m256 {
        call!(_mm256_cvtph_ps(_mm_loadu_si128(x.cast())))
    }

    #[inline(always)]
    unsafe fn store(self, v: __m256, out: *mut f32) {
        call!(_mm256_storeu_ps(out, v))
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        call!(_mm256_fmadd_ps(a, b, c))
    }
}

impl<W: Wide> Simd for X86<W> {
    type F32 = __m256;
    type Wide = W;

    #[inline(always)]
    fn wide(self) -> W {
        self.0
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        call!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m256 {
        call!(_mm256_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m256, out: &mut [f32; LANES]) {
        call!(_mm256_storeu_ps(out.as_mut_ptr(), v))
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m256 {
        call!(_mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m256 {
        call!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().cast()))))
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, out: &mut [f16; LANES]) {
        call!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        call!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        call!(_mm256_fnmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        call!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn round(self, v: __m256) -> __m256 {
        call!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }

    #[inline(always)]
    fn exp2_whole(self, v: __m256) -> __m256 {
        call!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }

    #[inline(always)]
    fn select_lt(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        call!(_mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }

    #[inline(always)]
    fn abs(self, v: __m256) -> __m256 {
        call!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), v))
    }

    #[inline(always)]
    fn copysign(self, v: __m256, sign: __m256) -> __m256 {
        call!({
            let mask = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(mask, v), _mm256_and_ps(mask, sign))
        })
    }

    #[inline(always)]
    fn sums(self, v: [__m256; LANES]) -> __m256 {
        call!({
            // Lanes i and i + 4 of vectors a and b: [a.. | b..].
            let halves = |a, b| {
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
            };
            let pairs = |a, b| {
                let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
                _mm256_add_ps(
                    _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                    _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
                )
            };
            let a = pairs(halves(v[0], v[4]), halves(v[1], v[5]));
            let b = pairs(halves(v[2], v[6]), halves(v[3], v[7]));
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
        })
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        call!({
            let halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
            _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
        })
    }

    #[inline(always)]
    fn max_lane(self, v: __m256) -> f32 {
        call!({
            let halves = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pairs = _mm_max_ps(halves, _mm_movehl_ps(halves, halves));
            _mm_cvtss_f32(_mm_max_ss(pairs, _mm_movehdup_ps(pairs)))
        })
    }

    #[inline(always)]
    fn deinterleave(self, a: __m256, b: __m256) -> (__m256, __m256) {
        call!({
            // [a0 a2 b0 b2 | a4 a6 b4 b6] to [a0 a2 a4 a6 | b0 b2 b4 b6].
            let order = |v| _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(v)));
            (order(_mm256_shuffle_ps::<0x88>(a, b)), order(_mm256_shuffle_ps::<0xdd>(a, b)))
        })
    }

    #[inline(always)]
    fn interleave(self, even: __m256, odd: __m256) -> (__m256, __m256) {
        call!({
            let (a, b) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
        })
    }

    #[inline(always)]
    fn load_transposed(self, x: &[[f32; 4]; LANES]) -> [__m256; 4] {
        call!({
            // Channels i and i + 4 side by side, then two 4x4 transpositions in the halves.
            let row = |i: usize| {
                let low = _mm256_castps128_ps256(_mm_loadu_ps(x[i].as_ptr()));
                _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(x[i + 4].as_ptr()))
            };
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            [
                _mm256_shuffle_ps::<0x44>(ab_low, cd_low),
                _mm256_shuffle_ps::<0xee>(ab_low, cd_low),
                _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
            ]
        })
    }
}
