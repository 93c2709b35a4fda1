//! The forms in which caches hold keys and values.

use gruff_blocks::BlockType;
use half::f16;

use crate::Isa;
use crate::cpu::simd::{LANES, Lane, Simd, simd_fn};
use crate::cpu::view::Element;

/// Bytes and values of a block of Q8_0: a scale, then quants.
const BLOCK_BYTES: usize = BlockType::Q8_0.bytes();
const BLOCK: usize = BlockType::Q8_0.values();

/// A type of values, or of bytes that hold blocks of them.
pub(super) trait Cached: Element {
    /// Lanes that kernels read where they lie.
    type Direct: Lane;

    /// The page, if kernels can read it where it lies.
    fn direct(page: &[Self]) -> Option<&[Self::Direct]>;

    /// Rounds a head of a token.
    fn write_row(isa: Isa, values: &[f32], out: &mut [Self]);

    /// Widens one, and pads it with zeros to whole vectors.
    fn widen_row<S: Simd>(s: S, row: &[Self], out: &mut [f32]);
}

#[inline(always)]
fn widen<S: Simd, T: Lane>(s: S, row: &[T], out: &mut [f32]) {
    let (vectors, rest) = row.as_chunks::<LANES>();
    let (targets, last) = out.as_chunks_mut::<LANES>();
    debug_assert!(last.is_empty());
    for (vector, target) in vectors.iter().zip(targets.iter_mut()) {
        s.store(T::load(s, vector), target);
    }
    if !rest.is_empty() {
        let padded = &mut targets[vectors.len()];
        *padded = [0.0; LANES];
        for (value, target) in rest.iter().zip(padded) {
            *target = value.widen();
        }
    }
}

impl Cached for f32 {
    type Direct = f32;

    fn direct(page: &[f32]) -> Option<&[f32]> {
        Some(page)
    }

    fn write_row(_: Isa, values: &[f32], out: &mut [f32]) {
        out.copy_from_slice(values);
    }

    #[inline(always)]
    fn widen_row<S: Simd>(s: S, row: &[f32], out: &mut [f32]) {
        widen(s, row, out);
    }
}

impl Cached for f16 {
    type Direct = f16;

    fn direct(page: &[f16]) -> Option<&[f16]> {
        Some(page)
    }

    fn write_row(isa: Isa, values: &[f32], out: &mut [f16]) {
        to_half(isa, values, out);
    }

    #[inline(always)]
    fn widen_row<S: Simd>(s: S, row: &[f16], out: &mut [f32]) {
        widen(s, row, out);
    }
}

/// Blocks of Q8_0.
impl Cached for u8 {
    type Direct = f32;

    fn direct(_: &[u8]) -> Option<&[f32]> {
        None
    }

    fn write_row(_: Isa, values: &[f32], out: &mut [u8]) {
        let packed = BlockType::Q8_0.pack(values, out);
        debug_assert!(packed.is_ok(), "rows are whole blocks");
    }

    #[inline(always)]
    fn widen_row<S: Simd>(s: S, row: &[u8], out: &mut [f32]) {
        for (block, target) in row.as_chunks::<BLOCK_BYTES>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            let scale = s.splat(f16::from_le_bytes([block[0], block[1]]).to_f32());
            let quants: &[i8] = bytemuck::cast_slice(&block[2..]);
            for (quants, target) in
                quants.as_chunks::<LANES>().0.iter().zip(target.as_chunks_mut::<LANES>().0)
            {
                s.store(s.mul(scale, s.load_i8(quants)), target);
            }
        }
    }
}

#[inline(always)]
fn halves<S: Simd>(s: S, values: &[f32], out: &mut [f16]) {
    let (values, values_rest) = values.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (value, target) in values.iter().zip(out) {
        s.store_f16(s.load(value), target);
    }
    for (value, target) in values_rest.iter().zip(out_rest) {
        *target = f16::from_f32(*value);
    }
}

simd_fn! {
    fn to_half = halves(values: &[f32], out: &mut [f16])
}
