//! Sixteen rows of activations side by side, as instructions read them that multiply a matrix with a matrix.
//!
//! The columns of an input stand in cohorts of sixteen, made once ([`form`]); columns that are not one after the other
//! (those of an expert) are gathered into cohorts by each piece of work.

use super::super::super::kernel::Panel;
use super::super::{BLOCKS, GROUP, Group};
use super::ahead::Ahead;
use super::layout::{Layout, Tile, unpack};
use super::transpose::numbers;
use super::{Form, Unpack, each};
use crate::cpu::scratch::Scratch;
use crate::matmul::Q8_BLOCK;

/// Rows of a cohort.
pub(in super::super) const COHORT: usize = 16;

/// What distances are counted in: all of a buffer's parts are multiples of it.
pub(super) type Line = [u8; 64];

/// Columns that a piece of work gathers at a time.
const GATHERED: usize = 128;

/// A block of 32 values of sixteen rows.
#[repr(C, align(64))]
pub(in super::super) struct CohortBlock {
    pub(super) quants: [[i8; Q8_BLOCK]; COHORT],
    /// What [`Group`] has of the same names.
    pub(super) scales: [f32; COHORT],
    pub(super) whole_sums: [f32; COHORT],
    pub(super) sums: [[f32; COHORT]; 2],
    /// The rows whose block has a second term, a bit each.
    pub(super) loud: u32,
}

/// Blocks of a cohort of `groups` groups: block g of lane p is the one at `p * groups + g`, its second term as many
/// further as there are first ones. Of second terms only what is loud is written.
pub(in super::super) const fn blocks(groups: usize) -> usize {
    2 * BLOCKS * groups
}

/// A cohort and how much of it is wanted.
pub(super) struct Cohort {
    pub(super) first: *const CohortBlock,
    pub(super) groups: usize,
    /// Rows.
    pub(super) count: usize,
}

/// An instruction set that multiplies tiles with cohorts.
pub(super) trait Cohorted: Layout {
    /// Begins and ends the use of the instructions for the tiles of a type.
    unsafe fn begin<F: Form>();
    unsafe fn end();

    /// Multiplies a tile with a cohort; `out` holds `tile.rows` values a column, `stride` apart.
    unsafe fn multiply<F: Form>(tile: &Tile, cohort: &Cohort, out: *mut f32, stride: usize);
}

/// Makes a cohort of at most sixteen rows, whose groups point to it afterwards.
///
/// # Safety
/// `rows` is followed by `count * groups` groups, `second` further by their second terms, and `cohort` further by
/// [`blocks`]; nobody else touches any of them meanwhile.
pub(in super::super) unsafe fn form(rows: *mut Group, count: usize, groups: usize, out: *mut CohortBlock) {
    let mut columns = [std::ptr::null(); COHORT];
    // SAFETY: promised by the caller.
    unsafe {
        for (place, column) in columns.iter_mut().enumerate().take(count) {
            let row = rows.add(place * groups);
            *column = row.cast_const().cast();
            (*row).cohort = (out.byte_offset_from(row) as usize / size_of::<Line>()) as u32;
            (*row).place = place as u32;
        }
        gather(&columns[..count], groups, out);
    }
}

/// Puts rows of activations side by side; the last one also in the place of those that are missing.
///
/// # Safety
/// AVX2 on x86-64; at least one and at most sixteen columns, each of that many groups; `out` has room for
/// [`blocks`]`(groups)`.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn gather(columns: &[*const u8], groups: usize, out: *mut CohortBlock) {
    let seconds = blocks(groups) / 2;
    // SAFETY: promised by the caller; every lane has a block a group.
    unsafe {
        let rows: [*const Group; COHORT] =
            each!(|place: 16| columns[if place < columns.len() { place } else { columns.len() - 1 }].cast());
        for g in 0..groups {
            let x: [*const Group; COHORT] = each!(|place: 16| rows[place].add(g));
            let out = out.add(g);
            write_numbers(&x, groups, out);
            for lane in 0..BLOCKS {
                (*out.add(lane * groups)).loud = 0;
            }
            for place in 0..COHORT {
                write_quants(x[place], place, groups, out);
                let mut loud = (*x[place]).loud;
                if loud == 0 || place >= columns.len() {
                    continue;
                }
                let second = Group::second(x[place]);
                let to = out.add(seconds);
                write_quants(second, place, groups, to);
                while loud != 0 {
                    let lane = loud.trailing_zeros() as usize % BLOCKS;
                    loud &= loud - 1;
                    (*out.add(lane * groups)).loud |= 1 << place;
                    let to = to.add(lane * groups);
                    (*to).scales[place] = (*second).scales[lane];
                    (*to).whole_sums[place] = (*second).whole_sums[lane];
                    for half in 0..2 {
                        (*to).sums[half][place] = (*second).sums[half][lane];
                    }
                }
            }
        }
    }
}

