//! Tiles on AArch64.

use std::arch::aarch64::*;

use super::super::dot::{DotProd, Neon, multiply4};
use super::super::vector::Pair;
use super::super::{Form, each};
use super::{NEXT, Wide};

macro_rules! wide {
    ($name:ident) => {
        impl Wide for $name {
            const UNSIGNED: bool = false;
            const LANES: usize = 8;
            const COLS: usize = 4;
            type Ints = Pair;
            type Floats = [float32x4_t; 2];

            #[inline(always)]
            unsafe fn ints(value: i32) -> Pair {
                // SAFETY: always there; so below.
                unsafe { Pair([vreinterpretq_u8_s32(vdupq_n_s32(value)); 2]) }
            }

            #[inline(always)]
            unsafe fn shift_left(v: Pair, by: u32) -> Pair {
                // SAFETY: see above.
                unsafe {
                    let by = vdupq_n_s32(by as i32);
                    Pair(each!(|i: 2| vreinterpretq_u8_s32(vshlq_s32(vreinterpretq_s32_u8(v.0[i]), by))))
                }
            }

            #[inline(always)]
            unsafe fn floats(value: f32) -> [float32x4_t; 2] {
                // SAFETY: see above.
                unsafe { [vdupq_n_f32(value); 2] }
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> [float32x4_t; 2] {
                // SAFETY: promised by the caller.
                unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
            }

            #[inline(always)]
            unsafe fn store(to: *mut f32, v: [float32x4_t; 2]) {
                // SAFETY: promised by the caller.
                unsafe {
                    vst1q_f32(to, v[0]);
                    vst1q_f32(to.add(4), v[1]);
                }
            }

            #[inline(always)]
            unsafe fn add(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
                // SAFETY: see above.
                unsafe { each!(|i: 2| vaddq_f32(a[i], b[i])) }
            }

            #[inline(always)]
            unsafe fn add_scaled(
                c: [float32x4_t; 2],
                a: [float32x4_t; 2],
                b: [float32x4_t; 2],
                sum: Pair,
            ) -> [float32x4_t; 2] {
                // SAFETY: see above.
                unsafe {
                    each!(|i: 2| {
                        let sum = vcvtq_f32_s32(vreinterpretq_s32_u8(sum.0[i]));
                        vfmaq_f32(c[i], vmulq_f32(a[i], b[i]), sum)
                    })
                }
            }

            #[inline(always)]
            unsafe fn mul_add(
                a: [float32x4_t; 2],
                b: [float32x4_t; 2],
                c: [float32x4_t; 2],
            ) -> [float32x4_t; 2] {
                // SAFETY: see above.
                unsafe { each!(|i: 2| vfmaq_f32(c[i], a[i], b[i])) }
            }

            #[inline(always)]
            unsafe fn tile4<F: Form, const C: usize>(
                sums: &mut [[Pair; 2]; C],
                w: *const u8,
                x: [*const i32; C],
            ) {
                // SAFETY: see above; `w` and `x` are readable as promised.
                unsafe {
                    for g in 0..4 {
                        let w: [Pair; 2] = each!(|r: 2| {
                            let w = w.add(32 * (2 * g + r));
                            Pair([vld1q_u8(w), vld1q_u8(w.add(16))])
                        });
                        for c in 0..C {
                            let x = Pair([vreinterpretq_u8_s32(vld1q_dup_s32(x[c].add(NEXT * g))); 2]);
                            for r in 0..2 {
                                sums[c][r] = multiply4::<Self>(sums[c][r], w[r], x);
                            }
                        }
                    }
                }
            }
        }
    };
}
wide!(Neon);
wide!(DotProd);
