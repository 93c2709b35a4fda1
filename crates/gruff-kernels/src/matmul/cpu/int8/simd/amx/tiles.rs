//! Tile registers.

use std::arch::asm;

use super::super::cohort::COHORT;
use super::LANES;

/// Tile registers and what multiplies them: the processor's instructions, or a double in tests.
///
/// # Safety
/// Of every function: the machine has the instructions; shapes are configured before tiles are used; what is loaded or
/// stored is in bounds.
pub(in super::super) trait Tiles {
    unsafe fn configure(shapes: &Shapes);
    unsafe fn release();
    /// Loads the rows of a tile, `stride` bytes apart.
    unsafe fn load<const TILE: usize>(from: *const u8, stride: usize);
    unsafe fn zero<const TILE: usize>();
    /// `sums[m][n] += columns[m][4 k + i] * weights[k][4 n + i]`, of signed bytes, over k and i.
    unsafe fn multiply<const SUMS: usize, const COLUMNS: usize, const WEIGHTS: usize>();
    /// Stores the rows of a tile one behind the other.
    unsafe fn store<const TILE: usize>(to: *mut i32);
}

/// The shapes of tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
pub(in super::super) struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    pub(super) row_bytes: [u16; 16],
    pub(super) rows: [u8; 16],
}

/// The numbers of the tiles: sums, weights of the first and the last sixteen rows, columns.
pub(super) const SUMS: [usize; 4] = [0, 1, 2, 3];
pub(super) const WEIGHTS: [usize; 2] = [4, 5];
pub(super) const COLUMNS: [usize; 2] = [6, 7];

impl Shapes {
    /// For products of a whole block, or of half of one.
    pub(super) const fn of(values: usize) -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut tile = 0;
        while tile <= COLUMNS[1] {
            let (rows, bytes) = if tile < WEIGHTS[0] {
                (COHORT, 4 * LANES)
            } else if tile < COLUMNS[0] {
                (values / 4, 4 * LANES)
            } else {
                (COHORT, values)
            };
            shapes.rows[tile] = rows as u8;
            shapes.row_bytes[tile] = bytes as u16;
            tile += 1;
        }
        shapes
    }
}

/// The instructions. Their intrinsics are not stable yet; the compiler uses no tile register of its own accord, so
/// that tiles keep their content from one of these to the next.
pub(in super::super) struct Instructions;

impl Tiles for Instructions {
    #[inline(always)]
    unsafe fn configure(shapes: &Shapes) {
        // SAFETY: see above; so below.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, preserves_flags, readonly)) }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: see above.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) }
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(from: *const u8, stride: usize) {
        // SAFETY: see above.
        unsafe {
            asm!(
                "tileloadd tmm{tile}, [{from} + {stride}*1]",
                tile = const TILE,
                from = in(reg) from,
                stride = in(reg) stride,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    #[inline(always)]
    unsafe fn zero<const TILE: usize>() {
        // SAFETY: see above.
        unsafe { asm!("tilezero tmm{}", const TILE, options(nostack, preserves_flags, nomem)) }
    }

    #[inline(always)]
    unsafe fn multiply<const SUMS: usize, const COLUMNS: usize, const WEIGHTS: usize>() {
        // SAFETY: see above.
        unsafe {
            asm!(
                "tdpbssd tmm{}, tmm{}, tmm{}",
                const SUMS,
                const COLUMNS,
                const WEIGHTS,
                options(nostack, preserves_flags, nomem),
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const TILE: usize>(to: *mut i32) {
        // SAFETY: see above.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}*1], tmm{tile}",
                tile = const TILE,
                to = in(reg) to,
                stride = in(reg) 4 * LANES,
                options(nostack, preserves_flags),
            );
        }
    }
}
