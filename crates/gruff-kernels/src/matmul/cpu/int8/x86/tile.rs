//! Many columns: a tile of rows is unpacked once, turned so that lanes are rows, and multiplied with all columns.
//!
//! With rows in the lanes no sum crosses lanes, a row whose blocks do not fill the last group costs what it has, and
//! a second term costs what one block costs.

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, GROUP, Group, LANE_BLOCKS, LANES_OF};
use super::dot::{Avx2, Vnni, offset};
use super::product::{GROUP_BYTES, group_of, stored};
use super::transpose::{OCTET, TileBlock, Weights, octet};
use super::wide::Wide;
use super::{Form, Quants, Unpack, each};
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

/// The instruction sets, each with its tile and its entry points.
pub(super) trait Tiled: Wide {
    /// A block of a tile.
    type Block;

    /// As [`octet`].
    unsafe fn octet(rows: &[Weights; OCTET], parts: [bool; 2], blocks: *mut Self::Block, first: usize);

    /// As [`columns`].
    unsafe fn columns<F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize);
}

/// Declares an instruction set's entry points.
macro_rules! tiled {
    ($isa:ident, $rows:literal, $features:literal, $pass:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $pass<F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize) {
            // SAFETY: promised by the caller.
            unsafe { all_columns::<$isa, F>(tile, columns, out, stride) }
        }

        impl Tiled for $isa {
            type Block = TileBlock<$rows>;

            #[inline(always)]
            unsafe fn octet(
                rows: &[Weights; OCTET],
                parts: [bool; 2],
                blocks: *mut TileBlock<$rows>,
                first: usize,
            ) {
                // SAFETY: promised by the caller.
                unsafe { octet(rows, parts, blocks, first) }
            }

            #[inline(always)]
            unsafe fn columns<F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize) {
                // SAFETY: promised by the caller.
                unsafe { $pass::<F>(tile, columns, out, stride) }
            }
        }
    };
}
tiled!(Avx2, 16, "avx2,fma,f16c", avx2);
tiled!(Vnni, 32, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni", vnni);

/// Unpacked rows.
pub(super) struct Tile {
    /// [`Tiled::Block`]s.
    first: *const u8,
    /// Blocks of 32 columns.
    blocks: usize,
    /// By how much the weights are too large: `1 << shift`.
    shift: u32,
    /// Rows that are wanted.
    rows: usize,
}

/// Rows of a tile.
const fn rows_of<D: Wide>() -> usize {
    2 * D::LANES
}

/// `out[c * panel.rows + r]` becomes the product of row r and column c, of at least [`Wide::COLS`] columns.
///
/// # Safety
/// As for [`Kernel::compute`](super::super::super::kernel::Kernel::compute).
#[inline(always)]
pub(super) unsafe fn product<D: Tiled, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let blocks = panel.cols.div_ceil(Q8_BLOCK);
    let (_, memory) = scratch.split::<(), D::Block>(blocks.next_multiple_of(BLOCKS));
    let shift = offset::<D, U>().unwrap_or(0);
    let mut row = 0;
    while row < panel.rows {
        // The last tile of several overlaps the one before it: the same results again.
        let first = row.min(panel.rows.saturating_sub(rows_of::<D>()));
        let rows = rows_of::<D>().min(panel.rows - first);
        // SAFETY: promised by the caller; the memory holds the row's groups.
        unsafe {
            unpack::<D, U>(panel, first, memory);
            let tile = Tile { first: memory.cast(), blocks, shift, rows };
            D::columns::<U::Form>(&tile, columns, out.as_mut_ptr().add(first), panel.rows);
        }
        row = first + rows;
    }
}

/// Unpacks a tile; rows behind the panel's last repeat it.
#[inline(always)]
unsafe fn unpack<D: Tiled, U: Unpack>(panel: &Panel, row: usize, tile: *mut D::Block) {
    let mut rest = [0; GROUP_BYTES];
    let wanted = rows_of::<D>().min((panel.rows - row).next_multiple_of(OCTET));
    for group in 0..panel.cols.div_ceil(GROUP) {
        for first in (0..wanted).step_by(OCTET) {
            // SAFETY: promised by the caller.
            unsafe {
                let mut rows = [std::mem::zeroed::<Weights>(); OCTET];
                for r in 0..OCTET {
                    let packed = panel.first.add((row + first + r).min(panel.rows - 1) * panel.row_bytes);
                    let w = group_of::<U>(packed, panel.row_bytes, group, &mut rest);
                    rows[r] = Weights { quants: stored::<D, U>(w.quants), scales: w.scales, mins: w.mins };
                }
                let parts = [U::Form::HALVES, U::Form::MINS];
                D::octet(&rows, parts, tile.add(group * BLOCKS), first);
            }
        }
    }
}

/// Multiplies a tile with all columns. The last columns overlap the ones before them.
///
/// # Safety
/// The instruction set; a whole tile; columns as for the kernel, at least [`Wide::COLS`]; `out` holds `tile.rows`
/// values a column, `stride` apart.
#[inline(always)]
unsafe fn all_columns<D: Tiled, F: Form>(tile: &Tile, columns: &[*const u8], out: *mut f32, stride: usize) {
    for at in (0..columns.len()).step_by(D::COLS) {
        let at = at.min(columns.len() - D::COLS);
        // SAFETY: promised by the caller.
        unsafe {
            let (columns, out) = (columns.as_ptr().add(at).cast(), out.add(at * stride));
            match D::COLS {
                4 => some_columns::<D, F, 4>(tile, columns, out, stride),
                _ => some_columns::<D, F, 2>(tile, columns, out, stride),
            }
        }
    }
}

