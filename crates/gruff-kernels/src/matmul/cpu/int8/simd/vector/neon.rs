//! Vectors of AArch64: a row in two registers.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::super::LANE_BLOCKS;
use super::super::each;
use super::{Packed, Vector};

/// 32 bytes.
#[derive(Clone, Copy)]
pub(in super::super) struct Pair(pub(in super::super) [uint8x16_t; 2]);

/// A row, in a pair of registers.
pub(in super::super) struct PairOfRegisters;

/// Four numbers in half precision to single. The type of a register of them is not stable yet.
#[inline(always)]
unsafe fn from_f16(v: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: always there; reads and writes registers only.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {v:v}.4h",
            out = lateout(vreg) out,
            v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

#[inline(always)]
unsafe fn from_f16_pair(v: [uint16x4_t; 2]) -> [float32x4_t; 2] {
    // SAFETY: promised by the callers.
    unsafe { each!(|i: 2| from_f16(v[i])) }
}

/// Writes functions of [`Vector`] that do the same to both registers, seen as some type.
macro_rules! both {
    ($($name:ident $(<$n:ident>)? ($($arg:ident),*; $($by:ident: $ty:ty)?) = $to:ident $from:ident $value:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name $(<const $n: u32>)? ($($arg: Pair,)* $($by: $ty)?) -> Pair {
                // SAFETY: always there.
                unsafe {
                    Pair(each!(|i: 2| {
                        $(let $arg = $from($arg.0[i]);)*
                        $to($value)
                    }))
                }
            }
        )*
    };
}

#[inline(always)]
fn same(v: uint8x16_t) -> uint8x16_t {
    v
}

/// Eight bytes to eight numbers.
#[inline(always)]
unsafe fn eight(v: uint16x8_t) -> [float32x4_t; 2] {
    // SAFETY: always there.
    unsafe { [vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), vcvtq_f32_u32(vmovl_high_u16(v))] }
}

#[inline(always)]
unsafe fn eight_signed(v: int16x8_t) -> [float32x4_t; 2] {
    // SAFETY: always there.
    unsafe { [vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))] }
}

impl Vector for PairOfRegisters {
    const ROWS: usize = 1;
    type Bits = Pair;
    type Floats = [float32x4_t; 2];
    type Short = uint8x16_t;

    both! {
        and(a, b;) = same same vandq_u8(a, b);
        or(a, b;) = same same vorrq_u8(a, b);
        equal8(a, b;) = same same vceqq_u8(a, b);
        shuffle(v, from;) = same same vqtbl1q_u8(v, from);
        right16<N>(v;) = vreinterpretq_u8_u16 vreinterpretq_u16_u8 vshlq_u16(v, vdupq_n_s16(-(N as i16)));
        left16<N>(v;) = vreinterpretq_u8_u16 vreinterpretq_u16_u8 vshlq_u16(v, vdupq_n_s16(N as i16));
        right32_by(v, by;) = vreinterpretq_u8_u32 vreinterpretq_u32_u8
            vshlq_u32(v, vnegq_s32(vreinterpretq_s32_u32(by)));
        left32(v; by: u32) = vreinterpretq_u8_u32 vreinterpretq_u32_u8 vshlq_u32(v, vdupq_n_s32(by as i32));
        add32(a, b;) = vreinterpretq_u8_u32 vreinterpretq_u32_u8 vaddq_u32(a, b);
        sub32(a, b;) = vreinterpretq_u8_u32 vreinterpretq_u32_u8 vsubq_u32(a, b);
        sub8(a, b;) = same same vsubq_u8(a, b);
        zip32_low(a, b;) = vreinterpretq_u8_u32 vreinterpretq_u32_u8 vzip1q_u32(a, b);
        zip32_high(a, b;) = vreinterpretq_u8_u32 vreinterpretq_u32_u8 vzip2q_u32(a, b);
        zip64_low(a, b;) = vreinterpretq_u8_u64 vreinterpretq_u64_u8 vzip1q_u64(a, b);
        zip64_high(a, b;) = vreinterpretq_u8_u64 vreinterpretq_u64_u8 vzip2q_u64(a, b);
    }

