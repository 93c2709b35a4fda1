//! Many columns: a tile of rows is unpacked once, turned so that lanes are rows, and multiplied with all columns.
//!
//! With rows in the lanes no sum crosses lanes, a row whose blocks do not fill the last group costs what it has, and
//! a second term costs what one block costs.

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, Group, LANE_BLOCKS, LANES_OF};
use super::ahead::Ahead;
use super::dot::{Bits, Dot, SIGNED_OFFSET};
use super::layout::{Layout, Tile, unpack};
use super::product::stored;
use super::transpose::{OCTET, TileBlock, Weights, octet};
use super::wide::Wide;
use super::{Form, Quants, Unpack, each};
use crate::Isa;
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

#[cfg(target_arch = "x86_64")]
use super::dot::{Avx2, Vnni};
#[cfg(target_arch = "aarch64")]
use super::dot::{DotProd, Neon};
#[cfg(target_arch = "x86_64")]
use super::wide::AvxVnni;

/// The instruction sets whose kernels multiply tiles with columns, one value of a column at a time.
pub(super) trait Tiled: Layout {
    /// As [`all_columns`].
    unsafe fn columns<F: Form>(isa: Isa, tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize);
}

/// Declares [`all_columns`] with an instruction set's features.
macro_rules! all_columns {
    ($name:ident, $isa:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize) {
            // SAFETY: promised by the caller.
            unsafe { all_columns::<$isa, F>(tile, columns, out, stride) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
all_columns!(avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
all_columns!(avx_vnni, AvxVnni, "avx2,fma,f16c,avxvnni");
#[cfg(target_arch = "x86_64")]
all_columns!(vnni, Vnni, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");
#[cfg(target_arch = "aarch64")]
all_columns!(neon, Neon, "neon");
#[cfg(target_arch = "aarch64")]
all_columns!(dotprod, DotProd, "neon,dotprod");

/// Declares an instruction set's tile.
macro_rules! tiled {
    ($isa:ident, $rows:literal, |$wanted:ident, $tile:ident, $columns:ident, $out:ident, $stride:ident| $pass:expr) => {
        impl Layout for $isa {
            type Vector = <$isa as Dot>::V;
            const ROWS: usize = $rows;
            type Block = TileBlock<$rows>;

            #[inline(always)]
            unsafe fn stored<U: Unpack>(quants: [Bits<$isa>; 8]) -> [Bits<$isa>; 8] {
                // SAFETY: promised by the caller.
                unsafe { stored::<$isa, U>(quants) }
            }

            #[inline(always)]
            unsafe fn octet(
                rows: &[Weights; OCTET],
                parts: [bool; 2],
                blocks: [*mut TileBlock<$rows>; BLOCKS],
                first: usize,
            ) {
                // SAFETY: promised by the caller.
                unsafe { octet(rows, parts, blocks, first) }
            }

            #[inline(always)]
            unsafe fn product<U: Unpack>(
                panel: &Panel,
                columns: &[*const u8],
                out: &mut [f32],
                scratch: &mut Scratch,
            ) {
                // SAFETY: promised by the caller.
                unsafe { product::<$isa, U>(panel, columns, out, scratch) }
            }
        }

        impl Tiled for $isa {
            #[inline(always)]
            unsafe fn columns<F: Form>(
                $wanted: Isa,
                $tile: &Tile,
                $columns: &[*const u8],
                $out: *mut f32,
                $stride: usize,
            ) {
                // SAFETY: promised by the caller.
                unsafe { $pass }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
tiled!(Vnni, 32, |_isa, tile, columns, out, stride| vnni::<F>(tile, columns, out, stride));
#[cfg(target_arch = "x86_64")]
tiled!(Avx2, 16, |isa, tile, columns, out, stride| match isa {
    Isa::AvxVnni => avx_vnni::<F>(tile, columns, out, stride),
    _ => avx2::<F>(tile, columns, out, stride),
});
#[cfg(target_arch = "aarch64")]
tiled!(Neon, 16, |_isa, tile, columns, out, stride| neon::<F>(tile, columns, out, stride));
#[cfg(target_arch = "aarch64")]
tiled!(DotProd, 16, |_isa, tile, columns, out, stride| dotprod::<F>(tile, columns, out, stride));

/// Rows of a tile of two vectors.
const fn rows_of<W: Wide>() -> usize {
    2 * W::LANES
}

/// See [`Layout::product`]; at least [`Wide::COLS`] columns.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn product<D: Tiled, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let blocks = panel.cols.div_ceil(Q8_BLOCK);
    let (_, memory) = scratch.split::<(), D::Block>(blocks.next_multiple_of(BLOCKS));
    let shift = match U::Form::QUANTS {
        Quants::Signed => SIGNED_OFFSET,
        _ => U::OFFSET,
    };
    let mut row = 0;
    while row < panel.rows {
        // The last tile of several overlaps the one before it: the same results again.
        let first = row.min(panel.rows.saturating_sub(D::ROWS));
        let rows = D::ROWS.min(panel.rows - first);
        let ahead = Ahead::of(panel, first + rows, D::ROWS);
        // SAFETY: promised by the caller; the memory holds the row's groups.
        unsafe {
            unpack::<D, U>(panel, first, memory);
            let tile = Tile { first: memory.cast(), blocks, shift, rows, ahead };
            D::columns::<U::Form>(panel.isa, &tile, columns, out.as_mut_ptr().add(first), panel.rows);
        }
        row = first + rows;
    }
}

/// Multiplies a tile with all columns. The last columns overlap the ones before them.
///
/// # Safety
/// The instruction set; a whole tile; columns as for the kernel, at least [`Wide::COLS`]; `out` holds `tile.rows`
/// values a column, `stride` apart.
#[inline(always)]
unsafe fn all_columns<W: Wide, F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize) {
    let parts = columns.len().div_ceil(W::COLS);
    for part in 0..parts {
        tile.ahead.ask(part, parts);
        let at = (part * W::COLS).min(columns.len() - W::COLS);
        // SAFETY: promised by the caller.
        unsafe {
            let (columns, out) = (columns.as_ptr().add(at).cast(), out.add(at * stride));
            match W::COLS {
                4 => some_columns::<W, F, 4>(tile, columns, out, stride),
                _ => some_columns::<W, F, 2>(tile, columns, out, stride),
            }
        }
    }
}

/// Two vectors of rows, for each of some columns, for each of the eight places in the sums' tree.
type Sums<W, const C: usize> = [[[<W as Wide>::Floats; 2]; C]; BLOCKS];

#[inline(always)]
unsafe fn some_columns<W: Wide, F: Form, const C: usize>(
    tile: &Tile,
    columns: *const *const Group,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let x: [*const Group; C] = each!(|c: C| columns.add(c).read());
        let zero = W::floats(0.0);
        // Begun by the first group.
        let mut sums = std::mem::MaybeUninit::<Sums<W, C>>::uninit();
        let sums = sums.as_mut_ptr();
        for b in tile.blocks..BLOCKS {
            (*sums)[LANES_OF[b]] = [[zero; 2]; C];
        }
        // Written where a column has a second term only.
        let mut seconds = std::mem::MaybeUninit::<Sums<W, C>>::uninit();
        let seconds = seconds.as_mut_ptr();
        let mut has_second = [false; C];
        let block_bytes = 48 * rows_of::<W>();
        for first in (0..tile.blocks).step_by(BLOCKS) {
            let x: [*const Group; C] = each!(|c: C| x[c].add(first / BLOCKS));
            for b in 0..BLOCKS.min(tile.blocks - first) {
                let lane = LANES_OF[b] % BLOCKS;
                let block = tile.first.add((first + b) * block_bytes);
                add_block::<W, F, C>(&raw mut (*sums)[lane], first == 0, block, x, lane, tile.shift);
            }
            for c in 0..C {
                let mut loud = (*x[c]).loud;
                if loud == 0 {
                    continue;
                }
                if !has_second[c] {
                    has_second[c] = true;
                    for lane in 0..BLOCKS {
                        (*seconds)[lane][c] = [zero; 2];
                    }
                }
                let x = [Group::second(x[c])];
                while loud != 0 {
                    let lane = loud.trailing_zeros() as usize % BLOCKS;
                    loud &= loud - 1;
                    let block = tile.first.add((first + LANE_BLOCKS[lane]) * block_bytes);
                    let mut sums = [(*seconds)[lane][c]];
                    add_block::<W, F, 1>(&mut sums, false, block, x, lane, tile.shift);
                    (*seconds)[lane][c] = sums[0];
                }
            }
        }
        for c in 0..C {
            for r in 0..2 {
                let mut sum = tree::<W>(each!(|lane: 8| (*sums)[lane][c][r]));
                if has_second[c] {
                    sum = W::add(sum, tree::<W>(each!(|lane: 8| (*seconds)[lane][c][r])));
                }
                let out = out.add(c * stride + r * W::LANES);
                let rows = tile.rows.saturating_sub(r * W::LANES);
                if rows >= W::LANES {
                    W::store(out, sum);
                } else {
                    let mut values = [0f32; 16];
                    W::store(values.as_mut_ptr(), sum);
                    std::ptr::copy_nonoverlapping(values.as_ptr(), out, rows);
                }
            }
        }
    }
}

/// The sums of the lanes of a row, which are here vectors of rows, in the order that the family's contract states.
#[inline(always)]
unsafe fn tree<W: Wide>(v: [W::Floats; 8]) -> W::Floats {
    // SAFETY: promised by the caller.
    unsafe {
        let halves = each!(|i: 4| W::add(v[i], v[i + 4]));
        W::add(W::add(halves[0], halves[2]), W::add(halves[1], halves[3]))
    }
}

/// Adds a block's products with C columns, whose group is `x`, to the sums, or makes them the sums.
#[inline(always)]
unsafe fn add_block<W: Wide, F: Form, const C: usize>(
    out: *mut [[W::Floats; 2]; C],
    first: bool,
    block: *const u8,
    x: [*const Group; C],
    lane: usize,
    shift: u32,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let rows = rows_of::<W>();
        let quants = block;
        let scales = quants.add(8 * 4 * rows).cast::<f32>();
        let mins = scales.add(2 * rows);
        let x_quants: [*const i32; C] = each!(|c: C| (&raw const (*x[c]).quants[0][lane]).cast());
        let further: [*const i32; C] = each!(|c: C| (&raw const (*x[c]).quants[4][lane]).cast());
        let x_scales: [W::Floats; C] = each!(|c: C| W::floats((*x[c]).scales[lane]));
        let mut sums = each!(|c: C| [start::<W, F>(offset_of::<F>(x[c], 0, lane), shift); 2]);
        W::tile4::<F, C>(&mut sums, quants, x_quants);
        // Read no earlier than needed: AVX2 has no registers to spare for them.
        let mut acc;
        if F::HALVES {
            acc = if first { [[W::floats(0.0); 2]; C] } else { *out };
            fold::<W, C>(&mut acc, scales, &x_scales, &sums);
            sums = each!(|c: C| [start::<W, F>(offset_of::<F>(x[c], 1, lane), shift); 2]);
            W::tile4::<F, C>(&mut sums, quants.add(4 * 4 * rows), further);
            fold::<W, C>(&mut acc, scales.add(rows), &x_scales, &sums);
        } else {
            W::tile4::<F, C>(&mut sums, quants.add(4 * 4 * rows), further);
            acc = if first { [[W::floats(0.0); 2]; C] } else { *out };
            fold::<W, C>(&mut acc, scales, &x_scales, &sums);
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                for r in 0..2 {
                    let mins = W::load(mins.add(half * rows + r * W::LANES));
                    for c in 0..C {
                        let sum = if F::HALVES { (*x[c]).sums[half][lane] } else { (*x[c]).whole_sums[lane] };
                        acc[c][r] = W::mul_add(mins, W::floats(sum), acc[c][r]);
                    }
                }
            }
        }
        *out = acc;
    }
}

/// What the weights' offset is multiplied by.
#[inline(always)]
unsafe fn offset_of<F: Form>(x: *const Group, half: usize, lane: usize) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { if F::HALVES { (*x).offsets[half][lane] } else { (*x).whole_offsets[lane] } }
}

/// What sums begin with, so that weights that are stored too large come out right.
#[inline(always)]
unsafe fn start<W: Wide, F: Form>(offset: i32, shift: u32) -> W::Ints {
    // SAFETY: promised by the caller.
    unsafe {
        let shifted = match F::QUANTS {
            Quants::Signed => W::UNSIGNED,
            _ => F::SHIFTED,
        };
        if shifted { W::shift_left(W::ints(offset), shift) } else { W::ints(0) }
    }
}

/// Adds sums times the scales of the rows and of the columns.
#[inline(always)]
unsafe fn fold<W: Wide, const C: usize>(
    acc: &mut [[W::Floats; 2]; C],
    scales: *const f32,
    x_scales: &[W::Floats; C],
    sums: &[[W::Ints; 2]; C],
) {
    // SAFETY: promised by the caller.
    unsafe {
        for r in 0..2 {
            let scale = W::load(scales.add(r * W::LANES));
            for c in 0..C {
                acc[c][r] = W::add_scaled(acc[c][r], scale, x_scales[c], sums[c][r]);
            }
        }
    }
}