/// Writes the quants of a row's group into its place of eight blocks.
#[inline(always)]
unsafe fn write_quants(x: *const Group, place: usize, groups: usize, out: *mut CohortBlock) {
    // SAFETY: promised by the caller; quants are moved as numbers are, four at a time.
    unsafe {
        let from = each!(|g: 8| (&raw const (*x).quants[g]).cast());
        numbers(from, each!(|lane: 8| (&raw mut (*out.add(lane * groups)).quants[place]).cast()));
    }
}

/// Writes scales and sums of sixteen rows' groups into eight blocks.
#[inline(always)]
unsafe fn write_numbers(x: &[*const Group; COHORT], groups: usize, out: *mut CohortBlock) {
    // SAFETY: promised by the caller.
    unsafe {
        for first in [0, 8] {
            let from = each!(|r: 8| (&raw const (*x[first + r]).scales).cast());
            numbers(from, each!(|lane: 8| &raw mut (*out.add(lane * groups)).scales[first]));
            let from = each!(|r: 8| (&raw const (*x[first + r]).whole_sums).cast());
            numbers(from, each!(|lane: 8| &raw mut (*out.add(lane * groups)).whole_sums[first]));
            for half in 0..2 {
                let from = each!(|r: 8| (&raw const (*x[first + r]).sums[half]).cast());
                numbers(from, each!(|lane: 8| &raw mut (*out.add(lane * groups)).sums[half][first]));
            }
        }
    }
}

/// The cohort that begins with these columns, if they are rows of one, in their order, of whatever kind the instruction
/// set's cohorts are.
///
/// # Safety
/// Columns as for the kernel.
unsafe fn made(columns: &[*const u8], groups: usize) -> Option<*const u8> {
    let first = columns[0].cast::<Group>();
    // SAFETY: promised by the caller.
    let (distance, place) = unsafe { ((*first).cohort as usize, (*first).place) };
    let mut next = first.cast();
    for column in columns {
        if *column != next {
            return None;
        }
        next = next.wrapping_add(groups * size_of::<Group>());
    }
    (distance != 0 && place == 0).then(|| first.cast::<Line>().wrapping_add(distance).cast())
}

/// The cohorts of `size` columns that these are the rows of, where they are rows of cohorts from the first to the last.
///
/// # Safety
/// Columns as for the kernel.
pub(super) unsafe fn all_made(columns: &[*const u8], groups: usize, size: usize) -> Option<Vec<*const u8>> {
    // SAFETY: promised by the caller.
    columns.chunks(size).map(|columns| unsafe { made(columns, groups) }).collect()
}

/// See [`Layout::product`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn product<L: Cohorted, U: Unpack>(
    panel: &Panel,
    columns: &[*const u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let groups = panel.cols.div_ceil(GROUP);
    // SAFETY: promised by the caller.
    let made = unsafe { all_made(columns, groups, COHORT) };
    let together = if made.is_some() { columns.len() } else { GATHERED };
    let gathered = match made {
        Some(_) => 0,
        None => together.min(columns.len()).div_ceil(COHORT) * blocks(groups),
    };
    let tile = groups * BLOCKS;
    let room = tile + (gathered * size_of::<CohortBlock>()).div_ceil(size_of::<L::Block>());
    let (_, memory) = scratch.split::<(), L::Block>(room);
    // SAFETY: promised by the caller; the memory holds a tile and the cohorts.
    unsafe {
        let cohorts = memory.add(tile).cast::<CohortBlock>();
        L::begin::<U::Form>();
        for (part, columns) in columns.chunks(together).enumerate() {
            let out = out.as_mut_ptr().add(part * together * panel.rows);
            if made.is_none() {
                for (i, columns) in columns.chunks(COHORT).enumerate() {
                    gather(columns, groups, cohorts.add(i * blocks(groups)));
                }
            }
            let mut row = 0;
            while row < panel.rows {
                // The last tile of several overlaps the one before it: the same results again.
                let first = row.min(panel.rows.saturating_sub(L::ROWS));
                let rows = L::ROWS.min(panel.rows - first);
                unpack::<L, U>(panel, first, memory);
                let blocks_of_row = panel.cols.div_ceil(Q8_BLOCK);
                let ahead = Ahead::of(panel, first + rows, L::ROWS);
                let tile = Tile { first: memory.cast(), blocks: blocks_of_row, shift: 0, rows, ahead };
                let count = columns.len().div_ceil(COHORT);
                for (i, columns) in columns.chunks(COHORT).enumerate() {
                    tile.ahead.ask(i, count);
                    let first_block = match &made {
                        Some(made) => made[i].cast(),
                        None => cohorts.add(i * blocks(groups)).cast_const(),
                    };
                    let cohort = Cohort { first: first_block, groups, count: columns.len() };
                    let out = out.add(i * COHORT * panel.rows + first);
                    L::multiply::<U::Form>(&tile, &cohort, out, panel.rows);
                }
                row = first + rows;
            }
        }
        L::end();
    }
}
