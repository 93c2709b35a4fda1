//! Products in f32: for float weights, for exact activations, and for block types without an integer kernel.
//!
//! A tile of rows is unpacked at a time. Value k of a row contributes to lane `k mod 8`, in order of k, by fused
//! multiply-adds; the lanes are added as the family's contract says. Columns are rows of f32, completed with zeros
//! to a multiple of eight.

use std::ops::Range;

use gruff_blocks::BlockType;
use half::{bf16, f16};

use super::super::round_row;
use super::kernel::{Kernel, Panel};
use crate::Isa;
use crate::cpu::scratch::Scratch;
use crate::cpu::simd::{LANES, Simd, Token};

/// Rows that are unpacked together.
const TILE_ROWS: usize = 4;

/// Values of a row that are unpacked together: whole blocks of every type.
const TILE_COLS: usize = 1024;

/// Columns that a tile meets at a time.
const COLUMNS: usize = 2;

type Tile = [[f32; TILE_COLS]; TILE_ROWS];
type Sums = [[f32; LANES]; TILE_ROWS];

/// The length of a column in memory.
pub(super) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(LANES)
}

/// The kernel for every block type.
pub(super) fn kernel(isa: Isa) -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if matches!(Token::of(isa), Token::Avx2(_)) {
        return Kernel { name: "avx2 f32", compute: avx2 };
    }
    let _ = isa;
    Kernel { name: "scalar f32", compute: scalar }
}

/// # Safety
/// As for [`Kernel::compute`].
unsafe fn scalar(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    // SAFETY: promised by the caller.
    unsafe { compute(crate::cpu::simd::Scalar, panel, columns, out, scratch) }
}

/// # Safety
/// AVX2, FMA and F16C; and as for [`Kernel::compute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(panel: &Panel, columns: &[*const u8], out: &mut [f32], scratch: &mut Scratch) {
    let Some(token) = crate::cpu::simd::Avx2::detect() else {
        unreachable!("chosen only where it was found");
    };
    // SAFETY: promised by the caller.
    unsafe { compute(token, panel, columns, out, scratch) }
}

#[inline(always)]
unsafe fn compute<S: Simd>(
    s: S,
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    if panel.cols == 0 {
        out.fill(0.0);
        return;
    }
    let (tile, sums) = scratch.split::<Tile, Sums>(columns.len());
    // SAFETY: plain numbers, whose content does not matter until they are written below.
    let (tile, sums) = unsafe { (&mut *tile, std::slice::from_raw_parts_mut(sums, columns.len())) };
    for row in (0..panel.rows).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(panel.rows - row);
        sums.fill([[0.0; LANES]; TILE_ROWS]);
        for start in (0..panel.cols).step_by(TILE_COLS) {
            let range = start..(start + TILE_COLS).min(panel.cols);
            for (r, tile) in tile[..rows].iter_mut().enumerate() {
                // SAFETY: promised by the caller.
                unsafe { unpack(s, panel, row + r, range.clone(), tile) };
            }
            let blocks = range.len().div_ceil(LANES);
            for (columns, sums) in columns.chunks(COLUMNS).zip(sums.chunks_mut(COLUMNS)) {
                // SAFETY: promised by the caller; columns are completed to whole vectors.
                let column = |c: usize| unsafe {
                    let first = columns[c].cast::<f32>().add(start).cast::<[f32; LANES]>();
                    std::slice::from_raw_parts(first, blocks)
                };
                match sums {
                    [a, b] => multiply(s, tile, [column(0), column(1)], [a, b]),
                    [a] => multiply(s, tile, [column(0)], [a]),
                    _ => {}
                }
            }
        }
        for (c, sums) in sums.iter().enumerate() {
            for (r, lanes) in sums[..rows].iter().enumerate() {
                out[c * panel.rows + row + r] = s.sum(s.load(lanes));
            }
        }
    }
}

#[inline(always)]
fn multiply<S: Simd, const C: usize>(s: S, tile: &Tile, x: [&[[f32; LANES]]; C], sums: [&mut Sums; C]) {
    let mut acc = [[s.splat(0.0); C]; TILE_ROWS];
    for r in 0..TILE_ROWS {
        for c in 0..C {
            acc[r][c] = s.load(&sums[c][r]);
        }
    }
    let w: [&[[f32; LANES]]; TILE_ROWS] =
        std::array::from_fn(|r| &tile[r].as_chunks::<LANES>().0[..x[0].len()]);
    for k in 0..x[0].len() {
        for c in 0..C {
            let x = s.load(&x[c][k]);
            for r in 0..TILE_ROWS {
                acc[r][c] = s.mul_add(s.load(&w[r][k]), x, acc[r][c]);
            }
        }
    }
    for (c, sums) in sums.into_iter().enumerate() {
        for r in 0..TILE_ROWS {
            s.store(acc[r][c], &mut sums[r]);
        }
    }
}

/// Unpacks a part of a row; what completes the last vector becomes zero.
///
/// # Safety
/// The panel's rows are readable.
#[inline(always)]
unsafe fn unpack<S: Simd>(s: S, panel: &Panel, row: usize, cols: Range<usize>, out: &mut [f32; TILE_COLS]) {
    let block_type = panel.block_type;
    let start = cols.start / block_type.values() * block_type.bytes();
    let bytes = cols.len() / block_type.values() * block_type.bytes();
    // SAFETY: a part of a readable row.
    let packed = unsafe { std::slice::from_raw_parts(panel.first.add(row * panel.row_bytes + start), bytes) };
    out[cols.len()..padded(cols.len())].fill(0.0);
    let out = &mut out[..cols.len()];
    match block_type {
        BlockType::F16 => {
            let (blocks, last) = out.as_chunks_mut::<LANES>();
            let (packed, rest) = packed.as_chunks::<2>().0.split_at(blocks.len() * LANES);
            for (packed, out) in packed.as_chunks::<LANES>().0.iter().zip(blocks) {
                s.store(s.load_f16(&packed.map(f16::from_le_bytes)), out);
            }
            for (packed, out) in rest.iter().zip(last) {
                *out = f16::from_le_bytes(*packed).to_f32();
            }
        }
        BlockType::BF16 => {
            for (packed, out) in packed.as_chunks::<2>().0.iter().zip(out) {
                *out = bf16::from_le_bytes(*packed).to_f32();
            }
        }
        BlockType::F32 => {
            for (packed, out) in packed.as_chunks::<4>().0.iter().zip(out) {
                *out = f32::from_le_bytes(*packed);
            }
        }
        _ => {
            let unpacked = block_type.unpack(packed, out);
            debug_assert!(unpacked.is_ok(), "tiles are whole blocks");
        }
    }
}

/// Writes a row as a column: rounded as the integer kernels round it, if asked, and completed with zeros.
pub(super) fn complete(row: &[f32], rounded: bool, out: &mut [f32]) {
    out[row.len()..].fill(0.0);
    let out = &mut out[..row.len()];
    if !rounded {
        return out.copy_from_slice(row);
    }
    out.fill(0.0);
    round_row(row, |first, scale, quants| {
        out[first..].iter_mut().zip(quants).for_each(|(out, quant)| *out += scale * f32::from(*quant));
    });
}
