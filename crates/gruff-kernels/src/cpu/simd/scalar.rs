//! Portable vectors.

use half::f16;

use super::{Eight, LANES, Simd};

/// Portable Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type V = [f32; LANES];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F32 = V;
    type Wide = Eight<Self>;

    #[inline(always)]
    fn wide(self) -> Eight<Self> {
        Eight(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        *x
    }

    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        *out = v;
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> V {
        x.map(f16::to_f32)
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> V {
        x.map(f32::from)
    }

    #[inline(always)]
    fn store_f16(self, v: V, out: &mut [f16; LANES]) {
        *out = v.map(f16::from_f32);
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn neg_mul_add(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn round(self, v: V) -> V {
        v.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn exp2_whole(self, v: V) -> V {
        v.map(|v| f32::from_bits(((v as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }

    #[inline(always)]
    fn abs(self, v: V) -> V {
        v.map(f32::abs)
    }

    #[inline(always)]
    fn copysign(self, v: V, sign: V) -> V {
        zip(v, sign, f32::copysign)
    }

    #[inline(always)]
    fn sums(self, v: [V; LANES]) -> V {
        v.map(|v| self.sum(v))
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        let max = |a: f32, b: f32| if a > b { a } else { b };
        max(max(max(v[0], v[4]), max(v[2], v[6])), max(max(v[1], v[5]), max(v[3], v[7])))
    }

    #[inline(always)]
    fn deinterleave(self, a: V, b: V) -> (V, V) {
        let all = |i: usize| if i < LANES { a[i] } else { b[i - LANES] };
        (std::array::from_fn(|i| all(2 * i)), std::array::from_fn(|i| all(2 * i + 1)))
    }

    #[inline(always)]
    fn interleave(self, even: V, odd: V) -> (V, V) {
        let all = |i: usize| if i.is_multiple_of(2) { even[i / 2] } else { odd[i / 2] };
        (std::array::from_fn(all), std::array::from_fn(|i| all(i + LANES)))
    }

    #[inline(always)]
    fn load_transposed(self, x: &[[f32; 4]; LANES]) -> [V; 4] {
        std::array::from_fn(|j| std::array::from_fn(|i| x[i][j]))
    }
}
