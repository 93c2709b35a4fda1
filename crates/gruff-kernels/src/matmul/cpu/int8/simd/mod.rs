//! Integer kernels with vector instructions.
//!
//! [`Vector`] says, once an instruction set, what registers can do; [`Unpack`], once a block type, how 256 packed values
//! become bytes and scales in registers; [`Dot`](dot::Dot), once an instruction set, how bytes are multiplied; [`product`]
//! makes matvec and matmul of the three. Everything below the entry points of `product` is inlined into them, which is
//! where the features are enabled.

// Loops over rows, columns and halves index several arrays at once.
#![allow(clippy::needless_range_loop)]

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
pub(super) mod cohort;
mod dot;
#[cfg(target_arch = "x86_64")]
pub(super) mod fours;
#[cfg(target_arch = "aarch64")]
mod i8mm;
mod iq;
mod k_quants;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod layout;
mod legacy;
mod lines;
pub(super) mod product;
pub(super) mod quantize;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
mod tile;
mod transpose;
mod vector;
mod wide;

use iq::{Iq4Nl, Iq4Xs, Mxfp4};
use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use vector::{Packed, Vector};

/// `[value; N]` for each value of an index. Kernels use this and no closures: only what is inlined by force is sure to
/// be compiled with the features that the entry points enable.
macro_rules! each {
    (|$i:ident: $n:tt| $value:expr) => {{
        let mut values = [std::mem::zeroed(); $n];
        let mut $i = 0;
        while $i < $n {
            values[$i] = $value;
            $i += 1;
        }
        values
    }};
}
use each;

/// 256 values of each row of a vector in registers: eight blocks of 32, interleaved.
///
/// Vector `g` of `quants` holds values `4 g .. 4 g + 4` of each of the eight blocks; lane `p` (of 4 bytes, or of
/// one f32) belongs to block [`LANE_BLOCKS`](super::LANE_BLOCKS)`[p]`. So eight byte products accumulate straight
/// into one vector of eight block sums, with no sum across lanes.
struct Unpacked<V: Vector> {
    quants: [V::Bits; 8],
    /// `scales[0]` belongs to the first 16 values of each block and `scales[1]` to the last; types with one scale
    /// for 32 use the first only.
    scales: [V::Floats; 2],
    /// What is added: `value = scale * quant + min`. As `scales`; types without minima ignore it.
    mins: [V::Floats; 2],
}

/// What the bytes of [`Unpacked`] are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quants {
    /// Unsigned, below 32.
    Five,
    /// Unsigned, below 64.
    Six,
    /// Signed, any.
    Signed,
}

/// What kernels need to know of a block type once it is unpacked. Types of one form share a kernel for many columns.
trait Form {
    const QUANTS: Quants;
    /// Whether unsigned quants are stored too large, by [`Unpack::OFFSET`].
    const SHIFTED: bool;
    /// Whether each half of a block of 32 has a scale (and minimum) of its own.
    const HALVES: bool;
    const MINS: bool;
}

/// Declares forms.
macro_rules! forms {
    ($($(#[$meta:meta])* $name:ident: $quants:ident, shifted: $shifted:literal, halves: $halves:literal, mins: $mins:literal;)*) => {
        $(
            $(#[$meta])*
            struct $name;

            impl Form for $name {
                const QUANTS: Quants = Quants::$quants;
                const SHIFTED: bool = $shifted;
                const HALVES: bool = $halves;
                const MINS: bool = $mins;
            }
        )*
    };
}
forms! {
    /// Q4_0, Q5_0, MXFP4.
    Centred: Five, shifted: true, halves: false, mins: false;
    /// Q4_1, Q5_1, Q4_K, Q5_K.
    WithMins: Five, shifted: false, halves: false, mins: true;
    /// Q8_0, IQ4_NL, IQ4_XS.
    Bytes: Signed, shifted: false, halves: false, mins: false;
    /// Q2_K.
    HalvesWithMins: Five, shifted: false, halves: true, mins: true;
    /// Q3_K.
    CentredHalves: Five, shifted: true, halves: true, mins: false;
    /// Q6_K.
    SixBitHalves: Six, shifted: true, halves: true, mins: false;
}

/// A block type, as kernels see it.
trait Unpack {
    type Form: Form;
    /// Packed bytes of 256 values.
    const BYTES: usize;
    /// Quants are stored `1 << OFFSET` too large, if the form says so.
    const OFFSET: u32 = 0;

    /// Unpacks 256 values of each row.
    ///
    /// # Safety
    /// `packed` points to `BYTES` readable bytes in each row; the caller has the vector's features enabled.
    unsafe fn unpack<V: Vector>(packed: Packed) -> Unpacked<V>;
}
