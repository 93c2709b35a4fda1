//! Vectors in pairs of AArch64's registers.

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

use super::{Eight, LANES, Simd};

/// Every AArch64 machine that gruff is built for has these registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

type V = [float32x4_t; 2];

/// Calls intrinsics.
macro_rules! call {
    ($($body:tt)*) => {
        // SAFETY: the instructions are always there; loads and stores go through references to arrays of the vector's
        // size.
        unsafe { $($body)* }
    };
}

/// The same of both registers.
macro_rules! both {
    (|$i:ident| $value:expr) => {
        call!({
            let $i = 0;
            let low = $value;
            let $i = 1;
            [low, $value]
        })
    };
}

impl Simd for Neon {
    type F32 = V;
    type Wide = Eight<Self>;

    #[inline(always)]
    fn wide(self) -> Eight<Self> {
        Eight(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        call!([vdupq_n_f32(x); 2])
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        both!(|i| vld1q_f32(x.as_ptr().add(4 * i)))
    }

    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        call!({
            vst1q_f32(out.as_mut_ptr(), v[0]);
            vst1q_f32(out.as_mut_ptr().add(4), v[1]);
        })
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> V {
        // The type of a register of halves is not stable yet.
        let (low, high): (float32x4_t, float32x4_t);
        call!({
            asm!(
                "fcvtl {low:v}.4s, {x:v}.4h",
                "fcvtl2 {high:v}.4s, {x:v}.8h",
                x = in(vreg) vld1q_u16(x.as_ptr().cast()),
                low = out(vreg) low,
                high = lateout(vreg) high,
                options(pure, nomem, nostack, preserves_flags),
            )
        });
        [low, high]
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> V {
        call!({
            let words = vmovl_s8(vld1_s8(x.as_ptr()));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))]
        })
    }

    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [f16; LANES]) {
        call!({
            let halves: uint16x8_t;
            asm!(
                "fcvtn {halves:v}.4h, {low:v}.4s",
                "fcvtn2 {halves:v}.8h, {high:v}.4s",
                low = in(vreg) v[0],
                high = in(vreg) v[1],
                halves = out(vreg) halves,
                options(pure, nomem, nostack, preserves_flags),
            );
            vst1q_u16(out.as_mut_ptr().cast(), halves);
        })
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        both!(|i| vaddq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        both!(|i| vsubq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        both!(|i| vmulq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        both!(|i| vdivq_f32(a[i], b[i]))
    }

    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        both!(|i| vfmaq_f32(c[i], a[i], b[i]))
    }

    #[inline(always)]
    fn neg_mul_add(self, a: V, b: V, c: V) -> V {
        both!(|i| vfmsq_f32(c[i], a[i], b[i]))
    }

    // The minimum and maximum of the instruction set treat NaN and zeros otherwise.

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        self.select_lt(a, b, a, b)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        self.select_lt(b, a, a, b)
    }

    #[inline(always)]
    fn round(self, v: V) -> V {
        both!(|i| vrndnq_f32(v[i]))
    }

    #[inline(always)]
    fn exp2_whole(self, v: V) -> V {
        both!(|i| {
            let biased = vaddq_s32(vcvtnq_s32_f32(v[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }

    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        both!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i]))
    }

    #[inline(always)]
    fn abs(self, v: V) -> V {
        both!(|i| vabsq_f32(v[i]))
    }

    #[inline(always)]
    fn copysign(self, v: V, sign: V) -> V {
        both!(|i| vbslq_f32(vdupq_n_u32(1 << 31), sign[i], v[i]))
    }

    #[inline(always)]
    fn sums(self, v: [V; LANES]) -> V {
        call!({
            // Lanes 0 + 4, 1 + 5, 2 + 6, 3 + 7 of every vector.
            let halves = v.map(|v| vaddq_f32(v[0], v[1]));
            // [(0+4)+(2+6), (1+5)+(3+7)] of two vectors, then of two others, then their sums.
            let pairs = |a, b| {
                let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
                vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(a, b)), vreinterpretq_f32_f64(vzip2q_f64(a, b)))
            };
            let four = |first: usize| {
                vpaddq_f32(
                    pairs(halves[first], halves[first + 1]),
                    pairs(halves[first + 2], halves[first + 3]),
                )
            };
            [four(0), four(4)]
        })
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        call!({
            let halves = vaddq_f32(v[0], v[1]);
            let pairs = vadd_f32(vget_low_f32(halves), vget_high_f32(halves));
            vget_lane_f32::<0>(pairs) + vget_lane_f32::<1>(pairs)
        })
    }

    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        let max = |a: f32, b: f32| if a > b { a } else { b };
        call!({
            let halves = vbslq_f32(vcgtq_f32(v[0], v[1]), v[0], v[1]);
            let (low, high) = (vget_low_f32(halves), vget_high_f32(halves));
            let pairs = vbsl_f32(vcgt_f32(low, high), low, high);
            max(vget_lane_f32::<0>(pairs), vget_lane_f32::<1>(pairs))
        })
    }

    #[inline(always)]
    fn deinterleave(self, a: V, b: V) -> (V, V) {
        call!((
            [vuzp1q_f32(a[0], a[1]), vuzp1q_f32(b[0], b[1])],
            [vuzp2q_f32(a[0], a[1]), vuzp2q_f32(b[0], b[1])],
        ))
    }

    #[inline(always)]
    fn interleave(self, even: V, odd: V) -> (V, V) {
        call!((
            [vzip1q_f32(even[0], odd[0]), vzip2q_f32(even[0], odd[0])],
            [vzip1q_f32(even[1], odd[1]), vzip2q_f32(even[1], odd[1])],
        ))
    }

    #[inline(always)]
    fn load_transposed(self, x: &[[f32; 4]; LANES]) -> [V; 4] {
        call!({
            let (low, high) = (vld4q_f32(x.as_ptr().cast()), vld4q_f32(x.as_ptr().add(4).cast()));
            [[low.0, high.0], [low.1, high.1], [low.2, high.2], [low.3, high.3]]
        })
    }
}
