//! Eight lanes of f32: the vocabulary in which f32 kernels are written once for every instruction set.
//!
//! A kernel is a generic function over [`Simd`]; [`simd_fn!`](crate::cpu::simd::simd_fn) makes one copy of it
//! for each instruction set and chooses at run time. Every operation is exact IEEE arithmetic lane by lane
//! (fused where it says so), so all instruction sets give the same bits; one with wider or narrower registers
//! keeps eight logical lanes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod tile;
mod wide;

use std::cell::Cell;

use half::f16;

use crate::Isa;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use math::{exp, sigmoid, silu, softplus, tanh};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;
pub(crate) use tile::{
    Factors, Lane, Matrix, add_products, add_products_while, dot, dot_products, dot_products_while,
};
pub(crate) use wide::{Eight, Wide};

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Proof that the running machine has an instruction set, and the operations on its vectors.
///
/// Methods take the token by value: it has no size, and holding one makes the calls safe.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Eight f32.
    type F32: Copy;
    /// The widest vectors there are.
    type Wide: Wide;

    fn wide(self) -> Self::Wide;

    fn splat(self, x: f32) -> Self::F32;
    fn load(self, x: &[f32; LANES]) -> Self::F32;
    fn store(self, v: Self::F32, out: &mut [f32; LANES]);
    /// Widens half precision, exactly.
    fn load_f16(self, x: &[f16; LANES]) -> Self::F32;
    /// Widens bytes, exactly.
    fn load_i8(self, x: &[i8; LANES]) -> Self::F32;
    /// Rounds to half precision, ties to even.
    fn store_f16(self, v: Self::F32, out: &mut [f16; LANES]);

    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `c - a * b`, rounded once.
    fn neg_mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `if a < b { a } else { b }`: b where either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a > b { a } else { b }`: b where either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// To the nearest whole number, ties to even.
    fn round(self, v: Self::F32) -> Self::F32;
    /// `2^v` for whole v in -126..=127.
    fn exp2_whole(self, v: Self::F32) -> Self::F32;
    /// `if a < b { x } else { y }`.
    fn select_lt(self, a: Self::F32, b: Self::F32, x: Self::F32, y: Self::F32) -> Self::F32;
    fn abs(self, v: Self::F32) -> Self::F32;
    /// The magnitude of `v` with the sign of `sign`.
    fn copysign(self, v: Self::F32, sign: Self::F32) -> Self::F32;

    /// The lanes of each of eight vectors summed as `((0+4)+(2+6))+((1+5)+(3+7))`: lane i is the sum of
    /// vector i.
    fn sums(self, v: [Self::F32; LANES]) -> Self::F32;
    /// The lanes of one vector summed in the same order.
    fn sum(self, v: Self::F32) -> f32;
    /// The largest lane, by `max` in the order of [`sum`](Self::sum).
    fn max_lane(self, v: Self::F32) -> f32;
    /// The even and the odd values of sixteen.
    fn deinterleave(self, a: Self::F32, b: Self::F32) -> (Self::F32, Self::F32);
    /// The inverse of [`deinterleave`](Self::deinterleave).
    fn interleave(self, even: Self::F32, odd: Self::F32) -> (Self::F32, Self::F32);
    /// `[8, 4]` to four vectors of eight: taps of eight channels.
    fn load_transposed(self, x: &[[f32; 4]; LANES]) -> [Self::F32; 4];

    /// As [`load`](Self::load), from memory that is written through other handles of the same thread.
    #[inline(always)]
    fn load_cells(self, x: &[Cell<f32>; LANES]) -> Self::F32 {
        // SAFETY: `Cell<f32>` has the layout of `f32`, and the shared reference ends before anything else of
        // this thread can write (`Cell` is not `Sync`, so no other thread can).
        self.load(unsafe { &*std::ptr::from_ref(x).cast::<[f32; LANES]>() })
    }

    /// As [`store`](Self::store), to such memory.
    #[inline(always)]
    fn store_cells(self, v: Self::F32, out: &[Cell<f32>; LANES]) {
        // SAFETY: `Cell` grants writes through a shared reference; no other reference is used meanwhile.
        self.store(v, unsafe { &mut *out.as_ptr().cast_mut().cast::<[f32; LANES]>() })
    }

    /// The first `x.len()` lanes from `x`, zeros behind.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::F32 {
        let mut values = [0.0; LANES];
        values[..x.len()].copy_from_slice(x);
        self.load(&values)
    }

    /// As [`load_part`](Self::load_part), from cells.
    #[inline(always)]
    fn load_cells_part(self, x: &[Cell<f32>]) -> Self::F32 {
        let mut values = [0.0; LANES];
        for (value, cell) in values.iter_mut().zip(x) {
            *value = cell.get();
        }
        self.load(&values)
    }

    /// As [`store_part`](Self::store_part), to cells.
    #[inline(always)]
    fn store_cells_part(self, v: Self::F32, out: &[Cell<f32>]) {
        let mut values = [0.0; LANES];
        self.store(v, &mut values);
        for (cell, value) in out.iter().zip(values) {
            cell.set(value);
        }
    }

    /// The first `out.len()` lanes to `out`.
    #[inline(always)]
    fn store_part(self, v: Self::F32, out: &mut [f32]) {
        let mut values = [0.0; LANES];
        self.store(v, &mut values);
        out.copy_from_slice(&values[..out.len()]);
    }
}

/// The token for `isa`, as an enum over the instruction sets of this architecture.
pub(crate) enum Token {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Token {
    #[inline]
    pub(crate) fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni | Isa::AmxInt8 => {
                Avx2::detect().map_or(Token::Scalar(Scalar), Token::Avx2)
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDotProd | Isa::NeonI8mm => Token::Neon(Neon),
            _ => Token::Scalar(Scalar),
        }
    }
}

/// Makes `fn name(isa: Isa, args...)` from `fn generic<S: Simd>(s: S, args...)` (which is `#[inline(always)]`),
/// compiled once for every instruction set. Further generic parameters stand in brackets before the arguments.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $generic:ident $([$($generics:tt)*])? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($generics)*>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$($generics)*>)? (s: $crate::cpu::simd::Avx2, $($arg: $ty),*) $(-> $ret)? {
                $generic(s, $($arg),*)
            }
            match $crate::cpu::simd::Token::of(isa) {
                $crate::cpu::simd::Token::Scalar(s) => $generic(s, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the token exists only on machines that have these features.
                $crate::cpu::simd::Token::Avx2(s) => unsafe { avx2(s, $($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::simd::Token::Neon(s) => $generic(s, $($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

/// As [`simd_fn`], with a copy for [`Wide`] vectors where an instruction set has wider ones.
macro_rules! wide_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $generic:ident $([$($generics:tt)*])? ($($arg:ident : $ty:ty),* $(,)?)) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($generics)*>)? (isa: $crate::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl")]
            fn avx512 $(<$($generics)*>)? (s: $crate::cpu::simd::Avx512, $($arg: $ty),*) {
                $generic(s, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            if matches!(isa, $crate::Isa::Avx512Vnni | $crate::Isa::AmxInt8)
                && let Some(s) = $crate::cpu::simd::Avx512::detect()
            {
                // SAFETY: the token exists only on machines that have these features.
                return unsafe { avx512(s, $($arg),*) };
            }
            $crate::cpu::simd::simd_fn! { fn narrow = $generic $([$($generics)*])? ($($arg: $ty),*) }
            narrow(isa, $($arg),*)
        }
    };
}
pub(crate) use wide_fn;
