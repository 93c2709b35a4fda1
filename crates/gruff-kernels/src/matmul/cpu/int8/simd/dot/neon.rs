//! Products of bytes on AArch64. All weights fit signed bytes.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::vector::{Pair, PairOfRegisters};
use super::super::{Form, each};
use super::Dot;

/// What AArch64 always has: products of 16 bits, which are added in pairs to 32.
pub(in super::super) struct Neon;

/// With the `dotprod` extension: four products and their sum in one instruction.
pub(in super::super) struct DotProd;

/// An instruction set's products of registers of 16 bytes.
pub(in super::super) trait Multiply {
    /// `sum + w x`, four bytes a lane.
    unsafe fn multiply(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
}

impl Multiply for Neon {
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: always there.
        unsafe {
            // |w| <= 128 and |x| <= 127: the sum of two products is below 2^15.
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
            let high = vmull_high_s8(w, x);
            vpadalq_s16(sum, vpaddq_s16(low, high))
        }
    }
}

impl Multiply for DotProd {
    #[inline(always)]
    unsafe fn multiply(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let mut sum = sum;
        // SAFETY: `dotprod` is enabled where this is inlined; the instruction reads and writes registers only. Its
        // intrinsic is not stable yet.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                w = in(vreg) w,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

/// `sum + w x` for both registers of a pair.
#[inline(always)]
pub(in super::super) unsafe fn multiply4<M: Multiply>(sum: Pair, w: Pair, x: Pair) -> Pair {
    // SAFETY: promised by the caller.
    unsafe {
        Pair(each!(|i: 2| {
            let (sum, w, x) = (
                vreinterpretq_s32_u8(sum.0[i]),
                vreinterpretq_s8_u8(w.0[i]),
                vreinterpretq_s8_u8(x.0[i]),
            );
            vreinterpretq_u8_s32(M::multiply(sum, w, x))
        }))
    }
}

macro_rules! dot {
    ($name:ident) => {
        impl Dot for $name {
            type V = PairOfRegisters;
            const TOGETHER: usize = 2;
            const SIGNED_OFFSET: Option<u32> = None;

            #[inline(always)]
            unsafe fn signed(weights: Pair) -> Pair {
                weights
            }

            #[inline(always)]
            unsafe fn dot4<F: Form>(sum: Pair, w: [Pair; 4], x: [Pair; 4]) -> Pair {
                let mut sum = sum;
                for i in 0..4 {
                    // SAFETY: promised by the caller.
                    sum = unsafe { multiply4::<Self>(sum, w[i], x[i]) };
                }
                sum
            }
        }
    };
}
dot!(Neon);
dot!(DotProd);