    #[inline(always)]
    unsafe fn load(from: Packed) -> Pair {
        // SAFETY: promised by the caller; so below.
        unsafe { Self::same_bits(from.first) }
    }

    #[inline(always)]
    unsafe fn load_halves(low: Packed, high: Packed) -> Pair {
        // SAFETY: see above.
        unsafe { Pair([vld1q_u8(low.first), vld1q_u8(high.first)]) }
    }

    #[inline(always)]
    unsafe fn gather_words(from: Packed, stride: usize) -> Pair {
        // SAFETY: see above.
        unsafe {
            let w: [u32; 8] =
                each!(|p: 8| from.first.add(LANE_BLOCKS[p] * stride).cast::<u32>().read_unaligned());
            Self::same_bits(w.as_ptr().cast())
        }
    }

    #[inline(always)]
    unsafe fn gather_f16(from: Packed, stride: usize) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe {
            let h: [u16; 8] =
                each!(|p: 8| from.first.add(LANE_BLOCKS[p] * stride).cast::<u16>().read_unaligned());
            from_f16_pair([vld1_u16(h.as_ptr()), vld1_u16(h.as_ptr().add(4))])
        }
    }

    #[inline(always)]
    unsafe fn f16(from: Packed) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { [from_f16(vdup_n_u16(from.first.cast::<u16>().read_unaligned())); 2] }
    }

    #[inline(always)]
    unsafe fn word(from: Packed) -> Pair {
        // SAFETY: see above.
        unsafe { Self::splat32(from.first.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_short(from: Packed) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vld1q_u8(from.first) }
    }

    #[inline(always)]
    unsafe fn splat8(value: i8) -> Pair {
        // SAFETY: always there; so below.
        unsafe { Pair([vdupq_n_u8(value as u8); 2]) }
    }

    #[inline(always)]
    unsafe fn splat32(value: i32) -> Pair {
        // SAFETY: see above.
        unsafe { Pair([vreinterpretq_u8_s32(vdupq_n_s32(value)); 2]) }
    }

    #[inline(always)]
    unsafe fn words(values: [i32; 8]) -> Pair {
        // SAFETY: the array has the length.
        unsafe { Self::same_bits(values.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> Pair {
        // SAFETY: the array has the length.
        unsafe { Pair([vld1q_u8(values.as_ptr().cast()); 2]) }
    }

    #[inline(always)]
    unsafe fn same_bits(from: *const u8) -> Pair {
        // SAFETY: promised by the caller.
        unsafe { Pair([vld1q_u8(from), vld1q_u8(from.add(16))]) }
    }

    #[inline(always)]
    unsafe fn same_floats(from: &[f32; 8]) -> [float32x4_t; 2] {
        // SAFETY: the array has the length.
        unsafe { [vld1q_f32(from.as_ptr()), vld1q_f32(from.as_ptr().add(4))] }
    }

    #[inline(always)]
    unsafe fn zero() -> [float32x4_t; 2] {
        // SAFETY: always there.
        unsafe { [vdupq_n_f32(0.0); 2] }
    }

    #[inline(always)]
    unsafe fn short(values: [i8; 16]) -> uint8x16_t {
        // SAFETY: the array has the length.
        unsafe { vld1q_u8(values.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn floats(rows: &[[f32; 8]; 2]) -> [float32x4_t; 2] {
        // SAFETY: the array has the length.
        unsafe { Self::same_floats(&rows[0]) }
    }

    #[inline(always)]
    unsafe fn join_low(a: Pair, b: Pair) -> Pair {
        Pair([a.0[0], b.0[0]])
    }

    #[inline(always)]
    unsafe fn join_high(a: Pair, b: Pair) -> Pair {
        Pair([a.0[1], b.0[1]])
    }

    #[inline(always)]
    unsafe fn to_floats(v: Pair) -> [float32x4_t; 2] {
        // SAFETY: always there; so below.
        unsafe { each!(|i: 2| vcvtq_f32_s32(vreinterpretq_s32_u8(v.0[i]))) }
    }

    #[inline(always)]
    unsafe fn low_f16(v: Pair) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { from_f16_pair(each!(|i: 2| vmovn_u32(vreinterpretq_u32_u8(v.0[i])))) }
    }

    #[inline(always)]
    unsafe fn high_f16(v: Pair) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { from_f16_pair(each!(|i: 2| vshrn_n_u32::<16>(vreinterpretq_u32_u8(v.0[i])))) }
    }

    #[inline(always)]
    unsafe fn mul(a: [float32x4_t; 2], b: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { each!(|i: 2| vmulq_f32(a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [float32x4_t; 2], b: [float32x4_t; 2], c: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { each!(|i: 2| vfmaq_f32(c[i], a[i], b[i])) }
    }

    #[inline(always)]
    unsafe fn negate(v: [float32x4_t; 2]) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { each!(|i: 2| vnegq_f32(v[i])) }
    }

    #[inline(always)]
    unsafe fn keep(v: [float32x4_t; 2], mask: Pair) -> [float32x4_t; 2] {
        // SAFETY: see above.
        unsafe { each!(|i: 2| vreinterpretq_f32_u8(vandq_u8(vreinterpretq_u8_f32(v[i]), mask.0[i]))) }
    }

    #[inline(always)]
    unsafe fn sums(v: [float32x4_t; 2]) -> [f32; 2] {
        // SAFETY: see above.
        unsafe {
            let halves = vaddq_f32(v[0], v[1]);
            let pairs = vadd_f32(vget_low_f32(halves), vget_high_f32(halves));
            [vget_lane_f32::<0>(pairs) + vget_lane_f32::<1>(pairs), 0.0]
        }
    }

    #[inline(always)]
    unsafe fn short_and(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vandq_u8(a, b) }
    }

    #[inline(always)]
    unsafe fn short_or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vorrq_u8(a, b) }
    }

    #[inline(always)]
    unsafe fn short_sub8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vsubq_u8(a, b) }
    }

    #[inline(always)]
    unsafe fn short_right16<const N: u32>(v: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(v), vdupq_n_s16(-(N as i16)))) }
    }

    #[inline(always)]
    unsafe fn short_left16<const N: u32>(v: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe { vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(v), vdupq_n_s16(N as i16))) }
    }

    #[inline(always)]
    unsafe fn short_right32_by(v: uint8x16_t, by: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above.
        unsafe {
            let by = vnegq_s32(vreinterpretq_s32_u8(by));
            vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(v), by))
        }
    }

    #[inline(always)]
    unsafe fn short_shuffle(v: uint8x16_t, from: uint8x16_t) -> uint8x16_t {
        // SAFETY: see above. What is out of the table's range, as -1 is, becomes 0.
        unsafe { vqtbl1q_u8(v, from) }
    }

    #[inline(always)]
    unsafe fn widen(v: uint8x16_t) -> [[float32x4_t; 2]; 2] {
        // SAFETY: see above.
        unsafe { [eight(vmovl_u8(vget_low_u8(v))), eight(vmovl_high_u8(v))] }
    }

    #[inline(always)]
    unsafe fn widen_signed(v: uint8x16_t) -> [[float32x4_t; 2]; 2] {
        // SAFETY: see above.
        unsafe {
            let v = vreinterpretq_s8_u8(v);
            [eight_signed(vmovl_s8(vget_low_s8(v))), eight_signed(vmovl_high_s8(v))]
        }
    }

    #[inline(always)]
    unsafe fn store_bits(v: Pair, _: usize, to: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe {
            vst1q_u8(to, v.0[0]);
            vst1q_u8(to.add(16), v.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_floats(v: [float32x4_t; 2], _: usize, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe {
            vst1q_f32(to, v[0]);
            vst1q_f32(to.add(4), v[1]);
        }
    }
}