/// Two vectors of rows, for each of some columns, for each of the eight places in the sums' tree.
type Sums<D, const C: usize> = [[[<D as Wide>::Floats; 2]; C]; BLOCKS];

#[inline(always)]
unsafe fn some_columns<D: Tiled, F: Form, const C: usize>(
    tile: &Tile,
    columns: *const *const Group,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let x: [*const Group; C] = each!(|c: C| columns.add(c).read());
        let zero = D::floats(0.0);
        let mut sums: Sums<D, C> = [[[zero; 2]; C]; BLOCKS];
        // Written where a column has a second term only.
        let mut seconds = std::mem::MaybeUninit::<Sums<D, C>>::uninit();
        let seconds = seconds.as_mut_ptr();
        let mut has_second = [false; C];
        let blocks = tile.first.cast::<D::Block>();
        for first in (0..tile.blocks).step_by(BLOCKS) {
            let x: [*const Group; C] = each!(|c: C| x[c].add(first / BLOCKS));
            for b in 0..BLOCKS.min(tile.blocks - first) {
                let lane = LANES_OF[b] % BLOCKS;
                add_block::<D, F, C>(&mut sums[lane], blocks.add(first + b).cast(), x, lane, tile.shift);
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
                    let block = blocks.add(first + LANE_BLOCKS[lane]).cast();
                    let mut sums = [(*seconds)[lane][c]];
                    add_block::<D, F, 1>(&mut sums, block, x, lane, tile.shift);
                    (*seconds)[lane][c] = sums[0];
                }
            }
        }
        for c in 0..C {
            for r in 0..2 {
                let mut sum = tree::<D>(each!(|lane: 8| sums[lane][c][r]));
                if has_second[c] {
                    sum = D::add(sum, tree::<D>(each!(|lane: 8| (*seconds)[lane][c][r])));
                }
                let out = out.add(c * stride + r * D::LANES);
                let rows = tile.rows.saturating_sub(r * D::LANES);
                if rows >= D::LANES {
                    D::store(out, sum);
                } else {
                    let mut values = [0f32; 16];
                    D::store(values.as_mut_ptr(), sum);
                    std::ptr::copy_nonoverlapping(values.as_ptr(), out, rows);
                }
            }
        }
    }
}

/// The sums of the lanes of a row, which are here vectors of rows, in the order that the family's contract states.
#[inline(always)]
unsafe fn tree<D: Wide>(v: [D::Floats; 8]) -> D::Floats {
    // SAFETY: promised by the caller.
    unsafe {
        let halves = each!(|i: 4| D::add(v[i], v[i + 4]));
        D::add(D::add(halves[0], halves[2]), D::add(halves[1], halves[3]))
    }
}

/// Adds a block's products with C columns, whose group is `x`.
#[inline(always)]
unsafe fn add_block<D: Tiled, F: Form, const C: usize>(
    acc: &mut [[D::Floats; 2]; C],
    block: *const D::Block,
    x: [*const Group; C],
    lane: usize,
    shift: u32,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let rows = rows_of::<D>();
        let quants = block.cast::<u8>();
        let scales = quants.add(8 * 4 * rows).cast::<f32>();
        let mins = scales.add(2 * rows);
        let x_quants: [*const i32; C] = each!(|c: C| (&raw const (*x[c]).quants[0][lane]).cast());
        let further: [*const i32; C] = each!(|c: C| (&raw const (*x[c]).quants[4][lane]).cast());
        let x_scales: [D::Floats; C] = each!(|c: C| D::floats((*x[c]).scales[lane]));
        let mut sums = each!(|c: C| [start::<D, F>(offset_of::<F>(x[c], 0, lane), shift); 2]);
        D::tile4::<F, C>(&mut sums, quants, x_quants);
        if F::HALVES {
            fold::<D, C>(acc, scales, &x_scales, &sums);
            sums = each!(|c: C| [start::<D, F>(offset_of::<F>(x[c], 1, lane), shift); 2]);
            D::tile4::<F, C>(&mut sums, quants.add(4 * 4 * rows), further);
            fold::<D, C>(acc, scales.add(rows), &x_scales, &sums);
        } else {
            D::tile4::<F, C>(&mut sums, quants.add(4 * 4 * rows), further);
            fold::<D, C>(acc, scales, &x_scales, &sums);
        }
        if F::MINS {
            for half in 0..=usize::from(F::HALVES) {
                for r in 0..2 {
                    let mins = D::load(mins.add(half * rows + r * D::LANES));
                    for c in 0..C {
                        let sum = if F::HALVES { (*x[c]).sums[half][lane] } else { (*x[c]).whole_sums[lane] };
                        acc[c][r] = D::mul_add(mins, D::floats(sum), acc[c][r]);
                    }
                }
            }
        }
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
unsafe fn start<D: Wide, F: Form>(offset: i32, shift: u32) -> D::Ints {
    // SAFETY: promised by the caller.
    unsafe {
        let shifted = match F::QUANTS {
            Quants::Signed => D::SIGNED_OFFSET.is_some(),
            _ => F::SHIFTED,
        };
        if shifted { D::shift_left(D::ints(offset), shift) } else { D::ints(0) }
    }
}

/// Adds sums times the scales of the rows and of the columns.
#[inline(always)]
unsafe fn fold<D: Wide, const C: usize>(
    acc: &mut [[D::Floats; 2]; C],
    scales: *const f32,
    x_scales: &[D::Floats; C],
    sums: &[[D::Ints; 2]; C],
) {
    // SAFETY: promised by the caller.
    unsafe {
        for r in 0..2 {
            let scale = D::load(scales.add(r * D::LANES));
            for c in 0..C {
                acc[c][r] = D::add_scaled(acc[c][r], scale, x_scales[c], sums[c][r]);
            }
        }
    }
}
