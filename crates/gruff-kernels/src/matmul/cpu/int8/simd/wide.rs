//! Vectors whose lanes are rows of weights, for tiles that meet many columns.
//!
//! # Safety
//! The features that an instruction set's doc names are enabled where these are inlined.

use super::Form;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::AvxVnni;

/// How an instruction set multiplies tiles. A tile has two vectors of rows.
pub(super) trait Wide {
    /// Whether signed weights are multiplied as unsigned ones, 128 too large.
    const UNSIGNED: bool;
    /// Rows of a vector.
    const LANES: usize;
    /// Columns that meet a tile together, in registers.
    const COLS: usize;
    type Ints: Copy;
    type Floats: Copy;

    /// A number in every lane.
    unsafe fn ints(value: i32) -> Self::Ints;
    unsafe fn shift_left(v: Self::Ints, by: u32) -> Self::Ints;
    unsafe fn floats(value: f32) -> Self::Floats;
    unsafe fn load(from: *const f32) -> Self::Floats;
    unsafe fn store(to: *mut f32, v: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b sum_as_f32 + c`, the product of a and b rounded first.
    unsafe fn add_scaled(c: Self::Floats, a: Self::Floats, b: Self::Floats, sum: Self::Ints) -> Self::Floats;
    /// `a b + c`.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Adds four products of four bytes: `w` points to vectors `[4][2]` of weights; each `x` to four bytes, and every
    /// 32 bytes further the next four.
    unsafe fn tile4<F: Form, const C: usize>(
        sums: &mut [[Self::Ints; 2]; C],
        w: *const u8,
        x: [*const i32; C],
    );
}

/// Distance, in words, from four values of a block of activations to the next four.
const NEXT: usize = 8;
