//! Products of bytes: weights (as [`Quants`] says) times signed activations, exact sums of four in each lane.
//!
//! # Safety
//! The features that an instruction set's doc names are enabled where these are inlined.

use super::vector::Vector;
use super::{Form, Quants, Unpack};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::{DotProd, Neon, multiply4};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Vnni};

/// How an instruction set multiplies bytes in vectors, which hold four values of each of eight blocks.
pub(super) trait Dot {
    type V: Vector;
    /// Vectors of rows that meet some columns together.
    const TOGETHER: usize;
    /// Signed weights are stored `1 <<` this too large, where the instruction wants unsigned ones.
    const SIGNED_OFFSET: Option<u32>;

    /// Stores signed weights as the instruction wants them.
    unsafe fn signed(weights: Bits<Self>) -> Bits<Self>;

    /// `sum + w[0] x[0] + w[1] x[1] + w[2] x[2] + w[3] x[3]`, four bytes a lane.
    unsafe fn dot4<F: Form>(sum: Bits<Self>, w: [Bits<Self>; 4], x: [Bits<Self>; 4]) -> Bits<Self>;
}

/// Bytes in an instruction set's registers.
pub(super) type Bits<D> = <<D as Dot>::V as Vector>::Bits;
/// Numbers in an instruction set's registers.
pub(super) type Floats<D> = <<D as Dot>::V as Vector>::Floats;

/// What makes signed bytes unsigned: 128.
pub(super) const SIGNED_OFFSET: u32 = 7;

/// By how much the stored weights are too large: `1 << n`.
#[inline(always)]
pub(super) const fn offset<D: Dot, U: Unpack>() -> Option<u32> {
    match U::Form::QUANTS {
        Quants::Signed => D::SIGNED_OFFSET,
        _ if U::Form::SHIFTED => Some(U::OFFSET),
        _ => None,
    }
}
